"""All that raydist touches of TensorFlow's private parts.

Checked with TensorFlow 2.21; tests/strategies/test_tensorflow_internals.py fails when one is gone.
"""

from __future__ import annotations

import tensorflow as tf
from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
from tensorflow.python.eager import context

from raydist.errors import UnsupportedError
from raydist.spec.tasks import ClusterSpec

VERSION = "2.21"
HEARTBEAT_TIMEOUT_S = 20


def check_untouched() -> None:
    """Raises UnsupportedError when an op ran before the strategy exists.

    Collectives can be configured only in a fresh context (eager/context.py, `Collective ops must be
    configured at program startup`; tensorflow#34568).
    """
    if context.context()._context_handle is not None:
        raise UnsupportedError(
            "TensorFlow was used before raydist built the strategy; leave tensors, variables and "
            "tf.config.list_logical_devices() to the train function"
        )


def configure_coordination(cluster_spec: ClusterSpec, *, start_timeout_s: float) -> None:
    """Bounds TensorFlow's start-up barrier, which otherwise waits an hour and names nobody.

    MultiWorkerMirroredStrategy configures the coordination service only where nobody has
    (collective_all_reduce_strategy.py). With a barrier at registration a missing peer raises
    `DeadlineExceededError … Some timed out task names: …` (TF_NOTES 4.3).
    """
    jobs = [
        coordination_config_pb2.CoordinatedJob(name=task_type.value, num_tasks=len(addresses))
        for task_type, addresses in cluster_spec.jobs
    ]
    current = context.context()
    current.configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{jobs[0].name}/replica:0/task:0",
        coordinated_jobs=jobs,
        cluster_register_timeout_in_ms=int(start_timeout_s * 1000),
        heartbeat_timeout_in_ms=HEARTBEAT_TIMEOUT_S * 1000,
    )
    # A public field of the proto, for which configure_coordination_service has no argument; without
    # it the time-out does not bound the leader.
    current._coordination_service_config.cluster_register_with_barrier = True


def report_error_to_peers(message: str) -> None:
    """Makes every collective of the peers fail at once with `message`.

    A peer that raised but whose process lives is otherwise waited for without end (TF_NOTES 4.5).
    """
    current = context.context()
    if current.coordination_service is not None:
        current.report_error_to_cluster(2, message[:1000])


def is_synchronized_on_read(variable: object) -> bool:
    """Whether reading `variable` outside a replica is a collective, so that every worker has to read it."""
    synchronization = getattr(variable, "synchronization", None)
    return synchronization == tf.VariableSynchronization.ON_READ
