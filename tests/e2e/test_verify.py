"""`raydist reproduce --verify`: a run of virtual replicas has the same bits with other workers, or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import Raydist

pytestmark = pytest.mark.slow

# At the step `planted` a worker that is alone changes one element by one ulp.
_JOB = """
import json
import os

import numpy as np

import raydist


@raydist.job(workers=2)
def train(ctx: raydist.TrainContext):
    import keras
    import tensorflow as tf

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(256, 8)).astype("float32"), rng.integers(0, 3, 256)
    with ctx.strategy.scope():
        layers = [keras.Input((8,)), keras.layers.Dense(8, name="first"), keras.layers.BatchNormalization()]
        model = keras.Sequential([*layers, keras.layers.Dropout(0.2), keras.layers.Dense(3, name="last")])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=["accuracy"])

    num_workers = len(json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster", {}).get("worker", "1"))

    class Plant(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if num_workers == 1 and int(model.optimizer.iterations.numpy()) == ctx.params.get("planted"):
                kernel = model.get_layer("last").kernel
                value = kernel.numpy()
                value[2, 1] = np.nextafter(value[2, 1], np.float32(np.inf))
                kernel.assign(value)

    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(256, seed=1).batch(16, drop_remainder=True)
    ctx.fit(model, data, epochs=2, callbacks=[Plant()])
"""


def submit(raydist: Raydist, tmp_path: Path, *options: str) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "job.py").write_text(_JOB)
    ended = raydist(
        *("submit", "code/job.py", "--json", "--name", "small", "--virtual-replicas", "4", "--keep", "all"),
        *("--checkpoint-every", "10", *options),
    )
    assert ended.code == 0, ended.err


def folders_of(tmp_path: Path) -> list[str]:
    return [path.name for path in tmp_path.glob("raydist_runs/small/verify/*/*")]


@pytest.mark.exhaustive(covered_by="the planted difference, before which all steps are equal")
def test_run_has_the_same_bits_on_other_workers_and_nothing_is_left(raydist: Raydist, tmp_path: Path) -> None:
    submit(raydist, tmp_path)
    ended = raydist("reproduce", "small", "--verify", "1", "--steps", "20", "--json")
    assert ended.code == 0, ended.out + ended.err
    equal = {"steps": list(range(1, 21)), "difference": None}
    own = {"steps": [10, 20], "difference": None}
    assert ended.json == {
        **{"run": "small", "workers": [2, 1], "equal": True, "kept": None},
        **{"repeats": equal, "checkpoints": own},
    }
    assert not (tmp_path / "raydist_runs/small/verify").exists()
    assert [run["run"] for run in raydist("list", "--json").json["runs"]] == ["small"]

    # From a checkpoint in an epoch to the run's end; the workers have different numbers of replicas.
    ended = raydist("reproduce", "small", "--verify", "3", "--from-step", "20")
    assert ended.code == 0, ended.out + ended.err
    assert "with 2 workers and with 3: all bits are equal over 12 steps, 21 to 32" in ended.out
    assert "the run's own checkpoints: all bits are equal over 2 steps, 30 to 32" in ended.out

    # The same weights have the same digest, whatever computed them.
    again = raydist(
        *("submit", "code/job.py", "--json", "--name", "alone", "--virtual-replicas", "4", "--workers", "1")
    )
    assert again.code == 0, again.err
    newest = [
        raydist("status", "--checkpoints", run, "--json").json["checkpoints"][0] for run in ("small", "alone")
    ]
    assert [one["step"] for one in newest] == [32, 32]
    assert newest[0]["digest"] == newest[1]["digest"]
    assert len(newest[0]["digest"]) == 16


def test_step_and_variable_of_a_planted_ulp_are_named(raydist: Raydist, tmp_path: Path) -> None:
    submit(raydist, tmp_path, "-p", "planted=7")
    ended = raydist("reproduce", "small", "--verify", "1", "--steps", "9", "--json")
    assert ended.code == 1, ended.out + ended.err
    assert ended.json["repeats"]["steps"] == [1, 2, 3, 4, 5, 6]
    difference = ended.json["repeats"]["difference"]
    assert (difference["step"], difference["replicas"]) == (7, [])
    assert "last/kernel" in difference["variable"]
    assert sorted(name for name in folders_of(tmp_path) if name != ".runs") == [
        "own-2-workers",
        "with-1-workers",
    ]
    kept = raydist("list", "--storage", ended.json["kept"], "--json").json["runs"]
    assert {run["run"] for run in kept} == {"own-2-workers", "with-1-workers"}
