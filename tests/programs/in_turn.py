"""Runs programs one after another in the same processes, whose start is most of what a short one costs."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.programs.outcome import Outcome
from tests.support.processes import PATIENCE, Cluster, TaskProcess, run_function, started

CLUSTERS = {
    "one device": {},
    "2 workers": {"strategy": "multi_worker_mirrored", "workers": 2},
    "2 devices": {"strategy": "mirrored", "devices": 2},
}
LIMIT_S = 150 * PATIENCE  # of one program: what hangs in a collective hangs for ever


@dataclass(frozen=True, kw_only=True)
class Done:
    """What a program left in one task.

    Attributes:
      error: Its traceback, or the end of what the task printed; None where it came to its end.
      notes: What the run told about it.
      seconds: Of CPU time, which does not depend on who else uses the machine.
      restored_step: Where it continued; 0 in a first attempt.
    """

    task: str
    outcome: Outcome | None = None
    error: str | None = None
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    step: int = 0
    restored_step: int = 0

    @property
    def trained(self) -> Outcome:
        """The outcome of a program that came to its end; of another one the error is raised."""
        assert self.outcome is not None, self.error
        return self.outcome


def run_programs(
    names: Sequence[str], cluster: Cluster, *, job_options: Mapping[str, Any] | None = None, **options: Any
) -> dict[str, list[Done]]:
    """Returns by name what each program left, in the order of the tasks.

    A program that fails, ends its process or hangs does not hide the others: they continue in new ones.

    Args:
      options: As of `run_function`, and of `in_task.run`.
    """
    results: dict[str, list[Done]] = {}
    left = list(names)
    while left:
        with tempfile.TemporaryDirectory(prefix="raydist-programs-") as folder:
            printed = ""
            try:
                run_function(
                    "tests.programs.in_task:run",
                    cluster,
                    names=left,
                    folder=folder,
                    limit_s=LIMIT_S,
                    timeout_s=150 + 60 * len(left),
                    job_options={"export": False, **(job_options or {})},
                    **options,
                )
            except AssertionError as error:
                printed = str(error)
            places = [Path(folder, task.replace("/", "-")) for task in cluster.tasks[: cluster.finishing]]
            done = [name for name in left if all((place / f"{name}.npz").exists() for place in places)]
            for name in done:
                results[name] = [_read(place, name) for place in places]
            rest = [name for name in left if name not in done]
            if rest and not printed:
                raise AssertionError(f"{rest[0]} left nothing")
            if rest:
                results[rest[0]] = [_failed(place, rest[0], printed) for place in places]
            left = rest[1:]
    return results


def cluster_of(name: str, keras: str) -> Cluster:
    """Returns one of CLUSTERS for a Keras."""
    return Cluster(**CLUSTERS[name], keras=keras)


@contextmanager
def killed(
    name: str, cluster: Cluster, *, after: int, storage: Path, job_options: Mapping[str, Any], **options: Any
) -> Iterator[TaskProcess]:
    """Starts a program; yields the task that is killed after so many calls of its train function.

    The others are killed at the end of the block.
    """
    with (
        tempfile.TemporaryDirectory(prefix="raydist-programs-") as folder,
        started(
            "tests.programs.in_task:run",
            cluster,
            names=[name],
            folder=folder,
            limit_s=LIMIT_S,
            kill_after=after,
            storage=storage,
            job_options={"export": False, **job_options},
            **options,
        ) as tasks,
    ):
        yield tasks[-1]


def read_outcome(place: Path, name: str) -> Outcome:
    """Returns what `in_task.store_outcome` has stored."""
    with np.load(place / f"{name}.npz") as arrays:
        parts: dict[str, dict[str, np.ndarray]] = {"variables": {}, "history": {}}
        for key, array in arrays.items():
            part, _, rest = key.partition("/")
            parts[part][rest] = array
    return Outcome(**parts)


def _read(place: Path, name: str) -> Done:
    values = json.loads((place / f"{name}.json").read_text())
    return Done(
        task=place.name, outcome=read_outcome(place, name), **{**values, "notes": tuple(values["notes"])}
    )


def _failed(place: Path, name: str, printed: str) -> Done:
    error = place / f"{name}.error"
    return Done(task=place.name, error=error.read_text() if error.exists() else printed)
