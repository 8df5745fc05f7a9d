"""What a worker or a parameter server runs: TensorFlow's server, which does what the chief asks of it."""

from __future__ import annotations

import tensorflow as tf

from raydist.errors import ClusterError
from raydist.planning.assignment import TaskAssignment
from raydist.training.parameter_server.sources import SharedSources


def start_server(assignment: TaskAssignment) -> tf.distribute.Server:
    """Starts this task's server at its address, and returns it; it serves until the process ends.

    It cannot be stopped (tensorflow#11872), so it needs a process of its own.

    Raises:
      ClusterError: The port is taken.
    """
    if assignment.job.log_device_placement:
        tf.debugging.set_log_device_placement(True)
    SharedSources(assignment.parcels).serve()
    num_peers = sum(len(addresses) for _, addresses in assignment.cluster_spec.jobs)
    try:
        return tf.distribute.Server(
            tf.train.ClusterSpec(assignment.cluster_spec.as_dict()),
            job_name=assignment.task.task_type.value,
            task_index=assignment.task.index,
            protocol="grpc",
            # A function that a peer calls here holds a thread while it waits for that peer; TensorFlow's
            # tutorial asks for one more than there are workers.
            config=tf.compat.v1.ConfigProto(inter_op_parallelism_threads=num_peers + 1),
        )
    except tf.errors.OpError as error:
        raise ClusterError(
            f"{assignment.task} cannot start TensorFlow's server at {assignment.address}: {error.message}"
        ) from error
