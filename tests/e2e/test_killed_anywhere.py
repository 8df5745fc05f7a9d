"""Workers are killed in fifty functions of raydist: the result has the bits of the undisturbed run."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.conftest import Ended

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

NUM_PLACES = 50
JOB = """
import os
import random
import signal
import sys
import threading
from pathlib import Path

import numpy as np
import tensorflow as tf

import raydist

RAYDIST = os.path.dirname(raydist.__file__) + os.sep
# Where an attempt looks for a place; elsewhere, too, after so many calls.
ROOMS = ("", "", "training/", "training/checkpointing/", "storage/", "training/reporting/")
PATIENCE = 20_000


class Killer(tf.keras.callbacks.Callback):
    '''Kills its process in a function of raydist, as it begins or ends, in which none was killed before.'''

    def __init__(self, record, chance):
        super().__init__()
        self.record = record
        self.seen = set(record.read_text().splitlines())
        self.room = chance.choice(ROOMS)
        self.num_skipped = int(10 ** chance.uniform(0, 3))
        self.steps_left = chance.choice([0, 1, 1, 2, 3, 4, 5])
        self.num_calls = 0
        threading.setprofile(self.profile)
        sys.setprofile(self.profile)

    def on_train_batch_begin(self, batch, logs=None):
        self.steps_left -= 1

    def profile(self, frame, event, _):
        path = frame.f_code.co_filename
        if self.steps_left > 0 or event not in ("call", "return") or not path.startswith(RAYDIST):
            return
        self.num_calls += 1
        place = f"{event} {path.removeprefix(RAYDIST)}:{frame.f_code.co_name}"
        is_wanted = path.startswith(RAYDIST + self.room) or self.num_calls > PATIENCE
        if is_wanted and self.num_calls > self.num_skipped and place not in self.seen:
            with self.record.open("a") as file:
                file.write(place + "\\n")
            os.kill(os.getpid(), signal.SIGKILL)


@raydist.job(params={"record": "", "places": 0})
def train(ctx: raydist.TrainContext):
    callbacks = []
    record = Path(ctx.params["record"])
    if len(record.read_text().splitlines()) < ctx.params["places"]:
        chance = random.Random(ctx.attempt)
        both, index = chance.random() < 0.2, chance.randrange(2)
        if both or index == ctx.task.index:
            callbacks.append(Killer(record, chance))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 6)).astype("float32")
    y = (x[:, 0] > 0).astype("int64")
    with ctx.strategy.scope():
        layers = [tf.keras.layers.Dense(8, "tanh"), tf.keras.layers.Dropout(0.3), tf.keras.layers.Dense(2)]
        model = tf.keras.Sequential([tf.keras.Input((6,)), *layers])
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf.keras.optimizers.Adam(0.01), loss=loss, metrics=["accuracy"])
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(240, seed=2).batch(12)
    ctx.fit(model, data, epochs=15, validation_data=(x[:60], y[:60]), callbacks=callbacks, verbose=0)
"""
OPTIONS = ("--workers", "2", "--checkpoint-every", "7", "--max-failures", "500", "--json")


def arrays_of(result: dict[str, Any]) -> dict[str, np.ndarray]:
    """Returns what the last checkpoint holds: weights, the optimizer's variables, random states."""
    content = Path(result["checkpoint"], "variables.npz").read_bytes()
    with np.load(io.BytesIO(content)) as arrays:
        return dict(arrays)


@pytest.mark.parametrize(
    "keras",
    ["3", pytest.param("legacy", marks=pytest.mark.exhaustive(covered_by="the other; test_survival.py"))],
)
def test_run_that_is_killed_in_fifty_functions_has_the_bits_of_the_undisturbed_one(
    raydist: Callable[..., Ended], tmp_path: Path, keras: str
) -> None:
    (tmp_path / "job.py").write_text(JOB)
    record = tmp_path / "places"
    record.touch()

    def train(name: str, num_places: int) -> dict[str, Any]:
        params = ("-p", f"record={record}", "-p", f"places={num_places}")
        ended = raydist(
            "submit", "job.py", "--name", name, "--keras", keras, *OPTIONS, *params, timeout_s=800
        )
        assert ended.code == 0, ended.err
        return ended.json

    calm, killed = train("calm", 0), train("killed", NUM_PLACES)
    places = record.read_text().splitlines()
    assert len(places) >= NUM_PLACES
    assert (killed["state"], killed["steps"]) == ("SUCCEEDED", 300)
    assert killed["attempts"] > NUM_PLACES // 2, json.dumps(killed["notes"])  # both may be killed in one
    assert killed["metrics"] == calm["metrics"]
    theirs = arrays_of(calm)
    for name, ours in arrays_of(killed).items():
        np.testing.assert_array_equal(ours, theirs[name], err_msg=f"{name}; killed in {places}")
