"""From a job and what the hosts have to the plan of an attempt."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from raydist.errors import SpecError
from raydist.planning.capacity import check_fits
from raydist.planning.fitting import check_memory_retry
from raydist.planning.inventory import Inventory
from raydist.planning.plan import Plan
from raydist.planning.roles import make_roles
from raydist.planning.shares import check_shares, notes_on_shares
from raydist.planning.strategy import Origins, check_communication, choose_strategy, without_unused
from raydist.planning.threads import threads_per_worker
from raydist.spec.job import NO_FACTS, JobSpec, KerasFlavour, SourceFacts, Strategy, Success
from raydist.spec.settings.resolution import Origin
from raydist.spec.tasks import ACCELERATOR_TYPE, AnyRole, TaskType
from raydist.spec.text import counted, listed

_PLENTY = 1e9


def with_custom_resources(inventory: Inventory, job: JobSpec) -> Inventory:
    """Returns the inventory, for an embedded Ray with as much as is asked for of the cluster's own resources.

    They are names that `ray start --resources` gave to hosts, and say nothing of this machine. So a job runs
    here as it does there.
    """
    if not inventory.is_embedded:
        return inventory
    asked = (
        *(job.resources_of(one).resources for one in TaskType),
        *(dict(role.resources.custom) for role in job.roles.values()),
    )
    names = {name for each in asked for name in each if not name.startswith(ACCELERATOR_TYPE)}
    hosts = tuple(
        dataclasses.replace(host, custom={**host.custom, **dict.fromkeys(names, _PLENTY)})
        for host in inventory.hosts
    )
    return dataclasses.replace(inventory, hosts=hosts)


def embedded_resources(roles: Sequence[AnyRole], inventory: Inventory) -> dict[str, float]:
    """Returns what an embedded Ray has to be told of memory and custom resources; empty for any other."""
    if not inventory.is_embedded:
        return {}
    needed: dict[str, float] = {}
    for role in roles:
        for name, amount in role.resources.custom:
            needed[name] = needed.get(name, 0.0) + amount * role.num_tasks
    if any(role.resources.memory_bytes for role in roles):
        needed["memory"] = float(inventory.hosts[0].memory_bytes)
    # Ray takes parts of 1, or whole numbers.
    return {name: amount if amount <= 1 else math.ceil(amount) for name, amount in needed.items()}


_WITH_VIRTUAL_REPLICAS = (Strategy.ONE_DEVICE, Strategy.MIRRORED, Strategy.MULTI_WORKER_MIRRORED)
WITH_DEFAULT_STRATEGY = (*_WITH_VIRTUAL_REPLICAS, Strategy.CENTRAL_STORAGE, Strategy.PARAMETER_SERVER)
_DEFAULT_DEVICES = 2  # the fewest with which several replicas really exist


def make_plan(
    job: JobSpec, origins: Origins, inventory: Inventory, *, source: SourceFacts = NO_FACTS
) -> Plan:
    """Returns what to launch.

    Args:
      origins: Where each option was set; decides which of two contradicting ones gives way.
      source: What the job's source says.

    Raises:
      MistakeError: What was asked contradicts itself, or is not available.
      ClusterError: The hosts can never give it.
    """
    check_memory_retry(job)
    choice = choose_strategy(job, origins, inventory)
    job, strategy, notes = choice.job, choice.strategy, list(choice.notes)
    keras, keras_reason = choose_keras(job, strategy, legacy_keras_reason=source.legacy_keras_reason)
    inventory = with_custom_resources(inventory, job)
    roles = make_roles(job, strategy, inventory, notes)
    all_roles: tuple[AnyRole, ...] = (*roles, *job.roles.values())
    check_fits(inventory, all_roles)
    # Of a task that trains.
    num_gpus = max(role.resources.num_gpus for role in roles if role.task_type is TaskType.WORKER)
    devices = _devices(job, strategy, origins, num_gpus > 0, notes)
    job = without_unused(job, strategy, origins, notes)
    check_communication(job, strategy, num_gpus=num_gpus, devices=devices)
    notes += _without_effect(job, strategy)
    job = _with_usable_standby(job, inventory, notes)
    _check_virtual_replicas(job, strategy, num_devices=devices or max(num_gpus, 1))
    check_shares(job, strategy, num_devices=devices or max(num_gpus, 1), num_gpus=num_gpus)
    notes += notes_on_shares(job)
    is_elastic = job.workers.minimum < job.workers.maximum and strategy is Strategy.MULTI_WORKER_MIRRORED
    if is_elastic and job.virtual_replicas is None:
        # Not chosen for the user: with one thread for each, hosts with many cores would be slower.
        notes.append(
            "results depend on how many workers an attempt has; "
            f"--virtual-replicas {job.workers.maximum} gives the same bits for any number"
        )
    if job.params and job.entry_point.is_script and not source.imports_raydist:
        notes.append(
            f"{listed(job.params)} given with -p has no effect: {job.entry_point} does not import raydist, "
            "whose context().params has params; a script's own options come after --"
        )
    builds_none = job.default_strategy and source.strategy_use is None and strategy in WITH_DEFAULT_STRATEGY
    num_workers = 1 if strategy.is_single_host else job.workers.maximum
    num_replicas = num_workers * max(num_gpus, devices or 1)
    if builds_none and num_replicas > 1:
        notes.append(
            _note_on_default_strategy(job, strategy, num_workers, num_replicas, own_loop=source.own_loop)
        )
    return Plan(
        job=job,
        inventory=inventory,
        strategy=strategy,
        keras=keras,
        reason=choice.reason,
        keras_reason=keras_reason,
        roles=roles,
        devices=devices,
        has_default_strategy=builds_none and source.own_loop is None,
        has_own_loop=builds_none and source.own_loop is not None,
        worker_threads=threads_per_worker(job, origins, roles, inventory),
        embedded_cpus=_embedded_cpus(all_roles, inventory, notes),
        embedded_resources=embedded_resources(all_roles, inventory),
        notes=tuple(notes),
    )


def _note_on_default_strategy(
    job: JobSpec, strategy: Strategy, num_workers: int, num_replicas: int, *, own_loop: str | None
) -> str:
    on = f"{num_workers} workers" if num_workers > 1 else f"{num_replicas} devices"
    if own_loop is None:
        return f"{job.entry_point} builds no strategy: its models train on all {on}"
    if strategy is Strategy.PARAMETER_SERVER:
        effect = "the chief runs all of it"
    else:
        effect = f"each of {on} runs all of it" if num_workers > 1 else "it runs on one device"
    return (
        f"{own_loop}, updates weights in a loop of its own, so {effect}; give the step to ctx.train_steps to "
        f"divide its batches among {on} (raydist guide writing-a-job)"
    )


def _with_usable_standby(job: JobSpec, inventory: Inventory, notes: list[str]) -> JobSpec:
    """Returns the job, without standbys on a Ray that can have none; raises SpecError for an elastic one."""
    if not job.standby:
        return job
    if job.workers.minimum != job.workers.maximum:
        raise SpecError(
            f"standby is {job.standby}, but workers is {job.workers}: an elastic run continues with the "
            "workers that are left; leave --standby out, or give a number of workers"
        )
    if inventory.is_embedded:
        notes.append("standby has no effect: an embedded Ray has one host, and ends with it")
        return dataclasses.replace(job, standby=0)
    if len(inventory.hosts) == 1:
        notes.append("standby waits for another host: Ray has only one")
    return job


def _check_virtual_replicas(job: JobSpec, strategy: Strategy, *, num_devices: int) -> None:
    """Raises SpecError for virtual replicas that the strategy does not have, or too few of them.

    Args:
      num_devices: Of each worker, on which it computes replicas.
    """
    if job.virtual_replicas is None:
        return
    if strategy not in _WITH_VIRTUAL_REPLICAS:
        names = ", ".join(one.value for one in _WITH_VIRTUAL_REPLICAS)
        raise SpecError(
            f"virtual_replicas is {job.virtual_replicas}, but strategy is {strategy.value}, which has none; "
            f"use one of {names}"
        )
    if not job.patch_keras:
        raise SpecError(
            f"virtual_replicas is {job.virtual_replicas}, which need raydist's patches of Keras, and "
            "patch_keras is off; drop --no-patch-keras or --virtual-replicas"
        )
    needed = job.workers.maximum * num_devices
    if job.virtual_replicas < needed:
        workers, devices = counted(job.workers.maximum, "worker"), counted(num_devices, "device")
        raise SpecError(
            f"virtual_replicas is {job.virtual_replicas}, too few for {workers} of {devices}, each of which "
            f"computes one; use --virtual-replicas {needed} or more"
        )
    if job.compress_gradients != "none":
        raise SpecError(
            "compress_gradients rounds what workers send each other, so results would depend on their "
            "number; leave it or virtual_replicas out"
        )


def choose_keras(
    job: JobSpec, strategy: Strategy, *, legacy_keras_reason: str | None
) -> tuple[KerasFlavour, str]:
    """Returns what `tf.keras` is in the tasks, never AUTO, and why.

    Raises:
      SpecError: Keras 3 is asked for with shards, which it cannot train.
    """
    is_sharded = job.partitioner is not None and strategy is Strategy.PARAMETER_SERVER
    if job.keras is KerasFlavour.KERAS_3 and is_sharded:
        raise SpecError(
            f"keras is 3, but partitioner is {job.partitioner} and Keras 3 has no sharded variables; "
            "use --keras legacy, or --partitioner none"
        )
    if job.keras is not KerasFlavour.AUTO:
        return job.keras, f"keras {job.keras.value} was set"
    if legacy_keras_reason is not None:
        return KerasFlavour.LEGACY, legacy_keras_reason
    if job.partitioner is not None:
        return KerasFlavour.LEGACY, "a partitioner is asked for, and Keras 3 has no sharded variables"
    return KerasFlavour.KERAS_3, "nothing in the job's source needs Keras 2"


def _devices(
    job: JobSpec, strategy: Strategy, origins: Origins, has_gpus: bool, notes: list[str]
) -> int | None:
    if strategy in (Strategy.MIRRORED, Strategy.CENTRAL_STORAGE) and not has_gpus:
        if job.devices is None:
            notes.append(
                f"{strategy.value} without GPUs uses {_DEFAULT_DEVICES} logical CPU devices; "
                "--devices N sets the number"
            )
        return job.devices or _DEFAULT_DEVICES
    if (job.devices or 1) == 1:
        return None
    # Either of the two made it this strategy, and may outrank a number of devices meant for another.
    deciding = "ps" if strategy is Strategy.PARAMETER_SERVER else "workers"
    decided = max(origins[deciding], origins["strategy"] if job.strategy is strategy else Origin.BUILT_IN)
    if not strategy.is_single_host and not has_gpus and origins["devices"] >= decided:
        raise SpecError(
            f"devices is {job.devices}, but TensorFlow's {strategy.value} has one CPU replica per "
            "worker; drop --devices and add --workers, or use --strategy mirrored"
        )
    why = "the task has GPUs" if has_gpus else f"{strategy.value} has one replica per task"
    notes.append(f"devices {job.devices} is not used: {why}")
    return None


def _without_effect(job: JobSpec, strategy: Strategy) -> list[str]:
    """Returns a sentence for each setting that this strategy has no use for."""
    notes = []
    has_servers = strategy is Strategy.PARAMETER_SERVER
    if job.partitioner is not None and not has_servers:
        notes.append(f"partitioner {job.partitioner} has no effect: only parameter_server shards variables")
    if job.success is Success.CHIEF:
        notes.append(
            "success chief: the run has succeeded once worker/0 returns, which ends the other workers"
            if strategy is Strategy.MULTI_WORKER_MIRRORED
            else f"success chief has no effect: under {strategy.value} no other task has to return"
        )
    if job.sync_batchnorm and has_servers:
        notes.append(
            "sync_batchnorm has no effect: under parameter_server each worker trains on batches of its own, "
            "asynchronously"
        )
    if job.auto_shard in ("auto", "file") and has_servers:
        notes.append(
            f"auto_shard {job.auto_shard} has no effect: under parameter_server each worker makes its own "
            "dataset, which TensorFlow does not shard"
        )
    return notes


def _embedded_cpus(roles: Sequence[AnyRole], inventory: Inventory, notes: list[str]) -> int | None:
    if not inventory.is_embedded:
        return None
    needed = sum(role.num_tasks * role.resources.num_cpus for role in roles)
    num_cores = int(inventory.num_cpus)
    num_cpus = max(math.ceil(round(needed, 6)), num_cores)  # 10 times 1.1 is a little over 11
    if num_cpus > num_cores:
        cores = "1 core is" if num_cores == 1 else f"{num_cores} cores are"
        notes.append(f"{cores} shared by {num_cpus} logical CPUs, so tasks run slower than on their own")
    return num_cpus
