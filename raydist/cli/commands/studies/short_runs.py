"""Runs a job for some steps, and reads what its tasks reported."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raydist.cli.job_options import AskedJob
from raydist.cli.running import stopped_at_end
from raydist.cli.screen import output
from raydist.errors import RunCancelledError
from raydist.outcome.status import RunState, Scope
from raydist.planning.batch_sizes import batch_sizes_of
from raydist.runs.scaling import Measurement, TaskReadings, measured
from raydist.runs.strategies_compared import LossCurve
from raydist.spec.tasks import TaskType
from raydist.spec.text import counted

if TYPE_CHECKING:
    from raydist import RunHandle
    from raydist.metrics.curves import Series
    from raydist.outcome.result import RunResult
    from raydist.planning.plan import Plan
    from raydist.spec.job import JobSpec
    from raydist.storage.run_storage import RunStorage

# A task reports its values twice a second: fewer reports say little.
MIN_MEASURED_S = 10.0
_POLL_S = 0.2
_TOO_SHORT = ", before it was stopped: a longer training, with more epochs, is measured better"
# Set for each short run, and so no options of these commands: they do not change the speed of the steps, and
# have effects that a short run should not have.
WITHOUT: dict[str, Any] = {
    **{"on_end": None, "mlflow": None, "keep_best": None},
    **{"resume": False, "detach": False, "export": False},
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run that is asked for.

    Attributes:
      own: The options of this run alone.
    """

    name: str
    own: Mapping[str, Any]
    plan: Plan


@dataclass(frozen=True, kw_only=True)
class ShortRun:
    """One run that was made: how fast it was, and its loss."""

    plan: Plan
    measurement: Measurement
    curve: LossCurve


def case_of(asked: AskedJob, name: str, **own: Any) -> Case:
    """Returns a run with options of its own; raises what a person has to fix."""
    from raydist import api

    plan = api.plan(asked.target, **asked.given(**{**WITHOUT, **own}))
    return Case(name=name, own=own, plan=plan)


def measure(asked: AskedJob, case: Case, *, first: JobSpec, num_steps: int) -> ShortRun:
    """Runs the job until it has made `num_steps`, or ends before.

    Args:
      first: The job of the first run: its name is what the names of all runs begin with.

    Raises:
      RunCancelledError: Something else stopped it. TrainingError, ClusterError: It failed.
    """
    from raydist import api
    from raydist.storage.run_storage import open_run

    name, plan = case.name, case.plan
    run = f"{first.name}-{name.replace(' ', '-')}"
    output.show(f"{name}: run {run}", is_error=True)
    told = _Told()
    handle = api.submit(
        asked.target,
        on_event=told.take,
        **asked.given(**{**WITHOUT, **case.own, "name": run, "study": study_of(first)}),
    )
    result = _stopped_after(handle, num_steps=num_steps)
    if result.state is RunState.SUCCEEDED:
        output.show(f"note: {name} ended after {counted(result.steps, 'step')}{_TOO_SHORT}", is_error=True)
    sizes = batch_sizes_of(plan)
    batch = None if sizes is None else sizes.size
    workers = [one for one in result.tasks if one.task.task_type is TaskType.WORKER]
    memory = [one.peak_memory_bytes for one in workers if one.peak_memory_bytes]
    found = Measurement(
        name=name,
        run=run,
        state=result.state.value,
        strategy=result.strategy,
        workers=plan.num_workers,
        num_hosts=len({one.host for one in workers}) or 1,
        num_cores=int(plan.inventory.num_cpus),
        has_gpus=any(role.resources.num_gpus for role in plan.roles),
        steps=result.steps,
        memory_bytes=max(memory, default=None),
        batch=batch,
        **measured(_readings(open_run(plan.job.storage, run=run), told.curve), batch=batch),
    )
    return ShortRun(plan=plan, measurement=found, curve=told.curve)


def study_of(first: JobSpec) -> str:
    """Returns the study of the runs: that of --study, or their common name."""
    return first.study or first.name


class _Told:
    """The chief's loss by step, as the run tells it: the last values of a stopped run may not be stored."""

    def __init__(self) -> None:
        self._points: list[tuple[int, float, float | None]] = []

    @property
    def curve(self) -> LossCurve:
        begun_s = self._points[0][1] if self._points else 0.0
        return LossCurve(
            steps=[step for step, _, _ in self._points],
            seconds=[at_s - begun_s for _, at_s, _ in self._points],
            losses=[loss for _, _, loss in self._points],
        )

    def take(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "progress" and event["step"] > (self._points[-1][0] if self._points else 0):
            self._points.append((event["step"], event["at_s"], event["metrics"].get("loss")))


def _stopped_after(handle: RunHandle, *, num_steps: int) -> RunResult:
    """Waits until the run has made its steps, stops it, and returns its result."""
    is_done, first_seen_s = False, None
    with stopped_at_end(handle):
        while not (is_done or (status := handle.status()).state.is_terminal):
            time.sleep(_POLL_S)
            if first_seen_s is None and status.steps:
                first_seen_s = time.monotonic()
            is_long = first_seen_s is not None and time.monotonic() - first_seen_s >= MIN_MEASURED_S
            is_done = is_long and status.steps >= num_steps
    result = handle.status()
    if not is_done and result.state is RunState.CANCELLED:
        raise RunCancelledError(f"run {handle.name} was stopped before it had made its steps")
    return result


def _readings(run: RunStorage, curve: LossCurve) -> dict[str, TaskReadings]:
    """Returns what each task stored; of parameter servers, where none does, the steps that the chief told."""
    from raydist.metrics.curves import series_of
    from raydist.metrics.reading import read_columns

    found: dict[str, dict[str, Series]] = {}
    for one in series_of(read_columns(run, scope=Scope.LOCAL), scope=Scope.LOCAL):
        if not one.is_repeated:
            found.setdefault(one.task, {})[one.name] = one
    if not found:
        return {"chief/0": TaskReadings(steps=curve.steps, times=curve.seconds)}
    return {task: _readings_of(by_name) for task, by_name in found.items()}


def _readings_of(by_name: Mapping[str, Series]) -> TaskReadings:
    def values(name: str) -> list[float]:
        one = by_name.get(name)
        return [] if one is None else one.values.tolist()

    longest = max(by_name.values(), key=len)
    return TaskReadings(
        steps=longest.steps.tolist(),
        times=longest.times.tolist(),
        examples_per_s=values("examples_per_s"),
        input_wait=values("input_wait"),
        collective_wait=values("collective_wait"),
    )
