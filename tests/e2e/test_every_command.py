"""Every command on runs that succeed, fail and continue: one of each kind, which all tests here look at."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from raydist.cli import main
from raydist.outcome.status import Scope
from raydist.storage.run_storage import open_run
from tests.conftest import WaitUntil
from tests.e2e.conftest import Ended, RunningRay, start_raydist, status_of
from tests.support.metric_rows import read_rows
from tests.support.processes import PATIENCE
from tests.support.profiles import check_profile
from tests.support.slow_job import write_slow_job

pytestmark = pytest.mark.slow

LIVE, FINISHED, FAILED = "live", "finished", "failed"

# Commands that name no run that is kept, and those that continue until they are told to stop.
WITHOUT_RUN = {"submit", "search", "plan", "compare", "list", "doctor", "up", "down", "guide"}
SERVERS = {"ui", "tensorboard"}
# What each command answers for the live run: an exit code, and a piece of what it prints.
OF_THE_LIVE_RUN: Sequence[tuple[Sequence[str], int, str]] = (
    (["status", LIVE], 0, LIVE),
    (["status", LIVE, "--all"], 0, "options"),
    (["diff", FINISHED, LIVE], 0, FINISHED),
    (["metrics", LIVE], 0, "accuracy"),
    (["metrics", LIVE, "--format", "csv"], 0, "accuracy"),
    (["status", LIVE, "--checkpoints"], 0, "committed"),
    (["logs", LIVE], 0, "[worker/0]"),
    (["logs", LIVE, "--task", "worker/1", "--tail", "2"], 0, "\n"),
    (["download", LIVE, "page", "page.html"], 0, "page.html"),
    (["download", LIVE, "checkpoint", "copy"], 0, "checkpoint of step"),
    (["reproduce", LIVE], 0, "raydist submit"),
    (["reproduce", LIVE, "--verify", "1"], 2, "--virtual-replicas"),  # tests/e2e/test_verify.py
    (["export", LIVE, "--to", "saved_model"], 2, "has no exported model"),  # tests/e2e/test_inference.py
    (["predict", LIVE, "nowhere", "-o", "predicted"], 2, "has no exported model"),
    (["wait", LIVE, "--timeout", "1"], 3, "did not end within 1 s"),
    (["stacks", LIVE], 0, "in train"),
    (["chaos", LIVE, "--stop", "worker/1", "--for", "0.2"], 0, "worker/1"),
    (["resume", LIVE], 2, "is still running"),
    (["delete", LIVE, "--yes"], 2, "is still running"),
)


def test_every_command_is_asked() -> None:
    asked = {arguments[0] for arguments, _, _ in OF_THE_LIVE_RUN}
    assert asked | WITHOUT_RUN | SERVERS | {"profile", "stop"} == set(main.COMMANDS)
    assert not asked & (WITHOUT_RUN | SERVERS)


@dataclass(frozen=True)
class Place:
    """A folder with three runs.

    Attributes:
      failed: What the command of the run that failed has printed.
      told: What the runs' --on-end has written.
    """

    ray: RunningRay
    folder: Path
    failed: Ended
    told: Path

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return start_raydist(self.ray, self.folder, *arguments)

    def run(self, *arguments: str, code: int = 0) -> Ended:
        return ended(self.start(*arguments), code=code)

    def status(self, run: str) -> dict[str, Any]:
        return status_of(self.folder, run)


def ended(process: subprocess.Popen[str], *, code: int = 0) -> Ended:
    try:
        out, err = process.communicate(timeout=180 * PATIENCE)
    finally:
        process.kill()
    assert process.returncode == code, err
    return Ended(code=code, out=out, err=err)


@pytest.fixture(scope="module")
def place(running_ray: RunningRay, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("commands")
    job, told = write_slow_job(folder), folder / "told"
    on_end = ("--on-end", f'echo "$RAYDIST_RUN $RAYDIST_STATE" >> {shlex.quote(str(told))}; exit 3')

    def submit(run: str, *options: str, code: int = 0) -> Ended:
        return ended(start_raydist(running_ray, folder, "submit", job, "--name", run, *options), code=code)

    submit(FINISHED, "-p", "pause_s=0", *on_end)
    failing = ("-p", "pause_s=0", "-p", "raise_at=14", "--max-failures", "0", *on_end)
    failed = submit(FAILED, *failing, "--json", code=1)
    submit(LIVE, "--detach", "-p", "pause_s=0.3", "-p", "epochs=500")
    place = Place(running_ray, folder, failed, told)
    try:
        yield place
    finally:
        if place.status(LIVE)["state"] == "RUNNING":
            ended(place.start("stop", LIVE))


@pytest.fixture
def live(place: Place, wait_until: WaitUntil) -> Place:
    """The place, once the live run has a checkpoint and metrics."""
    wait_until(lambda: list(place.folder.glob("raydist_runs/live/checkpoints/*/_COMMITTED")), timeout_s=240)
    return place


@pytest.fixture
def ask(
    place: Place, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Ended]:
    """Runs a command that needs no Ray in this process."""
    monkeypatch.chdir(place.folder)

    def ask(*arguments: str) -> Ended:
        capfd.readouterr()
        code = main.run(arguments)
        out, err = capfd.readouterr()
        return Ended(code=code, out=out, err=err)

    return ask


@pytest.mark.parametrize(
    ("arguments", "code", "piece"),
    [pytest.param(*case, id="-".join(word for word in case[0] if word != LIVE)) for case in OF_THE_LIVE_RUN],
)
def test_command_on_a_live_run(
    live: Place, ask: Callable[..., Ended], arguments: Sequence[str], code: int, piece: str
) -> None:
    found = ask(*arguments)
    assert found.code == code, found.err
    assert piece in found.out + found.err
    assert "Traceback" not in found.out + found.err


def test_status_of_a_live_run_has_its_progress(live: Place, ask: Callable[..., Ended]) -> None:
    found = ask("status", "liv", "--json").json
    assert (found["state"], found["is_driven"], found["job"]) == ("RUNNING", True, "slow.py:train")
    assert found["progress"]["num_steps"] == 5000
    assert found["progress"]["eta_s"] > 0
    assert found["progress"]["steps_per_s"] > 0
    assert [task["lag_steps"] for task in found["tasks"]] != [None, None]


def test_stacks_show_where_each_task_is(
    live: Place, ask: Callable[..., Ended], wait_until: WaitUntil
) -> None:
    stacks = ask("stacks", LIVE, "--json").json["stacks"]
    assert sorted(stacks) == ["worker/0", "worker/1"]
    assert all("slow.py" in text and "in train" in text for text in stacks.values())
    one = ask("stacks", "@latest", "--task", "worker/1")
    assert one.out.startswith("== worker/1\n")
    assert "worker/0" not in one.out
    for command in ("stacks", "profile"):
        unknown = ask(command, LIVE, "--task", "worker/7")
        assert unknown.code == 2
        assert "has no task worker/7; it has worker/0, worker/1" in unknown.err


def test_profile_is_kept(live: Place, ask: Callable[..., Ended], wait_until: WaitUntil) -> None:
    storage = open_run(str(live.folder / "raydist_runs"), run=LIVE)
    chief = ask("profile", LIVE, "--steps", "5", "--json").json
    assert (chief["run"], chief["task"], chief["steps"]) == (LIVE, "worker/0", 5)
    check_profile(storage, "worker/0", first_step=chief["first_step"], steps=5)
    other = ask("profile", "@latest", "--task", "worker/1", "--steps", "3")
    assert other.out.startswith("worker/1: 3 steps (")
    assert f"The profile is in {storage.uri()}/live/tensorboard/worker-1/" in other.out
    check_profile(storage, "worker/1", steps=3)
    late = ask("profile", LIVE, "--steps", "1000", "--timeout", "1s")
    assert (late.code, "did not complete 1000 steps within 1 s" in late.err) == (3, True)
    assert not storage.exists(storage.profile_mail)
    steps = live.status(LIVE)["steps"]
    wait_until(lambda: live.status(LIVE)["steps"] > steps, timeout_s=30)
    assert live.status(LIVE)["attempts"] == 1


def test_exception_in_the_train_function_is_shown_once(place: Place, ask: Callable[..., Ended]) -> None:
    failed = place.failed
    error = failed.json["error"]
    assert (error["type"], error["task"], error["attempt"]) == ("ValueError", "worker/1", 0)
    assert "the user's own mistake" in error["message"]
    assert failed.err.count("Traceback (most recent call last)") == 1
    assert failed.err.count('raise ValueError("the user\'s own mistake")') == 1
    assert Path(error["log"]).is_dir()
    assert "the user's own mistake" in ask("logs", FAILED, "--task", "worker/1").out


def test_what_runs_that_have_ended_tell(place: Place, ask: Callable[..., Ended]) -> None:
    assert place.told.read_text().splitlines() == ["finished SUCCEEDED", "failed FAILED"]
    for run, state, code in ((FINISHED, "SUCCEEDED", 0), (FAILED, "FAILED", 1)):
        record = place.status(run)
        assert (record["state"], record["notes"][-1]) == (state, "on_end ended with exit code 3")
        assert ask("wait", run).code == code
        assert f"has ended: {state}" in ask("stacks", run).err
    assert "I0000 00:00" not in ask("logs", FINISHED).out
    assert "I0000 00:00" in ask("logs", FINISHED, "--all").out
    folder = place.folder / "raydist_runs" / FINISHED
    kept = ["checkpoints", "claims", "code", "events", "export", "logs", "metrics", "run.json", "tensorboard"]
    assert sorted(path.name for path in folder.iterdir()) == [*kept, "token"]
    assert sorted(path.name for path in (folder / "logs" / "0").iterdir()) == ["worker-0", "worker-1"]
    assert "step-40-a0" in [path.name for path in (folder / "checkpoints").iterdir()]

    listed = {run["run"]: run for run in ask("list", "--json").json["runs"]}
    states = {run: one["state"] for run, one in listed.items()}
    assert states == {LIVE: "RUNNING", FAILED: "FAILED", FINISHED: "SUCCEEDED"}
    # A loss of the chief's reports, whose best one is not worse than the last.
    best, last = listed[FINISHED]["best"], ask("status", FINISHED, "--json").json["metrics"]
    assert best["name"] == "loss"
    assert "loss" not in last or best["value"] <= last["loss"]
    ends = [line["at_s"] for line in ask("status", FAILED, "--json").json["restarts"]]
    assert ends == sorted(ends)
    differences = ask("diff", FINISHED, FAILED, "--json").json["differences"]
    assert {"section": "params", "name": "raise_at", "left": -1, "right": 14} in differences
    described = ask("status", FINISHED, "--all", "--json").json
    assert described["stored"]["export"]["num_files"] > 1
    assert described["stored"]["code"]["num_files"] == 1
    assert described["versions"]["tensorflow"].startswith("2.")
    [hosts] = described["environment"]["hosts"]
    assert set(hosts["hosts"]) == {task["host"] for task in described["tasks"]}
    assert hosts["machine"]["num_cpus"] == os.cpu_count()
    assert ask("download", FINISHED, "export", "model").code == 0
    assert (place.folder / "model/model.keras").stat().st_size > 1000
    assert ask("download", FINISHED, "checkpoint", "checkpoint").code == 0
    assert (place.folder / "checkpoint/state.json").exists()


def served(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Returns what a server prints with --json as it begins."""
    answer: dict[str, Any] = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")
    assert answer["url"].startswith("http://127.0.0.1:")
    return answer


