"""Models of every kind meet raydist in Keras's classes: made before it, loaded, cloned, pickled.

SciKeras and KerasTuner are in tests/libraries.
"""

from __future__ import annotations

import pytest

from tests.support.processes import Cluster, run_function


@pytest.mark.slow
@pytest.mark.parametrize("keras", ["3", "legacy"])
def test_models_of_every_kind_train_as_without_raydist(keras: str) -> None:
    """What is wrong is told by what was tried, in one process that begins without the patches."""
    cluster = Cluster(strategy="mirrored", devices=2, keras=keras)
    library = "keras" if keras == "3" else "tf_keras"
    options = {"library": library, "job_options": {"patch_keras": False}}
    [task] = run_function("tests.support.seam_functions:seam", cluster, timeout_s=480, **options)
    found = task.values["found"]
    assert len(found) >= 28
    assert {name: wrong for name, wrong in found.items() if wrong} == {}
