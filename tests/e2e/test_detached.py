"""submit --detach with real training: it outlives the shell and its controller, and can be found again."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.conftest import WaitUntil
from tests.e2e.conftest import Raydist, RunningRay, start_raydist, status_of

pytestmark = pytest.mark.slow

ATTACH = """
import json, sys
import raydist

handle = raydist.attach(sys.argv[1], storage=sys.argv[2])
result = handle.result(timeout=150)
told = {"result": result.as_dict(), "state": handle.status().state.value, "log": handle.logs(task="worker/1")}
print(json.dumps(told))
"""


SCRIPT = """
import json, sys
import raydist

table = list(range(1000))


def train(ctx):
    import tensorflow as tf

    ctx.report({"total": sum(table), "attempt": ctx.attempt}, step=1)


handle = raydist.submit(train, detach=True, name="scripted", address=sys.argv[1])
print(json.dumps({"name": handle.name, "state": handle.status().state.value}))
"""


def test_function_of_a_script_goes_on_without_it(running_ray: RunningRay, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    told = running_ray.told_by(tmp_path, "script.py", running_ray.address)
    assert told == {"name": "scripted", "state": "STARTING"}
    (tmp_path / "script.py").unlink()
    os.kill(status_of(tmp_path, "scripted")["driver"]["pid"], signal.SIGKILL)
    # Another process, which is not told where the run's Ray is.
    result = running_ray.told_by(tmp_path, "-c", ATTACH, "scripted", tmp_path / "raydist_runs")["result"]
    assert (result["state"], result["attempts"]) == ("SUCCEEDED", 2)
    assert result["metrics"] == {"total": 499500.0, "attempt": 1.0}


def test_what_the_cluster_cannot_give_is_told_before_the_shell_returns(
    raydist: Raydist, slow_job: str, tmp_path: Path
) -> None:
    ended = raydist("submit", slow_job, "--detach", "--json", "--workers", "99", "--name", "large")
    assert ended.code == 3
    assert ended.json["state"] == "FAILED"
    assert not (tmp_path / "raydist_runs" / "large").exists()


def test_second_ctrl_c_in_a_blocking_submit_stops_at_once(
    raydist: Raydist, running_ray: RunningRay, slow_job: str, tmp_path: Path, wait_until: WaitUntil
) -> None:
    process = start_raydist(
        running_ray, tmp_path, "submit", slow_job, "--name", "hasty", "-p", "epochs=500", "--json"
    )
    wait_until(lambda: status_of(tmp_path, "hasty")["steps"] >= 2, timeout_s=240)
    pids = [task["pid"] for task in status_of(tmp_path, "hasty")["tasks"]]
    process.send_signal(signal.SIGINT)
    wait_until(lambda: status_of(tmp_path, "hasty")["state"] != "RUNNING", timeout_s=15)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert json.loads(out)["state"] == "CANCELLED"
    assert "Traceback" not in err
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), timeout_s=15)
