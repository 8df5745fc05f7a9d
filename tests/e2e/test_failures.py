"""What a user sees when something goes wrong, on real Ray and TensorFlow."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import WaitUntil
from tests.e2e.conftest import Ended, Raydist, RunningRay, start_raydist, status_of
from tests.support.processes import PATIENCE


def autograph_files() -> set[str]:
    """What TensorFlow leaves in the temporary folder when its process is killed."""
    return {path.name for path in Path(tempfile.gettempdir()).glob("__autograph_generated_file*")}


_CRASHING_JOB = """
import ctypes

import raydist


@raydist.job(strategy="one_device")
def train(ctx: raydist.TrainContext):
    print("about to crash", flush=True)
    ctypes.string_at(0)
"""


@pytest.mark.slow
def test_crash_names_the_signal_and_shows_the_end_of_the_log(raydist: Raydist, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "crash.py").write_text(_CRASHING_JOB)
    ended = raydist("submit", "code/crash.py", "--max-failures", "0", "--json", "--name", "crash")
    assert ended.code == 1, ended.err
    message = ended.json["error"]["message"]
    assert "was killed by SIGSEGV; not retried" in message
    assert "End of file" not in message
    shown = ended.err.partition("the end of worker/0's log:")[2]
    assert "\n  about to crash\n" in shown
    assert "\n  Fatal Python error: Segmentation fault\n  Stack (most recent call first):\n" in shown
    assert 'crash.py", line 10 in train' in shown
    assert "logging.cc" not in shown


_DIVERGING_JOB = """
import raydist


@raydist.job(strategy="one_device")
def train(ctx: raydist.TrainContext):
    for step in range(1, 9):
        ctx.report({"loss": float("nan") if step > 3 else 1.0}, step=step)
"""


@pytest.mark.slow
def test_stop_on_nan_ends_the_run_at_that_step_without_another_attempt(
    raydist: Raydist, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "diverging.py").write_text(_DIVERGING_JOB)
    ended = raydist("submit", "code/diverging.py", "--stop-on-nan", "--json", "--name", "diverging")
    assert ended.code == 1, ended.err
    error = ended.json["error"]
    assert (error["type"], error["task"], ended.json["attempts"]) == ("NonFiniteError", "worker/0", 1)
    assert error["message"].startswith("not finite after step 4: loss is nan; --stop-on-nan ends the run")
    assert "Traceback" not in ended.err


_ALONE_JOB = """
import time

import keras
import numpy as np

import raydist


@raydist.job(workers=2, params={"waits": False})
def train(ctx: raydist.TrainContext):
    x, y = np.ones([8, 2], "float32"), np.ones([8, 1], "float32")
    with ctx.strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    if ctx.params["waits"] and not ctx.is_chief:
        time.sleep(1000)  # such as a download
    ctx.fit(model, x, y=y, batch_size=4, epochs=1)
    if ctx.is_chief:
        model.evaluate(x, y)
"""


@pytest.mark.exhaustive("before-the-first-step", covered_by="test_survival.py: code that hangs")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "kind", "task", "said"),
    [
        pytest.param(
            (),
            "UnequalCalls",
            "worker/0",
            "worker/0 calls model.evaluate in alone.py:20 (train), worker/1 has returned from the train "
            "function: all workers make this call, or none",
            id="alone",
        ),
        pytest.param(
            ("-p", "waits=true", "--stall-timeout", "5", "--max-failures", "0"),
            "Stalled",
            "worker/1",
            "worker/1 is in alone.py:17 (train), the others wait for it",
            id="before-the-first-step",
        ),
    ],
)
def test_worker_that_waits_for_others_in_vain_ends_the_run(
    asked: tuple[str, ...], kind: str, task: str, said: str, raydist: Raydist, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "alone.py").write_text(_ALONE_JOB)
    ended = raydist("submit", "code/alone.py", "--json", "--name", "alone", *asked)
    assert ended.code == 1, ended.err
    error = ended.json["error"]
    assert (error["type"], error["task"], ended.json["attempts"]) == (kind, task, 1)
    assert said in error["message"]


_NESTED_JOB = """
import raydist


