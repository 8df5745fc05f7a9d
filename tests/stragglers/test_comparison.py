from __future__ import annotations

import pytest

from raydist.stragglers.step_times import find_stragglers


@pytest.mark.parametrize(
    ("own_s", "slow"),
    [
        pytest.param([1.0, 1.0, 1.51], {2: 1.51}, id="above the limit"),
        pytest.param([1.0, 1.0, 1.5], {}, id="at the limit"),
        pytest.param([1.0, 1.6], {1: 1.6}, id="of two tasks the median is the faster one"),
        pytest.param([1.0, 1.0, 3.0, 3.0], {2: 3.0, 3: 3.0}, id="half of the tasks"),
        pytest.param([1.0, 3.0, 3.0], {}, id="most tasks"),
        pytest.param([9.0], {}, id="a single task"),
        pytest.param([0.0, 0.0, 1.0], {}, id="others that take no time"),
        pytest.param([], {}, id="no task"),
    ],
)
def test_straggler_takes_more_than_one_and_a_half_times_the_median(
    own_s: list[float], slow: dict[int, float]
) -> None:
    tasks = dict(enumerate(own_s))
    assert find_stragglers(tasks, tasks) == slow


@pytest.mark.parametrize(("step_s", "slow"), [(5.0, {1: 2.0}), (11.0, {})])
def test_straggler_costs_at_least_a_tenth_of_each_step(step_s: float, slow: dict[int, float]) -> None:
    """Of a step of 11 s that is nearly all exchange, 1 s is not worth a word."""
    assert find_stragglers({0: 1.0, 1: 2.0}, {0: step_s, 1: step_s}) == slow
