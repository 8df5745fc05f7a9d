"""What the controller would make of the paces that tasks have told, one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raydist.outcome.result import Straggler
from raydist.outcome.status import TaskLink, TaskPace
from raydist.stragglers.watch import StragglerWatch
from tests.support.fakes import make_status


def stragglers(paces: Mapping[str, Sequence[Mapping[str, Any]]]) -> tuple[Straggler, ...]:
    """Returns the tasks that are named, with samples of 2 s.

    Args:
      paces: Each task's, as dicts.
    """
    watch = StragglerWatch(sample_s=2.0)
    for moment in zip(*paces.values(), strict=False):
        statuses = [make_status(name, pace=_pace(told)) for name, told in zip(paces, moment, strict=True)]
        watch.take(statuses)
    return watch.stragglers


def _pace(told: Mapping[str, Any]) -> TaskPace:
    return TaskPace(**{**told, "links": tuple(TaskLink(**link) for link in told["links"])})


def worker_stragglers(told: Sequence[Sequence[tuple[float, int]]]) -> tuple[Straggler, ...]:
    """Returns the workers of parameter servers that are named, with samples of 2 s.

    Args:
      told: At each moment (seconds, steps) of each worker, as the chief has told them.
    """
    watch = StragglerWatch(sample_s=2.0)
    for sums in told:
        paces = tuple(TaskPace(at_s=seconds, steps=steps) for seconds, steps in sums)
        own = TaskPace(at_s=sum(one.at_s for one in paces), steps=sum(one.steps for one in paces))
        chief = make_status("chief/0", pace=own, worker_paces=paces)
        watch.take([chief, *(make_status(f"worker/{index}") for index in range(len(paces)))])
    return watch.stragglers
