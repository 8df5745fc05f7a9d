"""What submit and resume print and ask for; the run itself is a fake, real ones are in tests/e2e."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from raydist import api
from raydist.outcome.result import RunError, RunResult, TaskRecord
from raydist.outcome.status import RunState, TaskState
from raydist.planning.describe import describe_job
from raydist.spec.job import WorkerRange
from raydist.spec.tasks import TaskId
from tests.cli.conftest import Run

PLANNED = {
    "event": "planned",
    "run": "digits-1",
    "strategy": "one_device",
    "reason": "one worker with no GPU",
    "keras": "3",
    "keras_reason": "nothing in the job's source needs Keras 2",
    "notes": ["2 cores are shared"],
}
TRACEBACK = "Traceback (most recent call last):\n  File \"job.py\", line 3, in train\nKeyError: 'x'\n"


def progress(*, step: int) -> dict[str, Any]:
    return {
        **{"event": "progress", "at_s": 1.0, "attempt": 0, "phase": "running", "epoch": 0, "num_epochs": 3},
        **{"step": step, "num_steps": 30, "steps_per_s": 12.0, "metrics": {"loss": 0.5}, "run_s": 2.0},
        "hint": None,
    }


def ended(state: RunState = RunState.SUCCEEDED, **facts: Any) -> RunResult:
    task = TaskId.parse("worker/0")
    return RunResult(
        **{
            **{"run": "digits-1", "state": state, "strategy": "one_device", "keras": "3", "attempts": 1},
            **{
                "steps": 30,
                "storage": str(Path("raydist_runs/digits-1").absolute()),
                "metrics": {"loss": 0.25},
            },
            **{
                "tasks": (TaskRecord(task=task, state=TaskState.PENDING),),
                "notes": ("2 cores are shared", "trained on digits"),
            },
            **{"timings": {"total": 61.0}, **facts},
        }
    )


class FakeRun:
    """Stands for api.run: tells events, and returns what a run would."""

    def __init__(self, result: RunResult) -> None:
        self.result = result
        self.job = ""
        self.given: dict[str, Any] = {}

    def __call__(self, job: str, *, on_event: Callable[[Mapping[str, Any]], None], **given: Any) -> RunResult:
        self.job, self.given = job, given
        for event in ({"event": "ray", "message": "starting an embedded Ray"}, PLANNED, progress(step=10)):
            on_event(event)
        print("printed by the library")
        return self.result


@pytest.fixture
def fake_run(monkeypatch: pytest.MonkeyPatch) -> Callable[[RunResult], FakeRun]:
    def install(result: RunResult) -> FakeRun:
        fake = FakeRun(result)
        monkeypatch.setattr(api, "run", fake)
        return fake

    return install


def test_submit_prints_choices_progress_and_summary(raydist: Run, fake_run: Any) -> None:
    fake_run(ended(checkpoint="raydist_runs/digits-1/checkpoints/step-30-a0"))
    code, out, err = raydist("submit", "job.py")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "starting an embedded Ray",
        "run digits-1",
        "strategy one_device: one worker with no GPU",
        "keras 3: nothing in the job's source needs Keras 2",
        "note: 2 cores are shared",
        "epoch 1/3  step 10/30  12.0 steps/s  loss 0.5  0:00:02",
        "printed by the library",
        "note: trained on digits",
        "SUCCEEDED after 30 steps, 0:01:01",
        "  metrics     loss 0.25",
        "  checkpoint  raydist_runs/digits-1/checkpoints/step-30-a0",
        f"  storage     {Path('raydist_runs/digits-1').absolute()}",
        "next: raydist status digits-1  raydist logs digits-1  raydist metrics digits-1",
    ]


def test_submit_json_prints_one_object_and_the_rest_to_stderr(raydist: Run, fake_run: Any) -> None:
    fake_run(ended())
    code, out, err = raydist("submit", "job.py", "--json")
    printed = json.loads(out)
    assert code == 0
    assert printed == ended().as_dict()
    assert "strategy one_device" in err
    assert "SUCCEEDED" in err


def test_run_whose_loop_reports_nothing_is_not_said_to_have_taken_0_steps(
    raydist: Run, fake_run: Any
) -> None:
    fake_run(ended(steps=0, metrics={}))
    _, out, _ = raydist("submit", "job.py")
    assert "SUCCEEDED, no steps reported, 0:01:01" in out
    assert "after 0 steps" not in out


def test_failed_training_shows_the_traceback_once(raydist: Run, fake_run: Any) -> None:
    error = RunError(
        type="KeyError",
        message="worker/0 failed (attempt 0): KeyError: 'x'",
        task=TaskId.parse("worker/0"),
        attempt=0,
        log="raydist_runs/digits-1/logs/0/worker-0",
        traceback=TRACEBACK,
    )
    fake_run(ended(RunState.FAILED, error=error))
    code, out, _ = raydist("submit", "job.py")
    assert code == 1
    assert out.count("Traceback") == 1
    assert "error: worker/0 failed (attempt 0): KeyError: 'x'" in out
    assert "log      raydist_runs/digits-1/logs/0/worker-0" in out
    assert "raydist resume digits-1" in out


def test_end_of_the_log_is_shown_of_a_task_that_died(raydist: Run, fake_run: Any) -> None:
    error = RunError(
        type="ProcessDied",
        message="worker/0 failed (attempt 0): ProcessDied: its process 7 was killed by SIGABRT",
        task=TaskId.parse("worker/0"),
        attempt=0,
        log_end="F0000 Check failed: x\nFatal Python error: Aborted",
    )
    fake_run(ended(RunState.FAILED, error=error))
    code, out, _ = raydist("submit", "job.py")
    assert code == 1
    shown = "the end of worker/0's log:\n  F0000 Check failed: x\n  Fatal Python error: Aborted\n"
    assert shown in out
    fake_run(ended(RunState.FAILED, error=error))
    _, out, err = raydist("submit", "job.py", "--json")
    assert shown in err
    assert "Check failed" not in out


def test_accepted_run_is_exit_0_and_where_it_is_found(raydist: Run, fake_run: Any) -> None:
    fake = fake_run(ended(RunState.STARTING, steps=0, metrics={}, notes=()))
    code, out, _ = raydist("submit", "job.py", "--detach")
    assert code == 0
    assert fake.given["detach"] is True
    assert out.splitlines()[-3:] == [
        "run digits-1 continues in the cluster, independently of this shell",
        f"  storage     {Path('raydist_runs/digits-1').absolute()}",
        "next: raydist status digits-1  raydist logs -f digits-1  raydist stop digits-1",
    ]


def test_cancelled_run_is_exit_130(raydist: Run, fake_run: Any) -> None:
    fake_run(ended(RunState.CANCELLED))
    code, out, _ = raydist("submit", "job.py", "--json")
    assert code == 130
    assert json.loads(out)["state"] == "CANCELLED"


def test_ctrl_c_before_the_run_is_exit_130(raydist: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "run", interrupted)
    code, out, err = raydist("submit", "job.py", "--json")
    assert code == 130
    assert json.loads(out)["state"] == "CANCELLED"
    assert err.strip() == "raydist: stopped by Ctrl-C"


def test_commands_to_go_on_with_name_another_storage(raydist: Run, fake_run: Any) -> None:
    fake_run(ended(storage="s3://bucket/my runs/digits-1"))
    _, out, _ = raydist("submit", "job.py")
    assert "raydist status digits-1 --storage 's3://bucket/my runs'" in out


def test_options_reach_the_run_as_written_and_only_those_given(raydist: Run, fake_run: Any) -> None:
    fake = fake_run(ended())
    raydist("submit", "job.py", "--ps", "2", "--no-patch-keras", "--keep", "all", "-p", "a=1", "-p", "b=2")
    assert fake.given["params"] == {"a": "1", "b": "2"}
    options = {name: fake.given[name] for name in ("ps", "patch_keras")}
    assert options == {"ps": "2", "patch_keras": False}
    assert "workers" not in fake.given


SPEC = {
    "name": "digits-1",
    "working_dir": "/code",
    "workers": "2",
    "keep": 5,
    "storage": "/elsewhere",
    "resume": False,
    "params": {"epochs": 3, "api_key": "***"},
    "entry_point": {"file": "sub/job.py", "module": None, "function": "train"},
}


def store(spec: Mapping[str, Any]) -> None:
    from raydist.storage.run_record import RunRecordStore
    from raydist.storage.run_storage import open_run
    from tests.support.records import make_record

    storage = open_run("raydist_runs", run="digits-1")
    RunRecordStore(storage).replace(make_record(storage, state="FAILED", attempts=1, spec=spec))


def test_resume_takes_over_what_the_run_was_started_with(raydist: Run, fake_run: Any) -> None:
    fake = fake_run(ended())
    store(SPEC)
    code, _, _ = raydist("resume", "digits-1", "--keep", "7")
    assert code == 0
    assert fake.job == "/code/sub/job.py:train"
    workers = WorkerRange(minimum=2, maximum=2)
    assert fake.given["config"] == {"workers": workers, "keep": 5, "params": {"epochs": 3}}
    assert {name: fake.given[name] for name in ("name", "resume", "keep", "working_dir")} == {
        "name": "digits-1",
        "resume": True,
        "keep": "7",
        "working_dir": "/code",
    }


def test_resume_tells_what_the_record_does_not_keep(raydist: Run, fake_run: Any) -> None:
    fake = fake_run(ended())
    store({**SPEC, "on_end": "***"})
    _, _, err = raydist("resume", "digits-1")
    assert "on_end" not in fake.given["config"]
    assert "note: the command of --on-end is not kept; give it again\n" in err
    assert "note: secrets are not kept; give api_key with -p\n" in err
    _, _, err = raydist("resume", "digits-1", "--on-end", "true", "-p", "api_key=a")
    assert "not kept" not in err


WITH_ENV = {
    **SPEC,
    "params": {},
    "env": {"OPEN": "1", "OLD": "2", "HF_TOKEN": "***", "DB": "https://h/?sig=***"},
    "env_file": "/code/.env",
    "runtime_env": {"pip": ["https://***@index/a.whl"]},
}


def test_resume_names_the_variables_that_it_lacks(raydist: Run, fake_run: Any, tmp_path: Path) -> None:
    fake = fake_run(ended())
    store(WITH_ENV)
    _, _, err = raydist("resume", "digits-1", "--env", "DB=x")
    assert fake.given["config"]["env"] == {"OPEN": "1", "OLD": "2"}
    assert not {"env_file", "runtime_env"} & fake.given["config"].keys()
    assert fake.given["env"] == ("DB=x",)
    assert "secret variables are not kept; give HF_TOKEN with --env, or with --env-file /code/.env\n" in err
    assert "note: the credentials in --runtime-env are not kept; give it again\n" in err
    (tmp_path / ".env").write_text("HF_TOKEN=a\nDB=b\n")
    (tmp_path / "more.yaml").write_text("env_file: .env\nenv: {OPEN: 3}\n")
    for given in (["--env-file", ".env"], ["-c", "more.yaml"]):
        _, _, err = raydist("resume", "digits-1", "--runtime-env", "none", *given)
        assert "not kept" not in err
    assert fake.given["config"]["env"] == {"OPEN": "3", "OLD": "2"}


def test_resume_lets_a_config_file_win_over_what_is_stored(
    raydist: Run, fake_run: Any, tmp_path: Path
) -> None:
    fake = fake_run(ended())
    store(SPEC)
    (tmp_path / "more.yaml").write_text("workers: 4\nparams: {rate: 0.5}\n")
    raydist("resume", "digits-1", "-c", "more.yaml")
    assert str(fake.given["config"]["workers"]) == "4"
    assert fake.given["config"]["params"] == {"epochs": 3, "rate": 0.5}


def test_resume_takes_over_each_param_exactly(
    raydist: Run, fake_run: Any, job_file: Callable[..., Path]
) -> None:
    fake = fake_run(ended())
    params = {"margin": math.inf, "text": ".inf", "nested": {"low": [-math.inf, 1.5]}, "shape": (2, 3)}
    store(describe_job(api.plan(str(job_file()), params=params, address="local").job))
    assert raydist("resume", "digits-1")[0] == 0
    assert fake.given["config"]["params"] == params
    planned = api.plan(fake.job, config=fake.given["config"], address="local")
    assert planned.job.params == params


def test_options_of_a_config_are_typed_once_on_resume(
    raydist: Run, fake_run: Any, job_file: Callable[..., Path], tmp_path: Path
) -> None:
    """A role is read only as it is written, so to type it again would fail."""
    fake = fake_run(ended())
    options: Any = {"roles": {"feat": {"command": "serve", "cpus": 0.5}}, "timeout": "2m"}
    store(describe_job(api.plan(str(job_file()), address="local", **options).job))
    (tmp_path / "more.yaml").write_text("timeout: 30m\n")
    for given, minutes in ((["-c", "more.yaml"], 30), ([], 2)):
        assert raydist("resume", "digits-1", *given)[0] == 0
        job = api.plan(fake.job, config=fake.given["config"], address="local").job
        assert (job.timeout, job.roles["feat"].resources.num_cpus) == (minutes * 60, 0.5)


def test_resume_of_a_pickled_function_says_what_to_do(raydist: Run) -> None:
    store({**SPEC, "entry_point": {"file": None, "module": None, "function": ""}})
    code, _, err = raydist("resume", "digits-1")
    assert code == 2
    assert 'raydist.run(function, name="digits-1", resume=True)' in err


@pytest.mark.parametrize(
    ("arguments", "resume"),
    [
        pytest.param(["--resume", "job.py"], "true", id="alone"),
        pytest.param(["--resume", "auto", "job.py"], "auto", id="word"),
        pytest.param(["job.py", "--resume=auto"], "auto", id="equals"),
        pytest.param(["job.py", "--resume", "--", "auto"], "true", id="word-of-the-script"),
    ],
)
def test_resume_takes_the_word_auto_and_no_other_argument(
    raydist: Run, fake_run: Any, arguments: list[str], resume: str
) -> None:
    fake = fake_run(ended())
    assert raydist("submit", "--name", "digits-1", *arguments)[0] == 0
    assert (fake.job, fake.given["resume"]) == ("job.py", resume)
