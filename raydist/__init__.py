"""raydist: runs TensorFlow training that uses tf.distribute on a Ray cluster.

Each name is loaded when it is first used, so that `import raydist` at the top of a job file, or in a process
that has to set its environment before TensorFlow's import, loads neither ray nor tensorflow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raydist import data as data, tune as tune
    from raydist.api import attach as attach, plan as plan, run as run, submit as submit
    from raydist.errors import (
        CheckpointError as CheckpointError,
        ClusterError as ClusterError,
        DataError as DataError,
        DeviceError as DeviceError,
        FinalError as FinalError,
        JobFileError as JobFileError,
        MistakeError as MistakeError,
        NonFiniteError as NonFiniteError,
        RaydistError as RaydistError,
        RetryableError as RetryableError,
        RunCancelledError as RunCancelledError,
        RunTimeoutError as RunTimeoutError,
        SpecError as SpecError,
        StartTimeoutError as StartTimeoutError,
        StorageError as StorageError,
        TaskFailedError as TaskFailedError,
        TrainingError as TrainingError,
        UnsupportedError as UnsupportedError,
    )
    from raydist.outcome.result import RunResult as RunResult
    from raydist.outcome.status import RunState as RunState
    from raydist.planning.plan import Plan as Plan
    from raydist.runs.handle import RunHandle as RunHandle
    from raydist.spec.job import JobSpec as JobSpec
    from raydist.spec.settings.decorator import Job as Job, job as job
    from raydist.train_context import TrainContext as TrainContext, context as context

    __version__: str

__all__ = [
    "CheckpointError",
    "ClusterError",
    "DataError",
    "DeviceError",
    "FinalError",
    "Job",
    "JobFileError",
    "JobSpec",
    "MistakeError",
    "NonFiniteError",
    "Plan",
    "RaydistError",
    "RetryableError",
    "RunCancelledError",
    "RunHandle",
    "RunResult",
    "RunState",
    "RunTimeoutError",
    "SpecError",
    "StartTimeoutError",
    "StorageError",
    "TaskFailedError",
    "TrainContext",
    "TrainingError",
    "UnsupportedError",
    "__version__",
    "attach",
    "context",
    "data",
    "job",
    "plan",
    "run",
    "submit",
    "tune",
]

_MODULES = {
    "Job": "raydist.spec.settings.decorator",
    "JobSpec": "raydist.spec.job",
    "Plan": "raydist.planning.plan",
    "RunHandle": "raydist.runs.handle",
    "RunResult": "raydist.outcome.result",
    "RunState": "raydist.outcome.status",
    "TrainContext": "raydist.train_context",
    "attach": "raydist.api",
    "context": "raydist.train_context",
    "job": "raydist.spec.settings.decorator",
    "plan": "raydist.api",
    "run": "raydist.api",
    "submit": "raydist.api",
}

if not TYPE_CHECKING:  # else a type checker would believe in any name

    def __getattr__(name: str) -> object:
        if name == "__version__":
            metadata = importlib.import_module("importlib.metadata")
            value = metadata.version("raydist")
        elif name in ("data", "tune"):
            value = importlib.import_module(f"raydist.{name}")
        elif name in __all__:
            value = getattr(importlib.import_module(_MODULES.get(name, "raydist.errors")), name)
        else:
            raise AttributeError(f"module 'raydist' has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
