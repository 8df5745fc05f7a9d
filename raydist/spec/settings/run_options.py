"""The options of a run as the keywords that Python code gives, so that editors and type checkers know them.

A type checker needs them written out. raydist.spec.settings.options is what decides; a test compares the two.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict, TypeVar, get_type_hints

from raydist.spec.byte_size import ByteSize
from raydist.spec.duration import Duration
from raydist.spec.job import CheckpointEvery, KerasFlavour, PortRange, RunOn, Strategy, WorkerRange
from raydist.spec.partitioner import Partitioner

F = TypeVar("F", bound=Callable[..., Any])


class RunOptions(TypedDict, total=False):
    """Fields of JobSpec, which are the command line's options with `_`; JobSpec says what each one means."""

    name: str
    study: str | None
    args: Sequence[str]
    run_on: RunOn | Literal["chief", "all"]
    working_dir: str | os.PathLike[str] | None
    env: Mapping[str, str | None] | Sequence[str]
    env_file: str | os.PathLike[str] | None
    runtime_env: str | os.PathLike[str] | Mapping[str, Any] | None
    address: str | None
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
    data_workers: int
    cpus_per_worker: float
    cpus_per_ps: float
    cpus_per_chief: float
    cpus_per_evaluator: float
    cpus_per_data_worker: float
    memory_per_worker: ByteSize | None
    memory_per_ps: ByteSize | None
    memory_per_chief: ByteSize | None
    memory_per_evaluator: ByteSize | None
    memory_per_data_worker: ByteSize | None
    memory_retry: float | str | None
    resources_per_worker: Mapping[str, float] | Sequence[str]
    resources_per_ps: Mapping[str, float] | Sequence[str]
    resources_per_chief: Mapping[str, float] | Sequence[str]
    resources_per_evaluator: Mapping[str, float] | Sequence[str]
    resources_per_data_worker: Mapping[str, float] | Sequence[str]
    accelerator_type: str | None
    label_selector: Mapping[str, str] | Sequence[str]
    roles: Mapping[str, Mapping[str, Any]]
    gpus_per_worker: int | None
    gpus_per_evaluator: int
    devices: int | None
    virtual_replicas: int | None
    threads_per_replica: int
    reduce_order: Literal["fixed", "any"]
    ports: PortRange | str | None
    allow_public_ports: bool
    fence: bool
    keras: KerasFlavour | Literal["auto", "3", "legacy"]
    patch_keras: bool
    check_equality: bool
    sync_batchnorm: bool
    sum_embedding_rows: bool
    seed: int
    storage: str | os.PathLike[str]
    max_failures: int
    timeout: Duration | None
    start_timeout: Duration
    stall_timeout: Duration
    keep_warm: Duration
    standby: int
    survivor_memory: ByteSize
    stop_on_nan: bool
    resume: bool | Literal["auto"]
    checkpoint_every: CheckpointEvery | str | int
    keep: int | None
    keep_best: str | None
    export: bool
    partitioner: Partitioner | str | None
    ps_staleness: int
    auto_shard: Literal["off", "auto", "file", "data"]
    collective: Literal["auto", "ring", "nccl"]
    collective_timeout: Duration | None
    bytes_per_pack: ByteSize | None
    cross_device_ops: Literal["auto", "nccl", "hierarchical", "one_device"]
    compress_gradients: Literal["none", "fp16", "bf16"]
    tensorboard_histograms: int | None
    tensorboard_graph: bool
    log_device_placement: bool
    dump_xla: bool
    on_end: str | None
    mlflow: str | None
    keep_runs: str | None
    detach: bool


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
