"""Unequal shares of the batch: where they are possible, and what they are in a plan."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from raydist.data.order.steps import rows_of_worker
from raydist.errors import SpecError
from raydist.planning.plan import Plan
from raydist.spec.job import JobSpec, Strategy
from raydist.spec.tasks import TaskId, TaskType
from raydist.spec.text import counted

# What measured shares add up to: finer ones would be finer than what is measured.
_WHOLE = 100
# What else has to have its default: raydist itself has to divide batches, and to weigh the parts.
_NEEDED = {
    "patch_keras": (True, "raydist's patches of Keras weigh each worker's rows; drop --no-patch-keras"),
    "check_equality": (True, "losses have to be checked; drop --no-check-equality"),
    "auto_shard": ("data", "TensorFlow then divides the data; drop --auto-shard"),
    "data_workers": (0, "data workers divide the data by themselves; drop --data-workers"),
}


def check_shares(job: JobSpec, strategy: Strategy, *, num_devices: int, num_gpus: int) -> None:
    """Raises SpecError for shares that the strategy, or another option, makes impossible.

    Args:
      num_devices: Of each worker, `num_gpus` of them GPUs.
    """
    if job.shares is None:
        return
    told = f"shares is {job.shares}, but"
    if strategy is not Strategy.MULTI_WORKER_MIRRORED:
        raise SpecError(
            f"{told} strategy is {strategy.value}, in which no workers divide a batch; use "
            "--strategy multi_worker_mirrored with --workers 2 or more, or leave --shares out"
        )
    weights, workers = job.shares.weights, job.workers
    if not job.shares.is_auto and workers.minimum != workers.maximum:
        raise SpecError(
            f"{told} workers is {workers}, and shares are of one number of workers; give --workers "
            f"{len(weights)}, or --shares auto"
        )
    if not job.shares.is_auto and len(weights) != workers.maximum:
        raise SpecError(
            f"{told} workers is {workers}; give {counted(workers.maximum, 'number')}, one for each worker"
        )
    for name, (value, why) in _NEEDED.items():
        if getattr(job, name) != value:
            raise SpecError(f"{told} {name} is {getattr(job, name)}: {why} or --shares")
    if job.shares.is_auto and (job.virtual_replicas is not None or num_gpus):
        cause = "the workers have GPUs" if num_gpus else f"virtual_replicas is {job.virtual_replicas}"
        raise SpecError(
            f"{told} {cause}, with which raydist does not measure the workers' waits; write a number for "
            "each worker, such as 3,1"
        )
    if job.virtual_replicas is not None:
        counts = [rows_of_worker(job.virtual_replicas, one, weights)[1] for one in range(len(weights))]
        if min(counts) < num_devices:
            raise SpecError(
                f"{told} virtual_replicas is {job.virtual_replicas}, of which worker/"
                f"{counts.index(min(counts))} would have {min(counts)} for {counted(num_devices, 'device')}; "
                "use more --virtual-replicas"
            )


def notes_on_shares(job: JobSpec) -> list[str]:
    """Returns what a plan says of the shares."""
    if job.shares is None:
        return []
    if job.shares.is_auto:
        return ["workers take equal parts of each batch, until a restart gives faster ones larger parts"]
    return [f"workers take {job.shares} parts of each batch, in the order of their indices"]


def shares_of(plan: Plan, addresses: Mapping[TaskId, str]) -> tuple[int, ...]:
    """Returns what each worker of an attempt takes of a batch, in order; empty where all take as much.

    Measured speeds are those of the hosts' workers: another attempt may have them in another order.

    Args:
      addresses: `host:port` of each task.
    """
    if plan.job.shares is None or plan.strategy is not Strategy.MULTI_WORKER_MIRRORED:
        return ()
    if not plan.job.shares.is_auto:
        return plan.job.shares.weights
    slots = slots_of(addresses)
    speeds = [plan.speeds.get(slot) for slot in slots.values()]
    known = [one for one in speeds if one is not None]
    if len(known) < len(speeds):  # an unknown host: it is measured
        return ()
    return tuple(max(1, round(_WHOLE * one / sum(known))) for one in known)


def slots_of(addresses: Mapping[TaskId, str]) -> dict[TaskId, str]:
    """Returns `host#0` and so on for each worker, in order: its host, and which of its workers it is."""
    found: dict[TaskId, str] = {}
    counts: defaultdict[str, int] = defaultdict(int)
    workers = (task for task in addresses if task.task_type is TaskType.WORKER)
    for task in sorted(workers, key=lambda task: task.index):
        host = addresses[task].rpartition(":")[0]
        found[task] = f"{host}#{counts[host]}"
        counts[host] += 1
    return found
