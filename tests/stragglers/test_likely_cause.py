from __future__ import annotations

from typing import Any

import pytest

from raydist.outcome.result import StragglerCause
from raydist.stragglers.likely_cause import Peers, likely_cause
from raydist.stragglers.step_times import StepTimes

DATA, COMPUTE, HOST, UNKNOWN = (
    StragglerCause.DATA,
    StragglerCause.COMPUTE,
    StragglerCause.HOST,
    StragglerCause.UNKNOWN,
)
# A step of 1 s, of which the fast tasks wait 0.8 s for the slow one.
FAST: dict[str, Any] = {"step_s": 1.0, "collective_wait_s": 0.8, "input_wait_s": 0.0, "cpu_s": 0.2}
SLOW: dict[str, Any] = {**FAST, "collective_wait_s": 0.0, "run_delay_s": 0.0}


@pytest.mark.parametrize(
    ("slow", "cause"),
    [
        pytest.param({"input_wait_s": 0.8}, DATA, id="waits for its input"),
        pytest.param({"input_wait_s": 0.8, "cpu_s": 0.9}, DATA, id="waits for costly maps"),
        pytest.param({"cpu_s": 1.0}, COMPUTE, id="CPU time as much longer as its steps"),
        pytest.param({"cpu_s": 0.4, "run_delay_s": 0.5}, COMPUTE, id="more work, on a busy host"),
        pytest.param({"cpu_s": 0.7, "run_delay_s": 0.0}, COMPUTE, id="CPU time explains half"),
        pytest.param({"cpu_s": 0.22, "run_delay_s": 0.8}, HOST, id="no CPU although ready"),
        pytest.param(
            {"cpu_s": 0.2, "run_delay_s": 0.8, "input_wait_s": 0.5}, HOST, id="input slow for want of a CPU"
        ),
        pytest.param({"run_delay_s": None, "other_cpus": 0.6}, HOST, id="busy host, delay unknown"),
        pytest.param({"run_delay_s": None, "other_cpus": 0.4}, UNKNOWN, id="delay unknown, host not busy"),
        pytest.param({"input_wait_s": None, "run_delay_s": None}, UNKNOWN, id="nothing is measured"),
        pytest.param({}, UNKNOWN, id="sleeps"),
        pytest.param({"cpu_s": 0.35}, UNKNOWN, id="more CPU time, but not as much as its steps"),
        pytest.param({"input_wait_s": 0.3}, UNKNOWN, id="input explains less than half"),
    ],
)
def test_cause_is_what_explains_half_of_the_difference(slow: dict[str, Any], cause: StragglerCause) -> None:
    one = StepTimes(**{**SLOW, **slow})
    others = [StepTimes(**FAST, run_delay_s=0.0), StepTimes(**FAST, run_delay_s=0.05)]
    assert likely_cause(one, Peers([one, *others])).cause is cause


def test_reason_has_the_figures_and_what_to_do() -> None:
    waiting = StepTimes(**{**SLOW, "input_wait_s": 0.8})
    found = likely_cause(waiting, Peers([waiting, StepTimes(**FAST)]))
    assert found.reason == (
        "it waits for its input 800 ms of each step (median of the others 0 ms); balance the files or rows "
        "of the workers, cache what does not change, or make its maps cheaper"
    )
    delayed = StepTimes(**{**SLOW, "run_delay_s": None, "other_cpus": 0.62})
    found = likely_cause(delayed, Peers([delayed, StepTimes(**FAST)]))
    assert found.reason.startswith("other processes take 62% of its host's CPU time; see what else runs")
