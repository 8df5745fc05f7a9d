"""Runs written as raydist writes them, for the page that shows them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raydist.metrics.parquet import MetricsWriter
from raydist.outcome.status import MetricRow, Scope
from raydist.spec.tasks import TaskId
from raydist.storage.checkpoints import CheckpointStore
from raydist.storage.filesystem import Storage
from raydist.storage.run_record import RunRecordStore
from raydist.storage.run_storage import RunStorage, open_run
from raydist.storage.segments import EventWriter
from raydist.storage.studies import StudyStore
from tests.support.records import make_record

BEGUN_S = 1.7e9
TASKS = ("worker/0", "worker/1")
DEATH = "its process 7 on h1 was killed by SIGKILL"


def record_facts(**changes: Any) -> dict[str, Any]:
    """Returns what run.json says of a run of two workers, in its second attempt."""
    return {
        "state": "SUCCEEDED",
        "strategy": "multi_worker_mirrored",
        "keras": "3",
        "attempts": 2,
        "steps": 200,
        "metrics": {"loss": 0.25, "accuracy": 0.875},
        "tasks": [
            {"task": name, "state": "FINISHED", "steps": 200, "host": f"h{i}", "pid": 7 + i, "address": "h:1"}
            for i, name in enumerate(TASKS)
        ],
        "notes": ["trained on digits", f"worker/1 failed first (attempt 0): ProcessDied: {DEATH}"],
        "timings": {"ray": 1.0, "placement": 1.5, "tasks_ready": 6.0, "first_step": 7.0, "total": 60.0},
        "spec": {
            "params": {"epochs": 3, "learning_rate": 0.001},
            "checkpoint_every": "epoch",
            "resources": {"ps": {"cpus": 2.5, "memory": None, "resources": {"ssd": 1.0}}},
        },
        "plan": {"job": "digits.py:train", "reason": "workers is 2", "params": {"epochs": 3}},
        "code": {
            "digest": "5e" * 32,
            "num_bytes": 2048,
            "commit": "c0ffee" * 6,
            "branch": "trunk",
            "dirty": True,
            "file": f"code/{'5e' * 32}.zip",
            "omitted": [".env"],
        },
        "environment": {
            "hosts": [
                {
                    "machine": {
                        "system": "Linux 6.1 x86_64",
                        "cpu": "Some CPU",
                        "num_cpus": 8,
                        "memory_bytes": 16 * 2**30,
                        "gpus": ["NVIDIA A100"] * 2,
                    },
                    "hosts": {"10.0.0.1": "h0", "10.0.0.2": "h1"},
                }
            ]
        },
        "versions": {"python": "3.11.2", "tensorflow": "2.21.0", "some-package": "1.2"},
        **changes,
    }


def events() -> list[dict[str, Any]]:
    """Returns the story of such a run: worker/1 dies 20 s after the begin, and a second fit begins later."""
    told = [(0, 0, "state", {"state": "STARTING"})]
    for attempt, begin in ((0, 0), (1, 22)):
        told += [(begin, attempt, "state", {"state": "STARTING"})] if attempt else []
        for state, after in (("STARTING", 2), ("RUNNING", 8)):
            told += [(begin + after, attempt, "task", {"task": name, "state": state}) for name in TASKS]
        told += [(begin + 8, attempt, "state", {"state": "RUNNING"})]
        if attempt == 0:
            death = {"task": "worker/1", "kind": "LOST", "type": "ProcessDied", "message": DEATH, "step": 90}
            told += [
                (8, 0, "training", {"kind": "fit", "number": 1, "step": 0}),
                (20, 0, "task", {"task": "worker/1", "state": "FAILED"}),
                (20, 0, "task_failed", death),
                (21, 0, "state", {"state": "STOPPING"}),
            ]
        else:
            told += [(38, 1, "training", {"kind": "fit", "number": 2, "step": 150})]
    told += [(58, 1, "task", {"task": name, "state": "FINISHED"}) for name in TASKS]
    told += [(60, 1, "state", {"state": "SUCCEEDED"})]
    return [
        {"event": name, "at_s": BEGUN_S + at_s, "attempt": attempt, "host": "h0", "incarnation": 0, **facts}
        for at_s, attempt, name, facts in told
    ]


def store_run(
    storage: RunStorage, *, told: Sequence[Mapping[str, Any]] | None = None, **changes: Any
) -> None:
    """Writes such a run: record, events, logs, metrics of 200 steps and two checkpoints."""
    store_record(storage, **changes)
    writer = EventWriter.open(storage)
    for event in events() if told is None else told:
        writer.append(event)
    writer.flush()
    for attempt in (0, 1):
        for name in TASKS:
            key = storage.log_segment(TaskId.parse(name), attempt=attempt, seq=0)
            storage.write_text(key, f"first line\nlast words of {name} in attempt {attempt}\n")
    store_metrics(storage, steps=range(1, 91), attempt=0)
    store_metrics(storage, steps=range(81, 201), attempt=1)
    for step in (100, 200):
        CheckpointStore(storage).commit(
            step=step, attempt=1, files={"state.json": b"{}"}, info={"epoch": step // 100}
        )


def store_study(runs: Path) -> None:
    """Writes three runs of a search for the highest val_accuracy, of which the last one has failed."""
    settings = {"--metric": "val_accuracy", "--mode": "max"}
    StudyStore(Storage.open(str(runs))).begin("rates", settings)
    for number, (rate, accuracy) in enumerate(((0.1, 0.5), (0.01, 0.75), (1.0, None))):
        store_run(
            open_run(str(runs), run=f"rates-{number}"),
            spec={"params": {"learning_rate": rate, "epochs": 2}, "study": "rates"},
            metrics={} if accuracy is None else {"val_accuracy": accuracy},
            state="FAILED" if accuracy is None else "SUCCEEDED",
        )


def store_comparison(runs: Path) -> None:
    """Writes what a comparison of the runs of that study has found."""
    told = {
        "headers": ["run", "examples/s"],
        "cells": [["one device", 1000.0], ["2 workers", None]],
        "sentence": "2 workers train 1.5 times as fast as one device",
        "picture": '<svg xmlns="http://www.w3.org/2000/svg" width="80" height="50"/>',
    }
    StudyStore(Storage.open(str(runs))).keep_comparison("rates", told)


def store_record(storage: RunStorage, **changes: Any) -> None:
    """Writes run.json, as of a minute after the events begin."""
    store = RunRecordStore(storage, clock=lambda: BEGUN_S + 60)
    store.replace(make_record(storage, **record_facts(**changes)))


def store_metrics(storage: RunStorage, *, steps: range, attempt: int, tasks: Sequence[str] = TASKS) -> None:
    """Writes the chief's loss and accuracy, and each task's loss and input wait, at 10 steps/s."""
    for name in tasks:
        task = TaskId.parse(name)
        writer = MetricsWriter.open(storage, task=task, attempt=attempt)
        for step in steps:
            values = {"loss": 2 / math.sqrt(step), "input_wait": 0.05 * (1 + task.index)}
            writer.append(_rows(storage.run, task, attempt, step, Scope.LOCAL, values))
            if task.index == 0:
                values = {"loss": 2 / math.sqrt(step), "accuracy": 1 - 1 / step}
                writer.append(_rows(storage.run, task, attempt, step, Scope.GLOBAL, values))
        writer.flush()


def _rows(
    run: str, task: TaskId, attempt: int, step: int, scope: Scope, values: Mapping[str, float]
) -> list[MetricRow]:
    return [
        MetricRow(
            run=run,
            attempt=attempt,
            task=task,
            step=step,
            epoch=step // 100,
            wall_time=BEGUN_S + 8 + 22 * attempt + step * 0.1,
            scope=scope,
            name=name,
            value=value,
        )
        for name, value in values.items()
    ]
