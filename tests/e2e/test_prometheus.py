"""What Prometheus reads from Ray's own metrics endpoint while a run is running, and once it has ended."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from raydist.runtime.host.software import has_metrics_agent
from tests.conftest import WaitUntil
from tests.e2e.conftest import BIN
from tests.support.prometheus import Endpoint
from tests.support.ray_heads import RayHead, ray_head
from tests.support.slow_job import write_slow_job

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not has_metrics_agent(), reason="needs the extra prometheus, which ray[data] has not"),
]

_PORT = "import ray, sys; ray.init(address=sys.argv[1]); print(ray.nodes()[0]['MetricsExportPort'])"
# Ray collects every 10 s otherwise; it drops what is twice as old.
_INTERVAL_MS = "4000"


@pytest.fixture(scope="module")
def head() -> Iterator[RayHead]:
    interval = {"RAY_metrics_report_interval_ms": _INTERVAL_MS}
    with ray_head(num_cpus=4, RAY_raylet_start_wait_time_s="150", **interval) as found:
        yield RayHead(
            address=found.address, client_address=found.client_address, environ={**found.environ, **interval}
        )


@pytest.fixture(scope="module")
def endpoint(head: RayHead) -> Endpoint:
    command = [sys.executable, "-c", _PORT, head.address]
    answer = subprocess.run(command, env=dict(head.environ), capture_output=True, text=True, timeout=120)
    assert answer.returncode == 0, answer.stderr
    return Endpoint(int(answer.stdout))


def test_run_is_seen_while_it_goes_on_and_its_series_end_with_it(
    head: RayHead, endpoint: Endpoint, tmp_path: Path, wait_until: WaitUntil
) -> None:
    def start(*arguments: str) -> subprocess.Popen[bytes]:
        command = [str(BIN / "raydist"), *arguments]
        with (tmp_path / f"{arguments[0]}.txt").open("wb") as output:
            return subprocess.Popen(
                command, cwd=tmp_path, env=dict(head.environ), stdout=output, stderr=subprocess.STDOUT
            )

    submit = ("submit", write_slow_job(tmp_path), "--address", head.address, "--name", "r")
    submitted = start(*submit, "-p", "pause_s=0.4", "-p", "epochs=200")
    try:
        wanted = {
            ("ray_raydist_run_checkpoint_time_seconds",),
            ("ray_raydist_task_input_wait_ratio", "worker/1"),
            ("ray_raydist_task_steps_per_second", "worker/0"),
            ("ray_raydist_task_value", "worker/0", "loss"),
        }
        wait_until(lambda: wanted <= endpoint.scrape("r").keys(), timeout_s=300)
        seen = endpoint.scrape("r")
        assert seen["ray_raydist_run_state", "RUNNING"] == 1
        assert seen["ray_raydist_run_state", "SUCCEEDED"] == 0
        assert seen["ray_raydist_run_attempt",] == 0
        assert seen["ray_raydist_task_running", "worker/1"] == 1
        assert 0 < seen["ray_raydist_task_steps", "worker/1"] <= 2000
        assert 0 < seen["ray_raydist_task_steps_per_second", "worker/0"] < 3
        assert 0 <= seen["ray_raydist_task_input_wait_ratio", "worker/1"] <= 1
        assert 0 < seen["ray_raydist_task_value", "worker/0", "loss"] < 10
        assert start("stop", "r").wait(timeout=200) == 0, (tmp_path / "stop.txt").read_text()
        submitted.wait(timeout=200)
    finally:
        submitted.kill()
        submitted.wait()
    wait_until(lambda: endpoint.scrape("r") == {}, timeout_s=90)
