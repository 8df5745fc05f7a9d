"""Unequal shares of the batch: where they are possible, and what they are in a plan."""

from __future__ import annotations

from raydist.data.order.steps import rows_of_worker
from raydist.errors import SpecError
from raydist.spec.job import JobSpec, Strategy
from raydist.spec.text import counted

# What else has to have its default: raydist itself has to divide batches, and to weigh the parts.
_NEEDED = {
    "patch_keras": (True, "raydist's patches of Keras weigh each worker's rows; drop --no-patch-keras"),
    "check_equality": (True, "losses have to be checked; drop --no-check-equality"),
    "auto_shard": ("data", "TensorFlow then divides the data; drop --auto-shard"),
    "data_workers": (0, "data workers divide the data by themselves; drop --data-workers"),
}


def check_shares(job: JobSpec, strategy: Strategy, *, num_devices: int) -> None:
    """Raises SpecError for shares that the strategy, or another option, makes impossible.

    Args:
      num_devices: Of each worker.
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
    if workers.minimum != workers.maximum:
        raise SpecError(
            f"{told} workers is {workers}, and shares are of one number of workers; give --workers "
            f"{len(weights)}, or leave --shares out"
        )
    if len(weights) != workers.maximum:
        raise SpecError(
            f"{told} workers is {workers}; give {counted(workers.maximum, 'number')}, one for each worker"
        )
    for name, (value, why) in _NEEDED.items():
        if getattr(job, name) != value:
            raise SpecError(f"{told} {name} is {getattr(job, name)}: {why} or --shares")
    if job.virtual_replicas is not None:
        counts = [rows_of_worker(job.virtual_replicas, one, weights)[1] for one in range(len(weights))]
        if min(counts) < num_devices:
            raise SpecError(
                f"{told} virtual_replicas is {job.virtual_replicas}, of which worker/"
                f"{counts.index(min(counts))} would have {min(counts)} for {counted(num_devices, 'device')}; "
                "use more --virtual-replicas"
            )
