"""Which tf.distribute strategy a run trains under, why, and which options of communication fit it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from raydist.errors import ClusterError, SpecError
from raydist.planning.capacity import fits
from raydist.planning.inventory import Inventory
from raydist.spec.job import JobSpec, Strategy
from raydist.spec.settings.resolution import Origin
from raydist.spec.settings.roles import amount_name, merged
from raydist.spec.tasks import Resources, Role, TaskType

Origins = Mapping[str, Origin]
"""Where each option was set, as `resolve` tells it."""


_MULTI_WORKER = (Strategy.MULTI_WORKER_MIRRORED,)
_USED_BY: Mapping[str, tuple[Strategy, ...]] = {
    "collective": _MULTI_WORKER,
    "collective_timeout": _MULTI_WORKER,
    "cross_device_ops": (Strategy.MIRRORED,),
    "compress_gradients": (Strategy.MIRRORED, Strategy.MULTI_WORKER_MIRRORED),
}


@dataclass(frozen=True, kw_only=True)
class StrategyChoice:
    """The strategy that a run trains under.

    Attributes:
      strategy: Never AUTO.
      reason: One sentence without an end stop.
      job: The job without what the strategy has no use for: of lower precedence than the strategy.
      notes: What was left out of the job.
    """

    strategy: Strategy
    reason: str
    job: JobSpec
    notes: tuple[str, ...] = ()


def choose_strategy(job: JobSpec, origins: Origins, inventory: Inventory) -> StrategyChoice:
    """Returns the strategy that was asked for, or for AUTO the one that fits.

    Raises:
      SpecError: Options contradict each other.
      ClusterError: A TPU is asked for and there is none.
    """
    if job.strategy is Strategy.AUTO:
        strategy, reason = _fitting(job, inventory)
    else:
        strategy, reason = job.strategy, f"strategy {job.strategy.value} was set {origins['strategy'].words}"
    if strategy is Strategy.PARAMETER_SERVER:
        if job.ps == 0:
            raise SpecError("ps is 0; strategy parameter_server needs at least 1: --ps 1")
        return StrategyChoice(strategy=strategy, reason=reason, job=job)
    if strategy is Strategy.TPU and not has_tpu(inventory):
        raise ClusterError(
            f"strategy tpu is asked for, but {inventory.source} has no TPU: no TPU_NAME, no COLAB_TPU_ADDR "
            "and no Ray resource TPU; set one of them, or use --strategy auto"
        )
    notes: list[str] = []
    unused = {"ps": "has no parameter servers"} if job.ps > 0 else {}
    if job.workers.maximum > 1 and strategy.is_single_host:
        unused["workers"] = "runs on one host"
    for name, why in unused.items():
        value = getattr(job, name)
        # The strategy outranks what was set in a place of less weight; the rest contradicts it.
        if origins[name] >= origins["strategy"]:
            raise SpecError(
                f"{name} is {value}, but strategy {strategy.value} {why}; "
                f"drop --{name}, or use --strategy {'parameter_server' if name == 'ps' else 'auto'}"
            )
        notes.append(f"{name} {value}, set {origins[name].words}, is not used: {strategy.value} {why}")
        job = dataclasses.replace(job, **{name: getattr(JobSpec, name)})
    if job.evaluator and strategy is not Strategy.MULTI_WORKER_MIRRORED:
        raise SpecError(
            f"evaluator is on, but strategy {strategy.value} has no evaluator task; "
            "use --no-evaluator and give ctx.fit validation_data, or --strategy multi_worker_mirrored"
        )
    if job.evaluator and job.entry_point.is_script:
        raise SpecError(
            f"evaluator is on, but under {strategy.value} it follows ctx.fit, and {job.entry_point} is a "
            "script; use --no-evaluator"
        )
    return StrategyChoice(strategy=strategy, reason=reason, job=job, notes=tuple(notes))


def without_unused(job: JobSpec, strategy: Strategy, origins: Origins, notes: list[str]) -> JobSpec:
    """Returns the job without the options that another strategy, or an evaluator, was meant to use.

    An option gives way, with a note, to a strategy, or a number of workers or ps, of higher precedence. The
    evaluator's GPUs give way to `evaluator`.

    Raises:
      SpecError: An option was set that this very strategy, or a run without an evaluator, has no use for.
    """
    decided = max(origins[name] for name in ("strategy", "workers", "ps"))
    for name, strategies in _USED_BY.items():
        value, default = getattr(job, name), getattr(JobSpec, name)
        if strategy in strategies or value == default:
            continue
        why = f"strategy {strategy.value} does not use it, {' and '.join(one.value for one in strategies)} "
        why += "does" if len(strategies) == 1 else "do"
        if origins[name] >= decided:
            raise SpecError(f"{name} is {value}, but {why}; drop --{name.replace('_', '-')}")
        notes.append(f"{name} {value}, set {origins[name].words}, has no effect: {why}")
        job = dataclasses.replace(job, **{name: default})
    evaluator = TaskType.EVALUATOR.value
    asked = job.resources_of(TaskType.EVALUATOR).gpus
    if asked and not job.evaluator:
        name, why = amount_name(evaluator, "gpus"), "the run has no evaluator"
        if origins[name] >= origins["evaluator"]:
            raise SpecError(f"{name} is {asked}, but {why}; drop --gpus {evaluator}=N, or add --evaluator")
        notes.append(f"{name} {asked}, set {origins[name].words}, has no effect: {why}")
        job = dataclasses.replace(job, resources=merged(job.resources, {evaluator: {"gpus": None}}))
    return job


def check_communication(job: JobSpec, strategy: Strategy, *, num_gpus: int, devices: int | None) -> None:
    """Raises SpecError for options that the devices of a task, or another option, make impossible.

    Args:
      num_gpus: GPUs of a task.
      devices: Logical CPU devices of a task; None for TensorFlow's one.
    """
    for name, others in (("collective", "auto or ring"), ("cross_device_ops", "auto or one_device")):
        if getattr(job, name) == "nccl" and num_gpus == 0:
            raise SpecError(f"{name} is nccl, which needs GPUs, and the tasks have none; use {others}")
    num_devices = num_gpus or devices or 1
    if job.cross_device_ops == "hierarchical" and num_devices % 2 == 1 and strategy is Strategy.MIRRORED:
        # TensorFlow sums two groups of num_devices // 2 and leaves the last device's gradients out
        # (cross_device_utils.py, `aggregate_gradients_using_hierarchical_copy`).
        raise SpecError(
            f"cross_device_ops is hierarchical, which sums an even number of devices, and the task has "
            f"{num_devices}; use auto or one_device"
        )
    if job.compress_gradients != "none" and not job.patch_keras:
        raise SpecError(
            f"compress_gradients is {job.compress_gradients}, which raydist's patches of Keras do, and "
            "patch_keras is off; drop --no-patch-keras or --compress-gradients"
        )


def has_tpu(inventory: Inventory) -> bool:
    return inventory.tpu_name is not None or any(host.num_tpus > 0 for host in inventory.hosts)


def most_gpus(job: JobSpec, inventory: Inventory) -> int:
    """The most GPUs of one host that are left for a worker beside the extra roles."""
    most = max((host.num_gpus for host in inventory.hosts), default=0)

    def leaves(num_gpus: int) -> bool:
        # Their CPUs are looked at once the roles are known.
        worker = Role(task_type=TaskType.WORKER, resources=Resources(num_cpus=0, num_gpus=num_gpus))
        extras = (
            dataclasses.replace(one, resources=Resources(num_cpus=0, num_gpus=one.resources.num_gpus))
            for one in job.roles.values()
        )
        return fits(inventory, (worker, *extras))

    return next(filter(leaves, range(most, 0, -1)), 0)


def _fitting(job: JobSpec, inventory: Inventory) -> tuple[Strategy, str]:
    if job.ps > 0:
        return Strategy.PARAMETER_SERVER, f"ps is {job.ps}"
    if job.workers.maximum > 1:
        return Strategy.MULTI_WORKER_MIRRORED, f"workers is {job.workers}"
    if has_tpu(inventory):
        name = inventory.tpu_name or "as a Ray resource"
        return Strategy.TPU, f"one worker, and there is a TPU ({name})"
    asked = job.resources_of(TaskType.WORKER).gpus
    num_gpus = most_gpus(job, inventory) if asked is None else asked
    if num_gpus > 1:
        return Strategy.MIRRORED, f"one worker with {num_gpus} GPUs"
    if num_gpus == 0 and (job.devices or 1) > 1:
        return Strategy.MIRRORED, f"one worker with {job.devices} logical CPU devices"
    return Strategy.ONE_DEVICE, f"one worker with {'one GPU' if num_gpus else 'no GPU'}"
