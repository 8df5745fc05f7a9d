"""What ctx.train_steps finds out about a step besides what tests/tables/test_loop_steps.py shows."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.processes import Cluster, run_function, run_in_turn

pytestmark = pytest.mark.slow

FUNCTIONS = "tests.support.loop_functions"


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
    sums.add("best column")
    assert {name for name, is_additive in task.values["additive"].items() if is_additive} == sums


def test_gradient_of_a_custom_gradient_is_not_taken_for_one_that_was_clipped() -> None:
    [task] = run_function(f"{FUNCTIONS}:custom_gradients", Cluster(strategy="mirrored", devices=2))
    clipped = {kind: [one for one in notes if "clips" in one] for kind, notes in task.values["notes"].items()}
    assert (len(clipped["custom"]), len(clipped["clipped"])) == (0, 1)