def end_by_ctrl_c(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)
    assert "Traceback" not in ended(process, code=130).err


def test_page_is_served(place: Place) -> None:
    process = place.start("ui", "--json")
    served(process)
    end_by_ctrl_c(process)


def test_tensorboard_shows_a_run(
    place: Place, tmp_path: Path, wait_until: WaitUntil, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {**place.ray.environ, "TMPDIR": str(tmp_path)}
    ray = RunningRay(address=place.ray.address, environ=environ, temp_dir=place.ray.temp_dir)
    process = start_raydist(ray, place.folder, "tensorboard", "finish", "--json")
    try:
        answer = served(process)
        assert answer["runs"] == [FINISHED]

        def get(path: str, body: Any = None) -> Any:
            data, headers = body and json.dumps(body).encode(), {"Content-Type": "application/json"}
            request = urllib.request.Request(f"{answer['url']}/data/{path}", data=data, headers=headers)
            with urllib.request.urlopen(request, timeout=30) as response:
                return json.loads(response.read())

        train, validation = f"{FINISHED}/chief/train", f"{FINISHED}/chief/validation"
        wait_until(lambda: train in get("plugin/scalars/tags"), timeout_s=60)
        tags = get("plugin/scalars/tags")
        assert {"epoch_loss", "epoch_accuracy", "norm"} <= tags[train].keys()
        assert validation not in tags  # the job has no validation data
        points = get(f"plugin/scalars/scalars?run={train}&tag=epoch_loss")
        assert [step for _, step, _ in points] == [10, 20, 30, 40]
        rows = read_rows(open_run(str(place.folder / "raydist_runs"), run=FINISHED))
        losses = [row.value for row in rows if row.name == "loss" and row.scope is Scope.GLOBAL]
        assert points[-1][2] == pytest.approx(losses[-1], rel=1e-6)
        asked = {"experimentName": "", "colParams": [], "allowedStatuses": ["STATUS_SUCCESS"]}
        found = get("plugin/hparams/session_groups", {**asked, "startIndex": 0, "sliceSize": 10})
        [group] = found["sessionGroups"]
        assert (group["name"], group["hparams"]["epochs"]) == (FINISHED, 4.0)
    finally:
        end_by_ctrl_c(process)
    assert [path.name for path in tmp_path.iterdir()] in ([], [".tensorboard-info"])


def test_live_run_is_followed_and_stopped_and_leaves_nothing(live: Place, wait_until: WaitUntil) -> None:
    before = live.status(LIVE)
    pids = [before["driver"]["pid"], *(task["pid"] for task in before["tasks"])]
    following = live.start("logs", LIVE, "-f")
    stopped = live.run("stop", LIVE, "--json").json
    assert stopped["state"] == "CANCELLED"
    assert "[worker/0] Epoch 1/500" in ended(following).out
    newest = live.run("status", "--checkpoints", LIVE, "--json").json["checkpoints"][0]
    assert stopped["checkpoint"] == newest["uri"]
    assert stopped["steps"] >= newest["step"]
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), timeout_s=15)
    assert "has ended: CANCELLED" in live.run("profile", LIVE, code=2).err


def test_failed_run_is_repeated_and_resumed_and_all_are_deleted(
    place: Place, ask: Callable[..., Ended]
) -> None:
    place.run("reproduce", FAILED, "--run", "--name", "again", code=1)
    assert (place.folder / f"{FAILED}-code" / "slow.py").exists()
    assert place.status(FAILED)["code"]["digest"] == place.status("again")["code"]["digest"]
    differing = ask("diff", FAILED, "again", "--json").json["differences"]
    assert {one["section"] for one in differing} <= {"job", "options", "results", "metrics", "best"}
    assert [one["name"] for one in differing if one["section"] == "options"] == ["on_end"]  # it is not kept

    place.run("resume", FAILED, "-p", "raise_at=-1")
    assert place.status(FAILED)["steps"] == 40
    place.run("delete", LIVE, FAILED, FINISHED, "again", "--yes")
    assert ask("list").out == f"no runs in {place.folder / 'raydist_runs'}\n"
