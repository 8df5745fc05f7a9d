"""Values that become NaN or infinite are told with their step, and end the run where that was asked for."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from raydist.storage.checkpoint_marker import Checkpoint
from tests.support.processes import Cluster, TaskProcess, run_function, run_in_turn

TARGET = "tests.support.non_finite_functions:diverge"
WAYS = ("ctx.fit", "model.fit", "train_steps", "report")


@functools.cache
def run(*, stops: bool) -> dict[str, list[TaskProcess]]:
    calls = {how: (TARGET, {"how": how}) for how in WAYS}
    workers = Cluster(strategy="multi_worker_mirrored", workers=2)  # which have to stop together
    cluster = workers if stops else Cluster(strategy="mirrored", devices=2)
    return run_in_turn(calls, cluster, job_options={"stop_on_nan": stops})


@pytest.mark.slow
@pytest.mark.parametrize("how", WAYS)
def test_value_that_becomes_nan_is_noted_once_with_its_step(how: str) -> None:
    for task in run(stops=False)[how]:
        assert task.values["error"] == ""
        told = [one for one in task.values["notes"] if one.startswith("not finite after step ")]
        assert len(told) == 1
        assert re.search(r"after step \d+: (loss is (nan|inf))", told[0])


@pytest.mark.slow
@pytest.mark.parametrize("how", WAYS)
def test_stop_on_nan_ends_the_training_at_that_step(how: str) -> None:
    for task in run(stops=True)[how]:
        assert re.match(r"not finite after step \d+: loss is (nan|inf); --stop-on-nan", task.values["error"])
        if how == "report":
            assert "step 2:" in task.values["error"]


@pytest.mark.slow
def test_checkpoint_and_export_of_such_weights_are_noted_and_never_the_best(tmp_path: Path) -> None:
    options = {"keep_best": "loss", "export": True}
    where = Cluster(strategy="mirrored", devices=2)
    [task] = run_function(TARGET, where, storage=tmp_path, job_options=options, how="ctx.fit")
    notes = "\n".join(task.values["notes"])
    assert re.search("not finite: the checkpoint of step 4 holds NaN or infinity in .*last/kernel", notes)
    assert re.search("not finite: the exported model holds NaN or infinity in .*last/kernel", notes)


def test_checkpoint_that_is_not_finite_is_not_the_best() -> None:
    from raydist.training.checkpointing.schedule import best_step

    def checkpoint(step: int, **info: object) -> Checkpoint:
        info = {"metrics": {"loss": 1.0 / step}, **info}
        return Checkpoint(step=step, attempt=0, uri="", files=(), info=info)

    committed = [checkpoint(3, non_finite=["kernel"]), checkpoint(2), checkpoint(1)]
    assert best_step(committed, "loss") == 2


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ml_dtypes.bfloat16, np.complex64])
def test_variables_that_are_not_finite_are_named(dtype: type) -> None:
    import tensorflow as tf

    from raydist.training.checkpointing import variables

    good, count = tf.Variable(np.ones(3, dtype), name="good"), tf.Variable(5, name="count")
    bad = tf.Variable(np.asarray([1, np.nan, 2]).astype(dtype), name="bad")
    snapshot = variables.Snapshots().take({"model": [good, bad, count]}, is_chief=True)
    assert snapshot.non_finite() == ["bad:0"]
