"""What the check of a ctx.train_steps loop finds out about its step, what it leaves alone, and what is shown.

tests/tables/test_loop_steps.py has many more steps, on more clusters.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from tests.support.processes import Cluster, TaskProcess, run_function, run_in_turn

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # one run has the steps of all tests

FUNCTIONS = "tests.support.loop_functions"
KINDS = (
    *("classes", "partial", "divided outside", "multiplied outside", "masked mean", "masked sum", "branch"),
    *("shown", "kinds shown", "text shown", "calls Python", "fails in Python", "assigns", "warm-up"),
    "late part",
    *("counts", "assigns a sum", "by hand, sum", "mixed_bfloat16", "divided by self", "fit, divided outside"),
)
ON_ONE_DEVICE = ("branch", "kinds shown", "shown")
UNKNOWN = "gives the gradients of one device could not be shown"


@functools.cache
def run(strategy: str) -> TaskProcess:
    cluster = Cluster(strategy=strategy, devices=2 if strategy == "mirrored" else None)
    kinds = KINDS if strategy == "mirrored" else ON_ONE_DEVICE
    [task] = run_function(f"{FUNCTIONS}:loops", cluster, kinds=kinds, timeout_s=600)
    return task


@pytest.fixture
def one_device() -> TaskProcess:
    return run("one_device")


@pytest.fixture
def replicas() -> TaskProcess:
    return run("mirrored")


def check_equal(replicas: TaskProcess, kind: str, *, atol: float = 1e-7) -> None:
    own, expected = (replicas.arrays[f"{kind}/{name}"] for name in ("weights", "right"))
    assert len(expected) > 0
    np.testing.assert_allclose(own, expected, atol=atol, rtol=0)


def notes_of(task: TaskProcess, kind: str, piece: str) -> list[str]:
    return [note for note in task.values[f"{kind}/notes"] if piece in note]


@pytest.mark.parametrize("kind", ["classes", "partial", "masked sum"])
def test_number_that_is_no_divisor_leaves_a_mean_what_it_is(replicas: TaskProcess, kind: str) -> None:
    check_equal(replicas, kind)
    assert notes_of(replicas, kind, UNKNOWN) == []


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("divided outside", "number"),
        ("multiplied outside", "factor"),
        ("divided by self", "self.number"),
        ("fit, divided outside", "number"),
    ],
)
def test_division_by_a_number_from_outside_is_told_by_its_name(
    replicas: TaskProcess, kind: str, name: str
) -> None:
    check_equal(replicas, kind)
    [note] = notes_of(replicas, kind, UNKNOWN)
    assert f"because it divides its losses by {name}," in note


def test_mean_over_a_mask_is_told_although_the_first_batch_has_no_padding(replicas: TaskProcess) -> None:
    [note] = notes_of(replicas, "masked mean", UNKNOWN)
    assert note.startswith("whether ")
    assert "such as the sum of a mask" in note


def test_part_of_a_loss_that_has_no_weight_in_the_first_step_is_told(replicas: TaskProcess) -> None:
    [note] = notes_of(replicas, "late part", UNKNOWN)
    assert "because its losses depend on how a batch is divided" in note


def test_python_condition_on_a_tensor_works(replicas: TaskProcess, one_device: TaskProcess) -> None:
    assert "branch/error" not in one_device.values
    assert notes_of(replicas, "branch", UNKNOWN) != []


def test_sums_and_means_are_shown_as_on_one_device(replicas: TaskProcess, one_device: TaskProcess) -> None:
    shown, expected = (one.values["shown/shown"] for one in (replicas, one_device))
    for name in ("loss", "total", "average", "rate"):
        assert shown[name] == pytest.approx(expected[name]), name


def test_what_is_neither_a_sum_nor_a_mean_is_told_by_its_name(replicas: TaskProcess) -> None:
    [note] = notes_of(replicas, "shown", "neither the mean nor the sum")
    assert "returns biggest, norm, which" in note
    [note] = notes_of(replicas, "shown", "returned 0 as padded for the first batch")


def test_bools_whole_numbers_and_nested_dicts_are_shown(
    replicas: TaskProcess, one_device: TaskProcess
) -> None:
    expected = {"flag": 1.0, "yes": 1.0, "count": 12.0, "nested/two/three": 3.0}
    for task in (replicas, one_device):
        shown = task.values["kinds shown/shown"]
        assert {name: shown[name] for name in expected} == expected


def test_returned_text_is_refused_by_its_name(replicas: TaskProcess) -> None:
    error = replicas.values["text shown/error"]
    assert error.startswith("UnsupportedError: step_fn Bench.step.<locals>.step (")
    assert "returned a tensor of type string as 'text'" in error


def test_python_functions_of_a_step_are_not_called_before_it_runs(replicas: TaskProcess) -> None:
    assert replicas.values["calls Python/calls"] == 2 * 3  # of replicas, and of steps
    [note] = notes_of(replicas, "calls Python", UNKNOWN)
    assert "because it calls Python" in note


def test_error_in_a_python_function_ends_the_loop(replicas: TaskProcess) -> None:
    assert "not these numbers" in replicas.values["fails in Python/error"]


def test_assignment_of_each_replicas_own_value_is_told(replicas: TaskProcess) -> None:
    assert len(notes_of(replicas, "assigns", "assigns to center")) == 1


def test_variable_that_counts_on_each_replica_does_not_end_the_check(replicas: TaskProcess) -> None:
    check_equal(replicas, "counts")
    assert notes_of(replicas, "counts", UNKNOWN) == []


def test_rounding_in_bfloat16_is_no_difference(replicas: TaskProcess) -> None:
    check_equal(replicas, "mixed_bfloat16", atol=2e-2)
    assert notes_of(replicas, "mixed_bfloat16", UNKNOWN) == []


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("assigns a sum", "because they depend on center"),
        ("by hand, sum", "because it gives them to no optimizer"),
    ],
)
def test_variables_that_are_summed_over_replicas_are_told(
    replicas: TaskProcess, kind: str, cause: str
) -> None:
    [note] = notes_of(replicas, kind, UNKNOWN)
    assert cause in note


def test_first_loss_of_zero_is_told(replicas: TaskProcess) -> None:
    [note] = notes_of(replicas, "warm-up", UNKNOWN)
    assert "its first gradients are zero" in note


def test_workers_with_unlike_loops_end_with_a_sentence() -> None:
    kinds = {
        "num_steps": "num_steps of train_steps differs between the workers: worker/0 4, worker/1 5",
        "steps_per_call": "steps_per_call of train_steps differs between the workers: worker/0 2, worker/1 3",
        "names": "step_fn returns error, loss on worker/1, and loss on worker/0",
    }
    calls: Any = {kind: (f"{FUNCTIONS}:unlike_workers", {"kind": kind}) for kind in kinds}
    for kind, is_eager in (("traced", False), ("eager", True)):
        kinds[kind] = "train_step returns own, other on worker/1, and own on worker/0; return the same names"
        calls[kind] = (f"{FUNCTIONS}:unlike_train_steps", {"is_eager": is_eager})
    found = run_in_turn(calls, Cluster(strategy="multi_worker_mirrored", workers=2))
    for kind, sentence in kinds.items():
        for task in found[kind]:
            assert sentence in task.values["error"]


def test_losses_that_divide_by_values_of_all_examples_are_told_from_sums_by_their_graphs() -> None:
    [task] = run_function(f"{FUNCTIONS}:additive_losses", Cluster())
    sums = {"mean", "sum", "regularized", "masked sum", "sum of a boolean mask", "quotient of each", "loop"}
    assert {name for name, is_additive in task.values["additive"].items() if is_additive} == sums


def test_gradient_of_a_custom_gradient_is_not_taken_for_one_that_was_clipped() -> None:
    [task] = run_function(f"{FUNCTIONS}:custom_gradients", Cluster(strategy="mirrored", devices=2))
    clipped = {kind: [one for one in notes if "clips" in one] for kind, notes in task.values["notes"].items()}
    assert (len(clipped["custom"]), len(clipped["clipped"])) == (0, 1)
