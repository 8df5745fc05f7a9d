"""The commands about kept runs, on what real runs wrote: one that continues and ends, and one that fails."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import WaitUntil
from tests.e2e.conftest import Ended, status_of
from tests.support.slow_job import write_slow_job


@pytest.mark.slow
def test_run_is_followed_from_its_start_to_its_deletion(
    raydist: Callable[..., Ended], tmp_path: Path, wait_until: WaitUntil
) -> None:
    job = write_slow_job(tmp_path)
    told = tmp_path / "told"
    on_end = ("--on-end", f'echo "$RAYDIST_RUN $RAYDIST_STATE" >> {shlex.quote(str(told))}; exit 3')
    detached = raydist("submit", job, "--name", "slow-1", "--detach", "-p", "pause_s=0.3", *on_end)
    assert detached.code == 0, detached.err

    wait_until(lambda: status_of(tmp_path, "slow-1")["steps"] >= 8, timeout_s=240)
    live = raydist("status", "slow", "--json").json
    assert (live["state"], live["is_driven"], live["job"]) == ("RUNNING", True, "slow.py:train")
    assert live["progress"]["num_steps"] == 40
    assert 0 < live["progress"]["eta_s"] < 60
    assert live["progress"]["steps_per_s"] > 0
    assert [task["lag_steps"] for task in live["tasks"]] != [None, None]
    assert raydist("delete", "slow-1", "--yes").code == 2

    followed = raydist("logs", "@latest", "-f")
    assert followed.code == 0
    assert "[worker/0] Epoch 1/4" in followed.out
    assert "I0000 00:00" not in followed.out
    assert "I0000 00:00" in raydist("logs", "slow-1", "--all").out
    assert raydist("wait", "slow-1").out == "run slow-1: SUCCEEDED after 40 steps\n"

    failed = raydist("submit", job, "--name", "slow-2", "-p", "pause_s=0", "-p", "raise_at=2", *on_end)
    assert failed.code == 1
    assert "on_end ended with exit code 3" in failed.out
    assert told.read_text().splitlines() == ["slow-1 SUCCEEDED", "slow-2 FAILED"]
    for name, state in (("slow-1", "SUCCEEDED"), ("slow-2", "FAILED")):
        record = status_of(tmp_path, name)
        assert (record["state"], record["notes"][-1]) == (state, "on_end ended with exit code 3")
    assert raydist("wait", "slow-2").code == 1

    listed = raydist("list", "--json").json["runs"]
    assert [(run["run"], run["state"]) for run in listed] == [("slow-2", "FAILED"), ("slow-1", "SUCCEEDED")]
    assert listed[1]["duration_s"] > 10
    # A loss of the chief's reports, whose best one is not worse than the last.
    best, last = listed[1]["best"], raydist("status", "slow-1", "--json").json["metrics"]
    assert best["name"] == "loss"
    assert "loss" not in last or best["value"] <= last["loss"]

    ends = [line["at_s"] for line in raydist("status", "slow-2", "--json").json["restarts"]]
    assert ends == sorted(ends)
    differences = raydist("diff", "slow-1", "slow-2", "--json").json["differences"]
    assert {"section": "params", "name": "raise_at", "left": -1, "right": 2} in differences
    described = raydist("status", "slow-1", "--all", "--json").json
    assert described["stored"]["export"]["num_files"] > 1
    assert described["stored"]["code"]["num_files"] == 1
    assert described["versions"]["tensorflow"].startswith("2.")
    [hosts] = described["environment"]["hosts"]
    assert set(hosts["hosts"]) == {task["host"] for task in described["tasks"]}
    assert hosts["machine"]["num_cpus"] == os.cpu_count()
    assert raydist("download", "slow-1", "export", "model").code == 0
    assert (tmp_path / "model/model.keras").stat().st_size > 1000
    assert raydist("download", "slow-1", "checkpoint", "checkpoint").code == 0
    assert (tmp_path / "checkpoint/state.json").exists()

    again = raydist("reproduce", "slow-2", "--run", "--name", "slow-3")
    assert again.code == 1, again.err
    assert (tmp_path / "slow-2-code" / "slow.py").exists()
    assert described["code"]["digest"] == status_of(tmp_path, "slow-3")["code"]["digest"]
    differing = raydist("diff", "slow-2", "slow-3", "--json").json["differences"]
    assert {one["section"] for one in differing} <= {"job", "options", "results", "metrics", "best"}
    assert [one["name"] for one in differing if one["section"] == "options"] == ["on_end"]  # it is not kept

    deleted = raydist("delete", "slow-1", "slow-2", "slow-3", "--yes")
    assert deleted.code == 0, deleted.err
    assert raydist("list").out == f"no runs in {tmp_path / 'raydist_runs'}\n"
