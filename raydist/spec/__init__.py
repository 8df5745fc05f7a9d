"""What a job and its run are, as plain data, and the words in which people write them.

`settings` reads options and params, `entry` finds the train function. Nothing here decides, starts a run, or
reads storage.
"""

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
from raydist.spec.status import (
    Command as Command,
    FailureKind as FailureKind,
    RunState as RunState,
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
