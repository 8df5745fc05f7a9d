"""Which step and which variable of two runs differs first, by bits."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping

import numpy as np
import pytest

from raydist.errors import MistakeError
from raydist.runs.verification import (
    Comparison,
    Difference,
    Files,
    by_step,
    check_can_verify,
    compare,
    first_difference,
)
from raydist.storage.checkpoint_marker import ARRAYS_NAME, INDEX_NAME, Checkpoint

# Each of two virtual replicas has a mean of its own.
ARRAYS: Mapping[str, np.ndarray] = {
    "model/00000": np.array([[0.0, np.nan], [1.0, 2.0]], np.float32),
    "model/00001": np.array([0.5], np.float32),
    "optimizer/00000": np.array(7, np.int64),
    "optimizer/00001": np.zeros((0, 3), np.float32),
    "replicas/model/00001": np.array([[0.25], [0.75]], np.float32),
}
NAMES = {"model/00000": "dense/kernel", "model/00001": "norm/moving_mean"}


def files_of(arrays: Mapping[str, np.ndarray]) -> Files:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    index = [
        {
            "key": key,
            "name": NAMES.get(key.removeprefix("replicas/"), key),
            "shape": list(array.shape),
            "dtype": str(array.dtype),
        }
        for key, array in arrays.items()
    ]
    return {ARRAYS_NAME: buffer.getvalue(), INDEX_NAME: json.dumps(index).encode(), "state.json": b"{}"}


def test_equal_bits_have_no_difference_also_where_they_are_nan() -> None:
    other = dict(reversed([(key, array.copy()) for key, array in ARRAYS.items()]))
    assert first_difference(files_of(ARRAYS), files_of(ARRAYS), step=3) is None
    assert first_difference(files_of(ARRAYS), files_of(other), step=3) is None


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        pytest.param(
            {"model/00000": np.array([[-0.0, np.nan], [1.0, 2.0]], np.float32)},
            Difference(step=3, variable="dense/kernel", key="model/00000"),
            id="sign-of-zero",
        ),
        pytest.param(
            {"model/00001": np.array([0.75], np.float32), "replicas/model/00001": np.float32([[0.25], [1]])},
            Difference(step=3, variable="norm/moving_mean", key="model/00001", replicas=(1,)),
            id="replica",
        ),
        pytest.param(
            {"optimizer/00000": np.array(8, np.int64), "model/00001": np.nextafter(np.float32([0.5]), 1)},
            Difference(step=3, variable="norm/moving_mean", key="model/00001"),
            id="the-first-of-two",
        ),
        pytest.param(
            {"optimizer/00000": np.array(7, np.int32)},
            Difference(step=3, variable="optimizer/00000", key="optimizer/00000"),
            id="type",
        ),
        pytest.param(
            {"optimizer/00002": np.array(7)},
            Difference(step=3, variable="optimizer/00002", key="optimizer/00002"),
            id="only-in-one",
        ),
    ],
)
def test_first_variable_that_differs_is_named(
    changed: Mapping[str, np.ndarray], expected: Difference
) -> None:
    one, other = files_of(ARRAYS), files_of({**ARRAYS, **changed})
    assert first_difference(one, other, step=3) == expected
    assert first_difference(other, one, step=3) == expected


def checkpoint(step: int, *, attempt: int = 0) -> Checkpoint:
    return Checkpoint(step=step, attempt=attempt, uri=f"step-{step}-a{attempt}", files=(), info={})


def test_steps_are_compared_up_to_the_first_that_differs() -> None:
    steps = by_step([checkpoint(step) for step in (4, 3, 2, 1)], first=2, last=4)
    changed = files_of({**ARRAYS, "optimizer/00000": np.array(8, np.int64)})
    found = compare(
        steps,
        steps,
        read_one=lambda one: files_of(ARRAYS),
        read_other=lambda one: changed if one.step >= 3 else files_of(ARRAYS),
    )
    assert found.steps == (2,)
    assert str(found.difference) == "step 3, variable optimizer/00000 (optimizer/00000)"


def test_step_that_only_one_has_is_a_difference_unless_one_is_partial() -> None:
    one = by_step([checkpoint(1), checkpoint(2), checkpoint(3)], first=1, last=9)
    other = by_step([checkpoint(1), checkpoint(3)], first=1, last=9)

    def read(_: Checkpoint) -> Files:
        return files_of(ARRAYS)

    found = compare(one, other, read_one=read, read_other=read)
    assert found == Comparison(steps=(1,), difference=Difference(step=2))
    assert compare(one, other, read_one=read, read_other=read, is_partial=True).steps == (1, 3)


def test_the_highest_attempt_of_a_step_counts() -> None:
    found = by_step([checkpoint(2, attempt=1), checkpoint(2), checkpoint(1)], first=1, last=2)
    assert [(one.step, one.attempt) for one in found.values()] == [(1, 0), (2, 1)]


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"virtual_replicas": None}, "has no virtual replicas.* --virtual-replicas K"),
        ({"reduce_order": "any"}, "had reduce_order any, which this raydist no longer has"),
        ({"entry_point": {"file": "main.py", "function": None}}, "is a script"),
        ({"virtual_replicas": 2}, "workers is 3, but run small has 2 .* --verify 2 or fewer"),
    ],
    ids=["none", "any-order", "script", "too-many-workers"],
)
def test_run_that_cannot_be_verified_is_refused(changed: dict[str, object], sentence: str) -> None:
    spec = {"virtual_replicas": 4, "reduce_order": "fixed", "entry_point": {"function": "train"}}
    check_can_verify("small", spec, workers=3)
    with pytest.raises(MistakeError, match=sentence):
        check_can_verify("small", {**spec, **changed}, workers=3)
