"""ctx.fit(accumulate=K): one update of K batches is that of one device with K times the batch."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest

from tests.support import accumulation_functions
from tests.support.accumulation_functions import CASES, K
from tests.support.processes import Cluster, TaskProcess, run_function, run_in_turn

pytestmark = pytest.mark.slow

CLUSTERS = {
    "one device": {},
    "2 devices": {"strategy": "mirrored", "devices": 2},
    "2 workers": {"strategy": "multi_worker_mirrored", "workers": 2},
}
FUNCTIONS = "tests.support.accumulation_functions"


# A sparse gradient and a mean over valid entries; a loss scale; losses of the user's; a global order; parts
# of batches that do not say how large they are.
QUICK = ("masked", "half", "own_step", "from_raydist", "distributed")
OTHERS = tuple(case for case in CASES if case not in QUICK)


@functools.cache
def run(where: str, keras: str, cases: tuple[str, ...]) -> dict[str, list[TaskProcess]]:
    calls = accumulation_functions.calls(K, cases)
    if where == "one device":
        calls = {**calls, **accumulation_functions.calls(1, cases)}
    return run_in_turn(calls, Cluster(**CLUSTERS[where], keras=keras))


@pytest.mark.exhaustive(
    "2 devices", "legacy", "others", covered_by="[2 workers-3-quick], [one device-3-quick]"
)
@pytest.mark.parametrize(
    ("where", "keras", "cases"),
    [
        ("one device", "3", QUICK),
        ("2 workers", "3", QUICK),
        ("one device", "legacy", QUICK),
        ("2 devices", "legacy", QUICK),
        ("2 workers", "legacy", QUICK),
        ("2 devices", "3", QUICK),
        ("one device", "3", OTHERS),
        ("2 workers", "3", OTHERS),
        ("2 devices", "legacy", OTHERS),
    ],
    ids=lambda value: {QUICK: "quick", OTHERS: "others"}.get(value) if isinstance(value, tuple) else value,
)
def test_update_of_several_batches_is_that_of_a_larger_one(
    where: str, keras: str, cases: tuple[str, ...]
) -> None:
    tasks, expected = run(where, keras, cases), run("one device", keras, cases)
    for case in cases:
        [one] = expected[f"{case} 1"]
        for task in tasks[f"{case} {K}"]:
            # Halves are summed in another order.
            tolerance = 2e-3 if case == "half" else 1e-5
            for name in one.arrays:
                np.testing.assert_allclose(
                    task.arrays[name], one.arrays[name], atol=tolerance, rtol=1e-5, err_msg=f"{case} {name}"
                )
            for name in ("iterations", "step"):
                assert task.values[name] == one.values[name] > 0, (case, name)


def test_half_precision_case_skips_steps() -> None:
    """Otherwise the test above would not see a loss scale that is decided for each batch."""
    [task] = run("one device", "3", QUICK)[f"half {K}"]
    assert 0 < task.values["iterations"] < 6


def test_gradients_are_reduced_once_for_all_batches_of_an_update() -> None:
    counts = {case: run("2 workers", "3", QUICK)[f"{case} {K}"][0].values["reductions"] for case in QUICK}
    # The valid entries of a mask are one more number to add up, of all batches at once.
    assert counts == {**dict.fromkeys(QUICK, 1), "masked": 2}


@pytest.mark.exhaustive("legacy", covered_by="the same with Keras 3")
@pytest.mark.parametrize(("where", "keras"), [("2 workers", "3"), ("2 devices", "legacy")])
def test_resumed_run_takes_up_each_batch_once(tmp_path: Path, where: str, keras: str) -> None:
    cluster, target = Cluster(**CLUSTERS[where], keras=keras), f"{FUNCTIONS}:resumed"
    options = {"storage": tmp_path, "job_options": {"checkpoint_every": "2"}}
    run_function(target, cluster, stop_after=5, **options)
    if keras == "3":
        [task, *_] = run_function(f"{FUNCTIONS}:resumed_with_other_size", cluster, attempt=1, **options)
        assert f"is inside an epoch that had {K}" in task.values["error"]
    for task in run_function(target, cluster, attempt=2, stop_after=None, **options):
        # The newest checkpoint is from after the first of three updates of the second epoch.
        assert (task.values["restored"], task.values["num_steps"]) == (4, 5)
        np.testing.assert_allclose(task.arrays["weights"], task.arrays["undisturbed"], atol=1e-5, rtol=0)
        np.testing.assert_allclose(task.arrays["loss"], task.arrays["undisturbed loss"], atol=1e-5, rtol=0)


def test_train_step_whose_batches_cannot_make_one_update_is_refused(keras: str) -> None:
    [task] = run_function(f"{FUNCTIONS}:refused", Cluster(keras=keras))
    expected = {
        "updates twice": "updates weights 2 times in a step",
        "clips": "clips or rescales the gradients of each batch by itself",
        "assigns": "assigns to ",
        "scales": "are scaled for several replicas, or could not be checked",
        "none": "accumulate=0; give a whole number from 1 on",
        "half": "accumulate=1.5; give a whole number from 1 on",
    }
    assert task.values["is plain"] == ""
    for kind, sentence in expected.items():
        assert sentence in task.values[kind], kind
        if kind not in ("none", "half"):
            assert "train_step" in task.values[kind], kind
            assert "accumulation_functions.py" in task.values[kind], kind
