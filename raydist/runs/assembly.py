"""Puts a run's controller together, out of what decides and what acts, wherever it is to live."""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from raydist.controller.controller import Controller
from raydist.controller.events import StoredCheckpoint
from raydist.controller.gauges import RunGauges
from raydist.controller.journal import OUTPUT, PROGRESS, REPORT
from raydist.controller.machine import RunMachine
from raydist.controller.result import RunPlaces
from raydist.controller.revival import Reached, Revival
from raydist.controller.task_group import SystemClock
from raydist.outcome.result import RunResult
from raydist.planning.describe import describe_job, describe_plan
from raydist.planning.plan import Plan
from raydist.runs.evidence import Evidence
from raydist.runs.hooks import run_command
from raydist.runtime.cluster.ray_gauges import RayGauges
from raydist.runtime.group.group import LaunchSpec
from raydist.runtime.group.launcher import RayLauncher
from raydist.spec.job import JobSpec
from raydist.storage.checkpoints import CheckpointStore
from raydist.storage.provenance import CodeRecord
from raydist.storage.run_folder import RunFolder
from raydist.storage.run_record import RunRecord
from raydist.storage.run_storage import open_run
from raydist.storage.segments import EventWriter
from raydist.tracking.mlflow_client import check_tracking_uri
from raydist.tracking.mlflow_tracker import MlflowTracker
from raydist.tracking.pod_progress import Pod, PodTracker
from raydist.tracking.tracker import Tracker

EventHook = Callable[[Mapping[str, Any]], None]


def make_controller(
    plan: Plan,
    launch: LaunchSpec,
    folder: RunFolder,
    events: EventWriter,
    *,
    traced: CodeRecord | None,
    driver: Mapping[str, Any],
    tell: EventHook,
    tell_notes: Callable[[], tuple[str, ...]] = tuple,
    ray_s: float = 0.0,
    revival: Revival | None = None,
) -> Controller:
    """Returns a run's controller; starts nothing.

    Args:
      launch: What its attempts are started with. A copy of the code is kept.
      traced: Where the code comes from.
      driver: Who drives the run, as raydist.storage.claims describes it.
      tell: Called with each event, as raydist.controller.journal describes them.
      tell_notes: Returns the sentences of `tell` for the run's notes so far.
      ray_s: Seconds that the call had taken already, when Ray was connected.
      revival: Where to continue a run whose controller died; None for a new run.
    """

    def record(result: RunResult) -> None:
        if gauges is not None:
            gauges.publish()
        known = evidence.facts(is_final=result.state.is_terminal)
        whole = RunRecord.of(result, **constants, **known, failures=machine.history)
        folder.write_record(whole)
        for tracker in trackers:
            tracker.update(whole)
        evidence.keep(launch.code, folder)  # a run that could not be recorded leaves nothing

    def on_event(event: Mapping[str, Any]) -> None:
        tell(event)
        if event["event"] in (PROGRESS, REPORT, OUTPUT):
            events.tick()
        else:
            events.append(event)

    trackers, before = _trackers(plan.job), folder.before
    evidence = Evidence(traced, before=before, has_same_bits=plan.job.virtual_replicas is not None)
    constants: dict[str, Any] = {
        "spec": describe_job(plan.job),
        "plan": describe_plan(plan),
        "driver": dict(driver),
        "datasets": tuple(sorted(launch.datasets)),  # a resume has to give them again
    }
    machine = (
        RunMachine(
            plan,
            first_attempt=folder.first_attempt,
            reached=None if before is None else Reached(metrics=before.metrics, best=before.best),
        )
        if revival is None
        else RunMachine.revived(plan, revival)
    )
    clock = SystemClock()
    # The process of a client is none of the cluster's, and nothing of it is collected.
    gauges = None if launch.connection.is_client else RunGauges(machine, RayGauges(), clock=clock)
    on_event(planned_event(plan, ray=launch.connection.source))
    return Controller(
        machine,
        launcher=RayLauncher(plan, dataclasses.replace(launch, on_hello=evidence.take)),
        clock=clock,
        places=RunPlaces(storage=folder.uri, task_logs=folder.task_logs),
        record=record,
        on_event=on_event,
        newest_checkpoint=functools.partial(_newest_checkpoint, plan.job),
        more_notes=lambda: (
            *(*tell_notes(), *evidence.notes()),
            *(note for tracker in trackers for note in tracker.notes()),
        ),
        on_end=functools.partial(_after_end, job=plan.job, trackers=trackers),
        ray_s=ray_s,
        revival=revival,
    )


def _newest_checkpoint(job: JobSpec) -> StoredCheckpoint | None:
    newest = CheckpointStore(open_run(job.storage, run=job.name)).newest()
    return None if newest is None else StoredCheckpoint(step=newest.step, uri=newest.uri)


def _trackers(job: JobSpec) -> list[Tracker]:
    found: list[Tracker] = []
    if job.mlflow is not None:
        check_tracking_uri(job.mlflow)  # on this host, which a detached run's submitter is not on
        name = str(job.entry_point).strip("<>")
        found.append(MlflowTracker(job.mlflow, open_run(job.storage, run=job.name), job=name))
    if (pod := Pod.of_process(os.environ)) is not None:
        found.append(PodTracker(pod))
    return found


def _after_end(result: RunResult, *, job: JobSpec, trackers: Sequence[Tracker]) -> str | None:
    """Does what the job asks for at the end of its run; returns what went wrong, else None."""
    sentences = [tracker.finish() for tracker in trackers]  # first: the command may look at what MLflow has
    if job.on_end is not None:
        sentences.append(run_command(job.on_end, result, storage=job.storage))
    return "; ".join(one for one in sentences if one is not None) or None


def planned_event(plan: Plan, *, ray: str) -> dict[str, Any]:
    """Returns the event of what is going to be launched, and on which Ray."""
    return {"event": "planned", "at_s": time.time(), "ray": ray, **describe_plan(plan)}