@raydist.job(strategy="one_device")
def inner(ctx: raydist.TrainContext):
    ctx.report({"value": 1.0}, step=1)


@raydist.job(strategy="one_device", params={"cpus": 1.0})
def train(ctx: raydist.TrainContext):
    resources = {"worker": {"cpus": ctx.params["cpus"]}}
    inner_run = raydist.run(inner, storage=ctx.storage + "-inner", resources=resources)
    ctx.report({"value": inner_run.metrics["value"]}, step=1)
"""


@pytest.mark.slow
def test_run_inside_of_a_run_gets_room_or_is_refused_at_once(raydist: Raydist, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "nested.py").write_text(_NESTED_JOB)
    ended = raydist("submit", "code/nested.py:train", "--json", "--name", "beside")
    assert ended.code == 0, ended.err
    assert ended.json["metrics"] == {"value": 1.0}
    # All that Ray has, of which the run itself has one.
    ended = raydist("submit", "code/nested.py:train", "--json", "--name", "full", "-p", "cpus=4.0")
    assert (ended.code, ended.json["attempts"]) == (2, 1), ended.err
    assert " do not fit beside the run whose task starts them: " in ended.json["error"]["message"]


_SAYING_JOB = """
import raydist


class NotReady(raydist.RetryableError):
    pass


class BadLabels(raydist.FinalError):
    pass


@raydist.job(strategy="one_device", params={"repeats": False})
def train(ctx: raydist.TrainContext):
    if ctx.attempt < 2 and not ctx.params["repeats"]:
        raise NotReady("the table is still being written")
    for step in range(1, 4):
        ctx.report({"loss": 1.0}, step=step)
    raise ValueError("no label") if ctx.params["repeats"] else BadLabels("label 11 of 10 classes")
"""


@pytest.mark.slow
def test_run_is_retried_and_ends_as_the_exceptions_of_the_job_say(raydist: Raydist, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "saying.py").write_text(_SAYING_JOB)
    ended = raydist("submit", "code/saying.py", "--json", "--name", "saying")
    assert ended.code == 1, ended.err
    error = ended.json["error"]
    assert (error["type"], error["attempt"], ended.json["attempts"]) == ("BadLabels", 2, 3)
    said = "worker/0 failed (attempt 2): BadLabels: label 11 of 10 classes"
    assert error["message"] == f"{said}; not retried: BadLabels is a FinalError"
    assert ended.err.count("Traceback (most recent call last)") == 1
    retried = [note for note in ended.json["notes"] if "NotReady: the table is still being written" in note]
    assert [note.rpartition("; ")[2] for note in retried] == [
        "retried: failure 1 of 3 allowed",
        "retried: failure 2 of 3 allowed",
    ]
    ended = raydist("submit", "code/saying.py", "--json", "--name", "repeating", "-p", "repeats=true")
    said = "worker/0 failed (attempt 1): ValueError: no label; not retried: ValueError was raised at step 3 "
    assert (ended.code, ended.json["error"]["message"]) == (1, f"{said}before"), ended.err
    assert ended.err.count("Traceback (most recent call last)") == 1


@pytest.mark.slow
def test_task_whose_gpus_tensorflow_does_not_see_ends_before_it_trains(
    gpu_ray: RunningRay, slow_job: str, tmp_path: Path
) -> None:
    asked = ("--workers", "1", "--gpus", "worker=1", "--name", "blind", "--json")
    process = start_raydist(gpu_ray, tmp_path, "submit", slow_job, *asked)
    out, err = process.communicate(timeout=180)
    ended = Ended(code=process.returncode, out=out, err=err)
    assert ended.code == 3, err
    error = ended.json["error"]
    assert (error["type"], error["task"], ended.json["attempts"]) == ("DeviceError", "worker/0", 1)
    assert " has 1 GPU from Ray (CUDA_VISIBLE_DEVICES=0), and TensorFlow " in error["message"]
    assert " sees none: " in error["message"]
    assert "Traceback" not in err
    logs = start_raydist(gpu_ray, tmp_path, "logs", "blind").communicate(timeout=60)[0]
    reason = error["message"].partition(" sees none: ")[2].partition("; install")[0]
    assert any(reason in line and "worker/0 on" not in line for line in logs.splitlines())


def test_killed_worker_costs_one_attempt_and_changes_nothing(
    raydist: Raydist,
    running_ray: RunningRay,
    undisturbed: dict[str, Any],
    slow_job: str,
    tmp_path: Path,
    wait_until: WaitUntil,
) -> None:
    files_before = autograph_files()
    asked = ("--json", "--name", "killed", "-p", "pause_s=0.2")
    process = start_raydist(running_ray, tmp_path, "submit", slow_job, *asked)
    wait_until(lambda: status_of(tmp_path, "killed")["steps"] >= 1, timeout_s=240)
    done = raydist("chaos", "killed", "--kill", "worker/1", "--at-step", "14")
    assert done.code == 0, done.err
    out, err = process.communicate(timeout=120)
    ended = Ended(code=process.returncode, out=out, err=err)
    assert ended.code == 0, err
    assert (ended.json["state"], ended.json["attempts"], ended.json["steps"]) == ("SUCCEEDED", 2, 40)
    assert autograph_files() <= files_before
    # The very same weights: data order, shuffles and optimizer continued where the checkpoint was.
    assert ended.json["metrics"]["norm"] == pytest.approx(undisturbed["metrics"]["norm"], abs=1e-5)


_UNEQUAL_JOB = """
import time

