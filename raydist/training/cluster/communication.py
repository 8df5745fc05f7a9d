"""The options of a job on how replicas communicate, as TensorFlow takes them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from raydist.spec.job import JobSpec

_COMPRESSIONS = {"none": None, "fp16": tf.float16, "bf16": tf.bfloat16}


def options_of(job: JobSpec) -> tf.distribute.experimental.CommunicationOptions:
    """Returns what MultiWorkerMirroredStrategy takes."""
    return tf.distribute.experimental.CommunicationOptions(
        bytes_per_pack=job.bytes_per_pack or 0,
        timeout_seconds=job.collective_timeout,
        implementation=tf.distribute.experimental.CommunicationImplementation[job.collective.upper()],
    )


def cross_device_ops_of(job: JobSpec) -> Any:
    """Returns what MirroredStrategy takes; None leaves the choice to it."""
    match job.cross_device_ops:
        case "nccl":
            return tf.distribute.NcclAllReduce()
        case "hierarchical":
            return tf.distribute.HierarchicalCopyAllReduce()
        case "one_device":
            return tf.distribute.ReductionToOneDevice()
        case _:
            return None


def compression_of(job: JobSpec) -> tf.DType | None:
    """Returns the type that gradients are rounded to before their sum; None for their own."""
    return _COMPRESSIONS[job.compress_gradients]
