"""What a model has besides its layers: what of it no checkpoint holds is named before training."""

from __future__ import annotations

import pytest

from tests.support.processes import Cluster, run_function


@pytest.mark.slow
@pytest.mark.exhaustive("legacy", covered_by="the same with Keras 3")
@pytest.mark.parametrize("keras", ["3", pytest.param("legacy", marks=pytest.mark.slow)])
def test_state_that_cannot_be_saved_is_named(keras: str) -> None:
    target = "tests.support.state_functions:state_that_cannot_be_saved"
    [task] = run_function(target, Cluster(keras=keras))
    notes = "\n".join(task.values["notes"])
    for piece in ("mutable lookup table", "tf.data iterators", "optimizer for_later"):
        assert piece in notes, notes
