"""Models of every kind meet raydist in Keras's classes: made before it, loaded, cloned, pickled.

SciKeras and KerasTuner are in tests/libraries.
"""

from __future__ import annotations

import functools

import pytest

from tests.support.processes import Cluster, run_function

TRIES = (
    *("the registered name stays", "the saved class stays", "the signature of fit stays"),
    *("the signature of evaluate stays", "the signature of predict stays", "the signature of compile stays"),
    *("the signature of train_on_batch stays", "the signature of test_on_batch stays"),
    *("the signature of predict_on_batch stays", "a model made before", "a model made before in the scope"),
    *("Sequential", "a functional model", "a functional model of a subclass", "a subclass made before"),
    *("a mixin", "a fit of one's own by super()", "make_train_function by super()", "other methods"),
    *("a model that was saved", "a clone", "a pickle", "a deep copy", "what a model holds"),
    "a model that is let go",
    *("a fit inside of a fit", "a model inside of a model", "a fit that is set on Model"),
    "an argument that fit does not take",
)


@functools.cache
def found(keras: str) -> dict[str, str]:
    """Returns what is wrong by what was tried, in one process that begins without the patches."""
    cluster = Cluster(strategy="mirrored", devices=2, keras=keras)
    library = "keras" if keras == "3" else "tf_keras"
    options = {"library": library, "job_options": {"patch_keras": False}}
    [task] = run_function("tests.support.seam_functions:seam", cluster, timeout_s=480, **options)
    return task.values["found"]  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.parametrize("keras", ["3", "legacy"])
@pytest.mark.parametrize("name", TRIES)
def test_models_of_every_kind_train_as_without_raydist(name: str, keras: str) -> None:
    assert found(keras)[name] == ""


@pytest.mark.slow
def test_wrapper_of_scikit_learn_trains() -> None:
    pytest.importorskip("sklearn", reason="keras.wrappers needs scikit-learn")
    assert found("3")["scikit-learn's wrapper"] == ""


@pytest.mark.slow
@pytest.mark.parametrize("keras", ["3", "legacy"])
def test_nothing_else_was_tried(keras: str) -> None:
    assert set(found(keras)) - {"scikit-learn's wrapper"} == set(TRIES)
