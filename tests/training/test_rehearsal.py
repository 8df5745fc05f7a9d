"""A step that is traced once is run on batches, and on halves of them, of each kind of tensors."""

from __future__ import annotations

import pytest

from tests.support.processes import Cluster, run_function


@pytest.mark.slow
@pytest.mark.exhaustive("legacy", covered_by="the same with Keras 3")
@pytest.mark.parametrize("keras", ["3", "legacy"])
def test_a_mean_loss_is_found_whatever_holds_the_rows(keras: str) -> None:
    cluster = Cluster(strategy="mirrored", devices=2, keras=keras)
    [task] = run_function("tests.support.rehearsal_functions:errors", cluster)
    assert len(task.values) == 6
    for batch, (scaled, local_mean, summed) in task.values.items():
        assert local_mean < 1e-5 < 0.5 < min(scaled, summed), batch
