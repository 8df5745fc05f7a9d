"""What a job is, as plain data, and the words in which people write it: options, params, roles, secrets.

`settings` has the options. Nothing here reads a file; `raydist.entry` does.
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
from raydist.spec.tasks import (
    ClusterSpec as ClusterSpec,
    Resources as Resources,
    Role as Role,
    TaskId as TaskId,
    TaskType as TaskType,
)
