"""What a job may make for itself beside `ctx.strategy`."""

from __future__ import annotations

import math

import pytest

from tests.support.processes import Cluster, run_function

TARGET = "tests.support.train_functions:own_mirrored_strategies"


@pytest.mark.slow
def test_mirrored_strategy_in_a_task_of_two_workers_uses_its_own_devices(keras: str) -> None:
    cluster = Cluster(strategy="multi_worker_mirrored", workers=2, devices=2, keras=keras)
    for index, task in enumerate(run_function(TARGET, cluster)):
        prefix = f"/job:worker/replica:0/task:{index}/device:CPU:"
        assert task.values["devices"] == [[f"{prefix}0", f"{prefix}1"]] * 2
        assert task.values["totals"] == [2.0, 2.0]
        assert all(map(math.isfinite, task.values["losses"]))
        assert task.values["around"] == [2.0, 2.0]  # the workers' own collectives still fit together
