"""`@raydist.job`, which gives a train function its defaults, and the options as keywords of Python code.

The keywords are spelled out so that editors and type checkers know them.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Literal, ParamSpec, TypedDict, TypeVar, get_type_hints, overload

from raydist.errors import SpecError
from raydist.spec.job import CheckpointEvery, KerasFlavour, PortRange, RunOn, Strategy, Success, WorkerRange
from raydist.spec.partitioner import Partitioner
from raydist.spec.quantities import Duration
from raydist.spec.settings.resolution import TypedOptions, typed_values
from raydist.spec.settings.roles import Amounts
from raydist.spec.shares import Shares

F = TypeVar("F", bound=Callable[..., Any])


class RunOptions(TypedDict, total=False):
    """Fields of JobSpec, which are the command line's options with `_`; JobSpec says what each one means."""

    args: Sequence[str]
    name: str
    study: str | None
    working_dir: str | os.PathLike[str] | None
    storage: str | os.PathLike[str]
    resume: bool | Literal["auto"]
    on_end: str | None
    mlflow: str | None
    detach: bool
    address: str | None
    ports: PortRange | str | None
    allow_public_ports: bool
    fence: bool
    keep_warm: Duration
    env: Mapping[str, str | None] | Sequence[str]
    env_file: str | os.PathLike[str] | None
    runtime_env: str | os.PathLike[str] | Mapping[str, Any] | None
    strategy: (
        Strategy
        | Literal[
            "auto",
            "one_device",
            "mirrored",
            "central_storage",
            "tpu",
            "multi_worker_mirrored",
            "parameter_server",
        ]
    )
    workers: WorkerRange | str | int
    ps: int
    evaluator: bool
    devices: int | None
    virtual_replicas: int | None
    shares: Shares | str | Sequence[int] | None
    run_on: RunOn | Literal["chief", "all"]
    resources: Mapping[str, Amounts]
    memory_retry: float | str | None
    accelerator_type: str | None
    label_selector: Mapping[str, str] | Sequence[str]
    roles: Mapping[str, Mapping[str, Any]]
    keras: KerasFlavour | Literal["auto", "3", "legacy"]
    patch_keras: bool
    check_equality: bool
    default_strategy: bool
    sync_batchnorm: bool
    seed: int
    partitioner: Partitioner | str | None
    auto_shard: Literal["off", "auto", "file", "data"]
    data_workers: int
    collective: Literal["auto", "ring", "nccl"]
    collective_timeout: Duration | None
    cross_device_ops: Literal["auto", "nccl", "hierarchical", "one_device"]
    compress_gradients: Literal["none", "fp16", "bf16"]
    checkpoint_every: CheckpointEvery | str | int
    keep: int | None
    keep_best: str | None
    export: bool
    log_device_placement: bool
    max_failures: int
    standby: int
    success: Success | Literal["all", "chief"]
    timeout: Duration | None
    start_timeout: Duration
    stall_timeout: Duration
    stop_on_nan: bool


class JobDefaults(RunOptions, total=False):
    """What `@raydist.job` takes: the options, and the params with their defaults."""

    params: Mapping[str, Any]


def shows_options(function: F) -> F:
    """Makes `inspect.signature`, which notebooks and `help` use, show each option instead of `**options`.

    The default `...` stands for what the job, the config or raydist itself has.
    """
    signature = inspect.signature(function)
    *parameters, _ = signature.parameters.values()
    for name, kind in get_type_hints(RunOptions).items():
        option = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=..., annotation=kind)
        parameters.append(option)
    vars(function)["__signature__"] = signature.replace(parameters=parameters)
    return function


if sys.version_info >= (3, 11):
    from typing import Unpack
else:
    from typing_extensions import Unpack

P = ParamSpec("P")
R = TypeVar("R")


class Job(Generic[P, R]):
    """A train function with its defaults, as `@raydist.job` makes it. Calling it calls the function.

    Example:
        @raydist.job(workers=2)
        def train(ctx: raydist.TrainContext): ...

        print(train.name, train.defaults["workers"])

    Attributes:
      function: The train function.
      defaults: The decorator's arguments, typed, `params` included.
    """

    def __init__(self, function: Callable[P, R], defaults: TypedOptions) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.defaults = defaults

    @property
    def name(self) -> str:
        """The function's name."""
        return getattr(self.function, "__name__", type(self.function).__name__)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<raydist job {self.name}>"


@overload
def job(function: Callable[P, R], /, **defaults: Unpack[JobDefaults]) -> Job[P, R]: ...
@overload
def job(**defaults: Unpack[JobDefaults]) -> Callable[[Callable[P, R]], Job[P, R]]: ...
def job(function: Callable[..., Any] | None = None, /, **defaults: Any) -> Any:
    """Makes a job of a train function: `@raydist.job` or `@raydist.job(workers=2, params={...})`.

    Example:
        @raydist.job(workers=2, params={"epochs": 3, "learning_rate": 1e-3})
        def train(ctx: raydist.TrainContext):
            print(ctx.params["epochs"])

    Args:
      function: The train function, which is called with a TrainContext in each task.
      **defaults: Fields of JobSpec (the command line's options with `_`) and `params`; the config, and
        the command line or keywords, come before them. A job that declares no params takes any.

    Raises:
      SpecError: An unknown name, or a value of the wrong type or range.
    """
    if function is not None and not callable(function):
        raise SpecError(f"@raydist.job is given {function!r}; use @raydist.job or @raydist.job(option=value)")
    caller = sys._getframe(1)
    typed = typed_values(defaults, where=f"{caller.f_code.co_filename}, line {caller.f_lineno}")
    return Job(function, typed) if function is not None else lambda decorated: Job(decorated, typed)
