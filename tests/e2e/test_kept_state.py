"""What the chief's host has in memory when a process dies: the next attempt continues from there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.conftest import Ended, Raydist

pytestmark = pytest.mark.slow

_JOB = """
import json
import os
import signal

import numpy as np

import raydist


@raydist.job(workers=2)
def train(ctx: raydist.TrainContext):
    import keras
    import tensorflow as tf

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(512, 16)).astype("float32"), rng.integers(0, 3, 512)
    with ctx.strategy.scope():
        layers = [keras.Input((16,)), keras.layers.Dense(32), keras.layers.BatchNormalization()]
        model = keras.Sequential([*layers, keras.layers.Dropout(0.2), keras.layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=["accuracy"])

    index = json.loads(os.environ.get("TF_CONFIG") or '{"task": {"index": 0}}')["task"]["index"]

    class Kill(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            killed = ctx.params.get("killed", [])
            step, who = killed[ctx.attempt] if ctx.attempt < len(killed) else (1 << 30, None)
            if index == who and int(model.optimizer.iterations.numpy()) >= step:
                os.kill(os.getpid(), signal.SIGKILL)

    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(512, seed=1).batch(16, drop_remainder=True)
    ctx.fit(model, data, epochs=6, callbacks=[Kill()])
    print("WEIGHTS", {one.path: one.numpy().tolist() for one in model.weights})
"""


def weights_of(raydist: Raydist, run: str) -> dict[str, np.ndarray]:
    lines = raydist("logs", run, "--task", "worker/0").out.splitlines()
    [line] = [line for line in lines if "WEIGHTS" in line]
    found = ast.literal_eval(line.partition("WEIGHTS")[2].strip())
    return {name: np.asarray(value, "float32") for name, value in found.items()}


def check_equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        # Each replica has moving statistics of its own within an epoch, of which the mean is saved.
        tolerance = 1e-6 if "moving" in name else 0
        np.testing.assert_allclose(found[name], value, rtol=tolerance, atol=tolerance, err_msg=name)


def check_goes_on(
    raydist: Raydist, tmp_path: Path, source: str, kills: list[list[int]], *options: str
) -> tuple[Ended, Ended]:
    """Runs a job undisturbed and with kills, each a step and a worker; without a checkpoint in between."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "kept.py").write_text(source)
    plain = raydist("submit", "code/kept.py", "--json", "--name", "plain", *options)
    assert plain.code == 0, plain.err
    killed = raydist(
        *("submit", "code/kept.py", "--json", "--name", "killed", "--checkpoint-every", "100000"),
        *("-p", f"killed={kills}", *options),
    )
    assert killed.code == 0, killed.err
    assert killed.json["attempts"] == 1 + len(kills)
    notes = [note for note in killed.json["notes"] if "had in memory" in note]
    steps = [int(re.search(r"from step (\d+)", note)[1]) for note in notes]  # type: ignore[index]
    assert len(steps) == len(kills)
    # Some steps take 2 ms, and keeping a state 3 ms, so that many go by in between.
    assert all(before < step <= at for before, step, (at, _) in zip([0, *steps], steps, kills, strict=False))
    check_equal(weights_of(raydist, "killed"), weights_of(raydist, "plain"))
    return plain, killed


def test_attempt_after_a_kill_goes_on_from_memory_and_ends_with_the_same_weights(
    raydist: Raydist, tmp_path: Path
) -> None:
    plain, killed = check_goes_on(raydist, tmp_path, _JOB, [[77, 1], [130, 0]])  # worker/0 is the chief
    assert killed.json["metrics"] == pytest.approx(plain.json["metrics"], rel=1e-6)


def test_mirrored_strategy_and_tf_keras_go_on_from_memory_too(raydist: Raydist, tmp_path: Path) -> None:
    job = _JOB.replace("@raydist.job(workers=2)", "@raydist.job()")
    job = job.replace("import keras\n", "import tf_keras as keras\n").replace("one.path", "one.name")
    options = ("--strategy", "mirrored", "--devices", "2", "--keras", "legacy")
    check_goes_on(raydist, tmp_path, job, [[77, 0]], *options)


_LOOP = """
import json
import os
import signal

import numpy as np

import raydist


@raydist.job(workers=2)
def train(ctx: raydist.TrainContext):
    import keras
    import tensorflow as tf

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(512, 16)).astype("float32"), rng.normal(size=(512, 1)).astype("float32")
    with ctx.strategy.scope():
        model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(32, "tanh"), keras.layers.Dense(1)])
        optimizer = keras.optimizers.Adam(0.01)
        optimizer.build(model.trainable_variables)
    ctx.restore(model=model, optimizer=optimizer)

    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    killed = ctx.params.get("killed", [])
    at, who = killed[ctx.attempt] if ctx.attempt < len(killed) else (1 << 30, None)

    def kill(step):
        if index == who and int(step) >= at:
            os.kill(os.getpid(), signal.SIGKILL)

    def step_fn(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        tf.py_function(kill, [tf.convert_to_tensor(optimizer.iterations.value)], [])
        return {"loss": loss}

    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(512, seed=1).batch(16, drop_remainder=True)
    ctx.train_steps(step_fn, data.repeat(), num_steps=200, steps_per_call=2)
    print("WEIGHTS", {one.path: one.numpy().tolist() for one in model.weights})
"""


def test_loop_of_steps_goes_on_from_memory_too(raydist: Raydist, tmp_path: Path) -> None:
    check_goes_on(raydist, tmp_path, _LOOP, [[90, 1], [150, 0]])
