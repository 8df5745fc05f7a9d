"""A RunResult made of run.json, for whoever does not drive the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raydist.controller.failures.run_error import RunError
from raydist.controller.report.result import RunResult, TaskRecord
from raydist.controller.revival import evaluation_from, metrics_from
from raydist.spec.run_state import RunState
from raydist.spec.status import TaskState
from raydist.spec.tasks import TaskId


def result_from_record(record: Mapping[str, Any]) -> RunResult:
    """Returns what the run's own controller would tell, but for the traceback, which stays in the logs."""
    return RunResult(
        run=record["run"],
        state=RunState(record["state"]),
        strategy=record["strategy"] or "",
        keras=record["keras"] or "",
        attempts=int(record["attempts"]),
        steps=int(record["steps"]),
        steps_repeated=int(record["steps_repeated"]),
        metrics=metrics_from(record["metrics"]),
        evaluation=evaluation_from(record["evaluation"]),
        checkpoint=record["checkpoint"],
        storage=record["storage"],
        tasks=tuple(_task_from(task) for task in record["tasks"]),
        error=None if record["error"] is None else RunError.from_dict(record["error"]),
        notes=tuple(record["notes"]),
        timings=dict(record["timings"]),
    )


def _task_from(stored: Mapping[str, Any]) -> TaskRecord:
    return TaskRecord(
        task=TaskId.parse(stored["task"]),
        state=TaskState(stored["state"]),
        steps=int(stored["steps"]),
        host=stored["host"],
        pid=stored["pid"],
        address=stored["address"],
    )