import raydist


@raydist.job(workers=2, params={"chief_fails": False})
def train(ctx: raydist.TrainContext):
    time.sleep(3 - time.time() % 3)  # until a moment that is the same in both
    if not ctx.is_chief:
        time.sleep(0 if ctx.params["chief_fails"] else 2)
        raise OSError("the disk of the other one")
    if ctx.params["chief_fails"]:
        raise KeyError("label")
"""


@pytest.mark.slow
def test_success_is_the_chiefs_or_that_of_all_and_errors_are_those_of_all(
    raydist: Raydist, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "unequal.py").write_text(_UNEQUAL_JOB)
    submit = ("submit", "code/unequal.py", "--max-failures", "0", "--json")
    by_chief = raydist(*submit, "--success", "chief", "--name", "chief")
    assert (by_chief.code, by_chief.json["state"]) == (0, "SUCCEEDED"), by_chief.err
    by_all = raydist(*submit, "--name", "all")
    assert (by_all.code, by_all.json["state"]) == (1, "FAILED"), by_all.err
    assert (by_all.json["error"]["type"], by_all.json["error"]["task"]) == ("OSError", "worker/1")
    both = raydist(*submit, "-p", "chief_fails=true", "--name", "both")
    failures = [(one["task"], one["type"]) for one in both.json["error"]["failures"]]
    assert sorted(failures) == [("worker/0", "KeyError"), ("worker/1", "OSError")]


@pytest.mark.slow
def test_run_of_that_name_goes_on_with_resume(
    raydist: Raydist, running_ray: RunningRay, slow_job: str, tmp_path: Path, wait_until: WaitUntil
) -> None:
    command = ("submit", slow_job, "--name", "again", "-p", "pause_s=0.4", "--json")
    process = start_raydist(running_ray, tmp_path, *command, "--resume", "auto")
    wait_until(lambda: status_of(tmp_path, "again")["steps"] >= 12, timeout_s=240)
    refused = raydist(*command, "--resume", "auto")
    assert (refused.code, refused.json["error"]["type"]) == (2, "SpecError")
    assert "is still running" in refused.json["error"]["message"]
    process.kill()
    process.communicate(timeout=120)
    refused = raydist(*command)
    assert refused.code == 2
    assert "again" in refused.json["error"]["message"]
    assert "--resume" in refused.json["error"]["message"]
    more = raydist(*command, "--resume", "auto")
    assert more.code == 0, more.err
    assert (more.json["state"], more.json["attempts"], more.json["steps"]) == ("SUCCEEDED", 2, 40)
    assert more.json["checkpoint"].endswith("step-40-a1")
    done = raydist(*command, "--resume", "auto")
    assert done.code == 0, done.err
    assert (done.json["state"], done.json["attempts"], done.json["steps"]) == ("SUCCEEDED", 2, 40)
    assert "has succeeded already, and nothing is trained again" in done.json["notes"][-1]
    assert done.err.count("has succeeded already") == 1
    # Nothing is left to train: it keeps the values that it had.
    asked = raydist(*command, "--resume")
    assert asked.code == 0, asked.err
    assert (asked.json["steps"], asked.json["attempts"]) == (40, 3)
    assert asked.json["metrics"] == more.json["metrics"] != {}


@pytest.mark.slow
def test_run_that_is_out_of_time_has_its_last_step_on_storage(raydist: Raydist, slow_job: str) -> None:
    asked = ("-p", "epochs=20000", "--checkpoint-every", "1000000", "--timeout", str(30 * PATIENCE), "--json")
    ended = raydist("submit", slow_job, "--name", "late", *asked)
    assert (ended.code, ended.json["error"]["type"]) == (124, "RunTimeoutError"), ended.err
    assert ended.json["checkpoint"].endswith(f"/step-{ended.json['steps']}-a0")
    assert f"at step {ended.json['steps']}, which is saved" in ended.json["error"]["message"]


def test_ctrl_c_stops_the_run_and_leaves_nothing(
    raydist: Raydist, running_ray: RunningRay, slow_job: str, tmp_path: Path, wait_until: WaitUntil
) -> None:
    quick = ("-p", "epochs=20000", "-p", "pause_s=0.002")  # several checkpoints while its tasks are stopped
    process = start_raydist(running_ray, tmp_path, "submit", slow_job, "--name", "stopped", *quick, "--json")
    wait_until(lambda: status_of(tmp_path, "stopped")["steps"] >= 50, timeout_s=240)
    pids = [task["pid"] for task in status_of(tmp_path, "stopped")["tasks"]]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    told = Ended(code=130, out=out, err=err).json
    assert told["state"] == "CANCELLED"
    stored = raydist("status", "stopped", "--json").json
    assert [stored[key] for key in ("state", "checkpoint")] == ["CANCELLED", told["checkpoint"]]
    newest = raydist("status", "--checkpoints", "stopped", "--json").json["checkpoints"][0]
    assert Path(told["checkpoint"]).is_dir()
    assert told["checkpoint"] == newest["uri"]
    assert told["steps"] == stored["steps"] >= newest["step"]
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), timeout_s=15)


@pytest.mark.slow
def test_run_waits_while_the_cluster_is_busy(
    raydist: Raydist, running_ray: RunningRay, slow_job: str, tmp_path: Path, wait_until: WaitUntil
) -> None:
    all_cpus = ("--cpus", "worker=2")
    first = start_raydist(
        running_ray, tmp_path, "submit", slow_job, "--name", "first", *all_cpus, "-p", "epochs=900"
    )
    wait_until(lambda: status_of(tmp_path, "first")["state"] == "RUNNING", timeout_s=240)
    hasty = raydist("submit", slow_job, "--name", "hasty", *all_cpus, "--start-timeout", "3", "--json")
    assert hasty.code == 3
    assert hasty.json["state"] == "FAILED"
    patient = start_raydist(
        running_ray, tmp_path, "submit", slow_job, "--name", "patient", *all_cpus, "-p", "epochs=1"
    )
    wait_until(lambda: status_of(tmp_path, "patient")["state"] == "STARTING", timeout_s=240)
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=60)
    _, err = patient.communicate(timeout=90)
    assert (first.returncode, patient.returncode) == (130, 0), err


@pytest.mark.slow
def test_wrong_token_is_one_sentence(running_ray: RunningRay, slow_job: str, tmp_path: Path) -> None:
    environ = {**running_ray.environ, "RAY_AUTH_TOKEN": "0" * 64}
    ended = subprocess.run(
        [str(Path(sys.executable).parent / "raydist"), "submit", slow_job, "--address", running_ray.address],
        env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert ended.returncode == 3
    assert "token" in ended.stderr
    assert "Traceback" not in ended.stderr
