"""Pure data: what a run is, before anything is decided or started."""

from raydist.spec.job import (
    CheckpointEvery as CheckpointEvery,
    CheckpointUnit as CheckpointUnit,
    EntryPoint as EntryPoint,
    JobSpec as JobSpec,
    KerasFlavour as KerasFlavour,
    PortRange as PortRange,
    Strategy as Strategy,
    WorkerRange as WorkerRange,
)
from raydist.spec.partitioner import Partitioner as Partitioner
from raydist.spec.run_state import RunState as RunState
from raydist.spec.status import (
    Command as Command,
    FailureKind as FailureKind,
    TaskFailure as TaskFailure,
    TaskState as TaskState,
    TaskStatus as TaskStatus,
)
from raydist.spec.tasks import (
    ClusterSpec as ClusterSpec,
    Resources as Resources,
    Role as Role,
    TaskId as TaskId,
    TaskType as TaskType,
)
