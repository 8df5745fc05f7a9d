"""From a job and what the hosts have to the plan of an attempt."""

from __future__ import annotations

import math

from raydist.errors import SpecError, UnsupportedError
from raydist.planning.capacity import check_fits, num_fitting
from raydist.planning.inventory import Inventory
from raydist.planning.plan import Plan
from raydist.planning.strategy import Sources, choose_strategy, most_gpus
from raydist.spec.job import CheckpointUnit, JobSpec, KerasFlavour, Strategy
from raydist.spec.layers import Source
from raydist.spec.tasks import Resources, Role, TaskType

_DEFAULT_DEVICES = 2  # the fewest with which several replicas really exist


def make_plan(
    job: JobSpec, sources: Sources, inventory: Inventory, *, wants_legacy_keras: bool = False
) -> Plan:
    """Returns what to launch.

    Args:
      sources: Where each option was set; decides which of two contradicting ones gives way.
      wants_legacy_keras: Whether the job's source imports tf_keras.

    Raises:
      MistakeError: What was asked contradicts itself, or is not available.
      ClusterError: The hosts can never give it.
    """
    if job.checkpoint_every.unit is CheckpointUnit.SECONDS:
        raise UnsupportedError(
            f"checkpoint_every is {job.checkpoint_every}; saving by seconds is not available yet: "
            "give a number of steps, or epoch"
        )
    choice = choose_strategy(job, sources, inventory)
    job, strategy, notes = choice.job, choice.strategy, list(choice.notes)
    resources = Resources(
        num_cpus=job.cpus_per_worker,
        num_gpus=_gpus_per_worker(job, strategy, inventory, notes),
        num_tpus=_tpu_chips(strategy, inventory),
    )
    num_workers = _num_workers(job, resources, inventory, notes)
    check_fits(inventory, resources, num_tasks=num_workers)
    devices = _devices(job, strategy, sources, resources.num_gpus, notes)
    keras, keras_reason = choose_keras(job, wants_legacy_keras=wants_legacy_keras)
    if job.keras is KerasFlavour.AUTO and keras is KerasFlavour.LEGACY:
        notes.append(f"tf.keras is tf_keras: {keras_reason}")
    if job.partitioner is not None:
        notes.append(f"partitioner {job.partitioner} has no effect: only parameter_server shards variables")
    return Plan(
        job=job,
        inventory=inventory,
        strategy=strategy,
        keras=keras,
        reason=choice.reason,
        keras_reason=keras_reason,
        roles=(Role(task_type=TaskType.WORKER, num_tasks=num_workers, resources=resources),),
        devices=devices,
        embedded_cpus=_embedded_cpus(num_workers * resources.num_cpus, inventory, notes),
        notes=tuple(notes),
    )


def choose_keras(job: JobSpec, *, wants_legacy_keras: bool) -> tuple[KerasFlavour, str]:
    """Returns what `tf.keras` is in the tasks, never AUTO, and why."""
    if job.keras is not KerasFlavour.AUTO:
        return job.keras, f"keras {job.keras.value} was set"
    if wants_legacy_keras:
        return KerasFlavour.LEGACY, "the job's source imports tf_keras"
    if job.partitioner is not None:
        return KerasFlavour.LEGACY, "a partitioner is asked for, which Keras 3 does not know"
    return KerasFlavour.KERAS_3, "the job's source does not import tf_keras"


def _gpus_per_worker(job: JobSpec, strategy: Strategy, inventory: Inventory, notes: list[str]) -> int:
    asked = job.gpus_per_worker
    match strategy:
        case Strategy.TPU:
            return 0
        case Strategy.ONE_DEVICE:
            if (asked or 0) > 1:
                notes.append(f"gpus_per_worker {asked} becomes 1: one_device uses one")
            return min(1, most_gpus(inventory) if asked is None else asked)
        case Strategy.MULTI_WORKER_MIRRORED:
            return _gpus_of_each(job, inventory, notes) if asked is None else asked
        case _:
            return most_gpus(inventory) if asked is None else asked


def _gpus_of_each(job: JobSpec, inventory: Inventory, notes: list[str]) -> int:
    """One GPU for each worker or for none, as all workers must have the same number."""
    num_gpus, minimum = inventory.num_gpus, job.workers.minimum
    if 0 < num_gpus < minimum:
        notes.append(
            f"no worker uses a GPU: {minimum} workers need one each, and {inventory.source} has {num_gpus}; "
            f"--workers {num_gpus} would use them"
        )
    if num_gpus > job.workers.maximum:
        notes.append(f"each worker uses 1 of {num_gpus} GPUs; --gpus-per-worker N gives it more")
    return 1 if num_gpus >= minimum else 0


def _tpu_chips(strategy: Strategy, inventory: Inventory) -> float:
    """All chips of a host; 0 for a TPU that is reached by its name alone."""
    if strategy is not Strategy.TPU:
        return 0.0
    return max((host.num_tpus for host in inventory.hosts), default=0.0)


def _num_workers(job: JobSpec, resources: Resources, inventory: Inventory, notes: list[str]) -> int:
    """The most workers of the range that fit without sharing cores, at least the range's minimum."""
    workers = job.workers
    num_workers = min(max(num_fitting(inventory, resources), workers.minimum), workers.maximum)
    if num_workers < workers.maximum:
        notes.append(f"{num_workers} of {workers} workers: {inventory.source} has no room for more")
    if inventory.can_grow and num_workers > num_fitting(inventory, resources):
        notes.append(
            f"{inventory.source} has no room for {num_workers} workers yet: waits for its autoscaler"
        )
    return num_workers


def _devices(
    job: JobSpec, strategy: Strategy, sources: Sources, num_gpus: int, notes: list[str]
) -> int | None:
    if strategy in (Strategy.MIRRORED, Strategy.CENTRAL_STORAGE) and num_gpus == 0:
        if job.devices is None:
            notes.append(
                f"{strategy.value} without GPUs uses {_DEFAULT_DEVICES} logical CPU devices; "
                "--devices N sets the number"
            )
        return job.devices or _DEFAULT_DEVICES
    if (job.devices or 1) == 1:
        return None
    is_multi_worker = strategy is Strategy.MULTI_WORKER_MIRRORED
    # Either of the two made it this strategy, and may outrank a number of devices meant for another.
    decided = max(sources["workers"], sources["strategy"] if job.strategy is strategy else Source.BUILT_IN)
    if is_multi_worker and num_gpus == 0 and sources["devices"] >= decided:
        raise SpecError(
            f"devices is {job.devices}, but TensorFlow's multi_worker_mirrored has one CPU replica per "
            "worker; drop --devices and add --workers, or use --strategy mirrored"
        )
    why = "the task has GPUs" if num_gpus else f"{strategy.value} has one replica per task"
    notes.append(f"devices {job.devices} is not used: {why}")
    return None


def _embedded_cpus(needed: float, inventory: Inventory, notes: list[str]) -> int | None:
    if not inventory.is_embedded:
        return None
    num_cores = int(inventory.num_cpus)
    num_cpus = max(math.ceil(needed), num_cores)
    if num_cpus > num_cores:
        cores = "1 core is" if num_cores == 1 else f"{num_cores} cores are"
        notes.append(f"{cores} shared by {num_cpus} logical CPUs, so tasks run slower than on their own")
    return num_cpus
