"""raydist.api and RunHandle as far as they need no Ray: requests, plans, handles."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest

import raydist
from raydist.outcome.result import RunError, RunResult, TaskRecord
from raydist.outcome.status import RunState, TaskState
from raydist.runs.handle import RunHandle, ThreadedRun
from raydist.spec.job import Strategy
from raydist.spec.tasks import TaskId
from raydist.storage.run_record import RunRecordStore
from raydist.storage.run_storage import open_run
from tests.support.records import make_record


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return tmp_path


@raydist.job(workers=2, params={"epochs": 3})
def train(ctx: raydist.TrainContext) -> None: ...


@pytest.mark.slow
def test_plan_of_a_decorated_job_takes_its_defaults() -> None:
    plan = raydist.plan(train, address="local")
    assert plan.strategy is Strategy.MULTI_WORKER_MIRRORED
    assert [str(task) for task in plan.tasks] == ["worker/0", "worker/1"]
    assert plan.job.params == {"epochs": 3}


def test_function_without_params_takes_any() -> None:
    job = raydist.plan(lambda ctx: None, address="local", params={"n": 20, "names": ["a"]}).job
    assert job.params == {"n": 20, "names": ["a"]}


def test_plan_of_a_closure_needs_no_ray() -> None:
    plan = raydist.plan(lambda ctx: None, address="local", workers=3)
    assert len(plan.tasks) == 3


@pytest.mark.slow
def test_keywords_win_over_config_and_config_over_the_job(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("address: local\nworkers: 3\nkeep: 7\nparams: {epochs: 5}\n")
    job = raydist.plan(train, config=config, workers=4).job
    assert (job.workers.maximum, job.keep, job.params) == (4, 7, {"epochs": 5})
    assert raydist.plan(train, config=config, params={"epochs": 9}).job.params == {"epochs": 9}


@pytest.mark.slow
def test_relative_storage_becomes_one_that_tasks_can_open(tmp_path: Path) -> None:
    assert raydist.plan(train, address="local", storage="runs").job.storage == str(tmp_path / "runs")
    assert raydist.plan(train, address="local", storage="s3://b/runs").job.storage == "s3://b/runs"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        pytest.param({"wokers": 2}, "did you mean workers", id="unknown-option"),
        pytest.param({"workers": "two"}, "workers is 'two'", id="ill-typed"),
        pytest.param({"params": {"epoch": 1}}, "did you mean epochs?", id="unknown-param"),
    ],
)
def test_mistake_in_keywords_is_a_spec_error(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(raydist.SpecError, match=message):
        raydist.run(train, address="local", **overrides)


@pytest.mark.parametrize("call", [raydist.run, raydist.submit])
def test_detach_with_an_embedded_ray_is_refused_before_anything_starts(call: Any, tmp_path: Path) -> None:
    with pytest.raises(raydist.SpecError, match="`raydist up`"):
        call(f"{__file__}:train", address="local", detach=True)
    assert list(tmp_path.iterdir()) == []


class FakeController:
    """Ends when it is told to, with the result that it was given."""

    def __init__(self, end: RunResult | BaseException) -> None:
        self._end = end
        self._may_end = threading.Event()
        self._result = ended(RunState.RUNNING)

    def run(self) -> RunResult:
        assert self._may_end.wait(timeout=30)
        if isinstance(self._end, BaseException):
            raise self._end
        self._result = self._end
        return self._end

    def status(self) -> RunResult:
        return self._result

    def request_stop(self) -> None:
        self._may_end.set()


def ended(state: RunState, **facts: Any) -> RunResult:
    return RunResult(
        run="r", state=state, strategy="one_device", keras="3", attempts=1, steps=7, storage="s", **facts
    )


def handle_of(end: RunResult | BaseException, held: contextlib.ExitStack | None = None) -> RunHandle:
    controller: Any = FakeController(end)
    return RunHandle("r", ThreadedRun("r", controller, held or contextlib.ExitStack()), storage="s")


def test_handle_tells_the_state_and_then_the_result() -> None:
    handle = handle_of(ended(RunState.SUCCEEDED))
    assert handle.status().state is RunState.RUNNING
    with pytest.raises(TimeoutError, match="run r did not end within 0 s; it is still running"):
        handle.result(timeout=0)
    with pytest.raises(TimeoutError, match=r"run r did not end within 0\.01 s"):
        handle.result(timeout="0.01s")
    with pytest.raises(raydist.SpecError, match="timeout is 'soon'; write seconds, or 90s, 5m, 2h"):
        handle.result(timeout="soon")
    handle.stop()
    assert handle.result(timeout="1m").steps == 7


def test_handle_closes_what_it_holds_when_the_run_has_ended() -> None:
    closed = threading.Event()
    held = contextlib.ExitStack()
    held.callback(closed.set)
    handle = handle_of(ended(RunState.SUCCEEDED), held)
    assert not closed.is_set()
    handle.stop()
    handle.result(timeout=30)
    assert closed.is_set()


@pytest.mark.parametrize(
    ("tasks", "chief"),
    [(("worker/0", "worker/1"), "worker/0"), (("ps/0", "worker/0", "chief/0", "evaluator/0"), "chief/0")],
)
def test_handle_shows_the_log_of_the_chief_unless_asked(
    tasks: tuple[str, ...], chief: str, tmp_path: Path
) -> None:
    storage = open_run(str(tmp_path), run="r")
    found = [TaskId.parse(task) for task in tasks]
    for task in found:
        storage.write_text(storage.log_segment(task, attempt=0, seq=0), f"printed by {task}\n")
    end: Any = ended(
        RunState.SUCCEEDED, tasks=tuple(TaskRecord(task=task, state=TaskState.FINISHED) for task in found)
    )
    controller: Any = FakeController(end)
    handle = RunHandle("r", ThreadedRun("r", controller, contextlib.ExitStack()), storage=str(tmp_path))
    handle.stop()
    handle.result(timeout=30)
    assert handle.logs() == f"printed by {chief}\n"
    assert handle.logs(task=tasks[1]) == f"printed by {tasks[1]}\n"


def test_failed_run_raises_the_typed_error_with_its_result() -> None:
    end = ended(RunState.FAILED, error=RunError(type="KeyError", message="worker/0 failed"))
    handle = handle_of(end)
    handle.stop()
    with pytest.raises(raydist.TaskFailedError, match="worker/0 failed") as caught:
        handle.result(timeout=30)
    assert caught.value.result is end


def test_cancelled_run_raises_an_error_of_its_own_with_its_result() -> None:
    handle = handle_of(end := ended(RunState.CANCELLED))
    handle.stop()
    with pytest.raises(raydist.RunCancelledError, match="run r was cancelled at step 7") as caught:
        handle.result(timeout=30)
    assert caught.value.result is end


def test_bug_in_the_controller_comes_out_where_the_result_is_asked_for() -> None:
    handle = handle_of(ZeroDivisionError("a bug"))
    handle.stop()
    with pytest.raises(ZeroDivisionError):
        handle.result(timeout=30)


@pytest.mark.slow
@pytest.mark.parametrize("address", ["local", "127.0.0.1:1"])
def test_resume_auto_returns_what_has_succeeded_and_asks_no_ray(tmp_path: Path, address: str) -> None:
    storage = open_run(str(tmp_path / "runs"), run="done")
    RunRecordStore(storage).replace(make_record(storage, state="SUCCEEDED", steps=40, notes=["before"]))
    events: list[Any] = []
    options: Any = {"name": "done", "storage": str(tmp_path / "runs"), "resume": "auto", "address": address}
    result = raydist.run(train, on_event=events.append, **options)
    assert (result.state, result.steps, result.notes[0]) == ("SUCCEEDED", 40, "before")
    assert [(one["event"], one["message"]) for one in events] == [("note", result.notes[1])]
    assert raydist.submit(train, **options).result(timeout=5).steps == 40
    assert raydist.submit(train, detach=True, **options).result(timeout=5).steps == 40
