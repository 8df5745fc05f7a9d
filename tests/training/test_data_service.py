"""ctx.distribute in a run without data workers; with them: tests/e2e/test_data_workers.py."""

from __future__ import annotations

import pytest

from tests.support.processes import Cluster, run_function


@pytest.mark.slow
def test_without_data_workers_a_data_set_stays_as_it_is() -> None:
    [task] = run_function("tests.support.data_functions:distribute_in_turn", Cluster())
    assert task.values["is_same"]
    assert task.values["notes"] == [
        "ctx.distribute changes nothing: the run has no data workers (--data-workers N)"
    ]
    batches, no_dataset, sharding, repeated = task.values["refused"]
    assert "ctx.distribute got batches of raydist.data, which are read by Python" in batches
    assert no_dataset == "ctx.distribute got list; give a tf.data.Dataset"
    assert sharding == "ctx.distribute got sharding='static'; use dynamic or off"
    assert "TensorFlow loses elements between the passes" in repeated
