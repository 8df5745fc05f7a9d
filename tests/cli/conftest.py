from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raydist.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs each test in a folder of its own, with nothing in the environment that points at a Ray."""
    monkeypatch.chdir(tmp_path)
    for name in ("RAY_ADDRESS", "TF_CONFIG", "TPU_NAME", "COLAB_TPU_ADDR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture(autouse=True)
def no_ray(shared_ray: Any) -> None:
    """Ends the Ray of earlier tests: a command that runs in this process would take it for its own."""
    shared_ray.close()


@pytest.fixture
def raydist(capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process and returns its exit code, stdout and stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main.run(arguments)
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def job_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes a job file; its train function is never run here."""

    def write(
        decorator: str = "@raydist.job", *, name: str = "job.py", top: str = "", more: str = ""
    ) -> Path:
        path = tmp_path / name
        path.write_text(f"{top}\nimport raydist\n\n\n{decorator}\ndef train(ctx):\n    pass\n{more}")
        return path

    return write


# Has a test of `runs_uri` run on S3 too.
ON_EACH_STORAGE = pytest.mark.parametrize("runs_uri", ["folder", "s3"], indirect=True)


@pytest.fixture
def runs_uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where runs are kept: a folder, or the S3 server."""
    is_s3 = getattr(request, "param", None) == "s3"
    uri: str = request.getfixturevalue("s3_uri") if is_s3 else str(tmp_path / "runs")
    return uri


@pytest.fixture
def stored_run(tmp_path: Path) -> dict[str, Any]:
    """A run of two workers on `./raydist_runs`, in its second attempt, with logs, metrics and checkpoints."""
    from raydist.metrics.parquet import MetricsWriter
    from raydist.outcome.status import Scope
    from raydist.spec.tasks import TaskId
    from raydist.storage.checkpoints import CheckpointStore
    from raydist.storage.run_record import RunRecordStore
    from raydist.storage.run_storage import open_run
    from tests.support.records import make_record

    storage = open_run(str(tmp_path / "raydist_runs"), run="digits-1")
    record = {
        "state": "SUCCEEDED",
        "strategy": "multi_worker_mirrored",
        "keras": "3",
        "attempts": 2,
        "steps": 20,
        "metrics": {"accuracy": 0.875, "loss": 0.25},
        "tasks": [
            {"task": "worker/0", "state": "FINISHED", "steps": 20, "host": "h0", "pid": 7, "address": "h0:1"},
            {"task": "worker/1", "state": "FINISHED", "steps": 20, "host": "h1", "pid": 8, "address": "h1:1"},
        ],
        "notes": ["trained on digits"],
        "spec": {"name": "digits-1"},
    }
    RunRecordStore(storage).replace(make_record(storage, **record))
    for attempt in (0, 1):
        for index in (0, 1):
            task = TaskId.parse(f"worker/{index}")
            key = storage.log_segment(task, attempt=attempt, seq=0)
            storage.write_text(key, f"worker {index} attempt {attempt}\n")
    for attempt, step, loss in ((0, 10, 0.5), (0, 20, 0.4), (1, 20, 0.25)):
        writer = MetricsWriter.open(storage, task=TaskId.parse("worker/0"), attempt=attempt)
        writer.append([_row(attempt=attempt, step=step, value=loss, scope=Scope.GLOBAL)])
        writer.append([_row(attempt=attempt, step=step, value=float("nan"), scope=Scope.LOCAL)])
        writer.flush()
    checkpoints = CheckpointStore(storage)
    for step in (10, 20):
        checkpoints.commit(step=step, attempt=0, files={"state.json": b"{}"}, info={"epoch": step // 10})
    return record


def _row(*, attempt: int, step: int, value: float, scope: Any) -> Any:
    from raydist.outcome.status import MetricRow
    from raydist.spec.tasks import TaskId

    return MetricRow(
        run="digits-1",
        attempt=attempt,
        task=TaskId.parse("worker/0"),
        step=step,
        epoch=step // 10,
        wall_time=float(attempt),
        scope=scope,
        name="loss",
        value=value,
    )
