"""Runs jobs of jobs/ in a task that has started already. Imports TensorFlow inside only."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raydist.entry.entry_point import load_object
from raydist.errors import RaydistError
from raydist.spec.job import EntryPoint

JOBS = Path(__file__).parents[2] / "jobs"


def load(job: str, name: str = "train") -> Any:
    """Returns what `jobs/<job>.py` has under a name, loaded as a task loads it."""
    return load_object(EntryPoint(function=name, file=f"{job}.py"), working_dir=JOBS)


def run_job(ctx: Any, *, job: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Runs a job with its own defaults and `params`.

    Returns:
      `reports`: the values of each `ctx.report`, in order, and `values`: the last value of each name.
      `notes`: what it noted. `output`: what the task printed meanwhile. `stored`: the files of the run.
      `error`: of raydist, that the job ended with; else None.
    """
    import tensorflow as tf

    loaded = load(job)
    defaults = dict(loaded.defaults["params"]) if "params" in loaded.defaults else {}
    assert set(params or {}) <= set(defaults), f"{job} has the params {sorted(defaults)}"
    ctx.params = {**defaults, **(params or {})}
    reports: list[dict[str, float]] = []
    notes: list[str] = []
    report, note = type(ctx).report, type(ctx).note

    def recorded_report(values: Mapping[str, Any], *, step: int | None = None) -> None:
        report(ctx, values, step=step)
        reports.append({name: _float(value) for name, value in values.items()})

    def recorded_note(sentence: str) -> None:
        note(ctx, sentence)
        notes.append(sentence)

    ctx.report, ctx.note = recorded_report, recorded_note
    tf.keras.utils.set_random_seed(0)  # as a session does, whatever job this task has run before
    printed = Path(os.readlink("/proc/self/fd/1"))
    begin, error = printed.stat().st_size, None
    try:
        loaded.function(ctx)
    except RaydistError as raised:
        error = str(raised)
    sys.stdout.flush()
    return {
        "reports": reports,
        "values": {name: value for values in reports for name, value in values.items()},
        "notes": notes,
        "output": printed.read_bytes()[begin:].decode(errors="replace"),
        "stored": [str(path.relative_to(ctx.storage)) for path in Path(ctx.storage).rglob("*")],
        "error": error,
    }


def choices(ctx: Any, *, hosts: Mapping[str, Mapping[str, list[str]]]) -> dict[str, Any]:
    """Returns what device_choice.py chooses for hosts of these devices."""
    choose = load("device_choice", "choose")
    chosen = {name: choose(**devices) for name, devices in hosts.items()}
    return {name: [strategy.__name__, devices] for name, (strategy, devices) in chosen.items()}


def _float(value: Any) -> float:
    return float(value.numpy() if hasattr(value, "numpy") else value)
