"""The gauges of a run on the endpoint of a real Ray."""

from __future__ import annotations

import pytest

from raydist.controller.events import GroupUpdated
from raydist.controller.gauges import RunGauges
from raydist.controller.machine import RunMachine
from raydist.controller.task_group import GroupUpdate, SystemClock
from raydist.outcome.status import TaskPace
from raydist.runtime.cluster.ray_gauges import RayGauges
from raydist.runtime.host.software import has_metrics_agent
from tests.conftest import WaitUntil
from tests.support.fakes import make_plan, make_status
from tests.support.prometheus import Endpoint

pytestmark = [
    pytest.mark.slow,  # Ray collects every 10 s
    pytest.mark.skipif(not has_metrics_agent(), reason="needs raydist[prometheus]"),
]


def test_gauges_of_a_driver_can_be_scraped_and_go_once_they_are_not_set_any_more(
    ray_cluster: object, wait_until: WaitUntil
) -> None:
    import ray

    endpoint = Endpoint(ray.nodes()[0]["MetricsExportPort"])
    machine = RunMachine(make_plan())
    gauges = RunGauges(machine, RayGauges(), clock=SystemClock())
    values = {"loss": 0.25, "accuracy": float("nan"), 'odd "name"\n': 1.0}
    # Ten seconds between them, half of which it waited for data.
    before = TaskPace(at_s=5.0, steps=1, input_wait_s=0.0)
    for pace in (before, TaskPace(at_s=15.0, steps=11, input_wait_s=5.0)):
        status = make_status("worker/0", step=7, steps_per_s=2.5, pace=pace, metrics=values)
        machine.handle(GroupUpdated(GroupUpdate(statuses=(status,), all_placed=True)))

    def is_seen() -> bool:
        gauges.publish()
        return ("ray_raydist_task_value", "worker/0", "loss") in endpoint.scrape("r")

    wait_until(is_seen, timeout_s=240)
    seen = endpoint.scrape("r")
    assert seen["ray_raydist_run_state", "STARTING"] == 1
    assert seen["ray_raydist_run_state", "RUNNING"] == 0
    assert seen["ray_raydist_task_steps", "worker/0"] == 7
    assert seen["ray_raydist_task_steps_per_second", "worker/0"] == 2.5
    assert seen["ray_raydist_task_input_wait_ratio", "worker/0"] == pytest.approx(0.5)
    assert seen["ray_raydist_task_value", "worker/0", "loss"] == 0.25
    assert seen["ray_raydist_task_nonfinite_values", "worker/0"] == 1
    assert ("ray_raydist_task_value", "worker/0", "accuracy") not in seen
    wait_until(lambda: endpoint.scrape("r") == {}, timeout_s=120)
