"""JobSpec: the frozen, validated description of one run of a job."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeAlias

from raydist.errors import SpecError
from raydist.spec.partitioner import Partitioner
from raydist.spec.quantities import parse_duration
from raydist.spec.shares import Shares
from raydist.spec.tasks import ExtraRoles, TaskResources, TaskType

MODULE_FLAG = "-m "  # what names a module to run as a script begins with
MAX_NAME_LENGTH = 100
MAX_TASKS = 10_000  # of one role
MAX_MEMORY_RETRY = 10
_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

Resume: TypeAlias = bool | Literal["auto"]


class Strategy(enum.Enum):
    """The tf.distribute strategy that a run trains under; AUTO leaves it to the plan."""

    AUTO = "auto"
    ONE_DEVICE = "one_device"
    MIRRORED = "mirrored"
    CENTRAL_STORAGE = "central_storage"
    TPU = "tpu"
    MULTI_WORKER_MIRRORED = "multi_worker_mirrored"
    PARAMETER_SERVER = "parameter_server"

    @property
    def is_single_host(self) -> bool:
        return self in (Strategy.ONE_DEVICE, Strategy.MIRRORED, Strategy.CENTRAL_STORAGE, Strategy.TPU)


class KerasFlavour(enum.Enum):
    """What `tf.keras` is inside the tasks."""

    AUTO = "auto"
    KERAS_3 = "3"
    LEGACY = "legacy"


class RunOn(enum.Enum):
    """Which tasks run a script under parameter_server; under every other strategy all do."""

    CHIEF = "chief"
    ALL = "all"


class Success(enum.Enum):
    """Which tasks have to return before a run has succeeded; under parameter_server the chief alone."""

    ALL = "all"
    CHIEF = "chief"


class CheckpointUnit(enum.Enum):
    STEPS = "steps"
    EPOCHS = "epochs"
    SECONDS = "seconds"


@dataclass(frozen=True, kw_only=True)
class CheckpointEvery:
    """When to save: every `count` steps, epochs or seconds. Written `100`, `epoch`, `60s`, `5m` or `2h`."""

    count: int = 1
    unit: CheckpointUnit = CheckpointUnit.EPOCHS

    def __post_init__(self) -> None:
        if self.count < 1:
            raise SpecError(f"checkpoint_every is {self}; the number has to be at least 1")

    def __str__(self) -> str:
        match self.unit:
            case CheckpointUnit.STEPS:
                return str(self.count)
            case CheckpointUnit.SECONDS:
                return f"{self.count}s"
            case CheckpointUnit.EPOCHS:
                return "epoch"

    @classmethod
    def parse(cls, text: str) -> CheckpointEvery:
        if text == "epoch":
            return cls()
        if re.fullmatch(r"[0-9]{1,12}", text):
            return cls(count=int(text), unit=CheckpointUnit.STEPS)
        if re.fullmatch(r"\s*[0-9.]{1,12}\s*[smh]\s*", text):
            seconds = parse_duration("checkpoint_every", text)
            if seconds != int(seconds):
                raise SpecError(f"checkpoint_every is {text!r}; write whole seconds, such as 60s")
            return cls(count=int(seconds), unit=CheckpointUnit.SECONDS)
        raise SpecError(f"checkpoint_every is {text!r}; write 100 (steps), epoch, 60s, or 5m")


@dataclass(frozen=True, kw_only=True)
class WorkerRange:
    """How many workers a run may have, both ends included. Written `2` or `2:4`."""

    minimum: int = 1
    maximum: int = 1

    def __post_init__(self) -> None:
        if self.minimum < 1:
            raise SpecError(f"workers is {self}; need at least 1")
        if self.maximum > MAX_TASKS:
            raise SpecError(f"workers is {self}; at most {MAX_TASKS} are supported")
        if self.minimum > self.maximum:
            raise SpecError(
                f"workers is {self}; MIN must not exceed MAX, write {self.maximum}:{self.minimum}"
            )

    def __str__(self) -> str:
        return str(self.minimum) if self.minimum == self.maximum else f"{self.minimum}:{self.maximum}"

    @classmethod
    def parse(cls, value: str | int) -> WorkerRange:
        match = re.fullmatch(r"(-?[0-9]{1,9})(?::(-?[0-9]{1,9}))?", str(value))
        if match is None or isinstance(value, bool):
            raise SpecError(f"workers is {value!r}; write a number, or MIN:MAX such as 2:4")
        minimum = int(match[1])
        return cls(minimum=minimum, maximum=int(match[2]) if match[2] is not None else minimum)


@dataclass(frozen=True, kw_only=True)
class PortRange:
    """Ports that TensorFlow's servers may use, both ends included. Written `20000-20099`."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 1024 <= self.low <= self.high <= 65535:
            raise SpecError(f"ports is {self}; write LOW-HIGH with 1024 <= LOW <= HIGH <= 65535")

    def __str__(self) -> str:
        return f"{self.low}-{self.high}"

    @classmethod
    def parse(cls, text: str) -> PortRange:
        match = re.fullmatch(r"([0-9]{1,6})-([0-9]{1,6})", str(text))
        if match is None:
            raise SpecError(f"ports is {text!r}; write LOW-HIGH, such as 20000-20099")
        return cls(low=int(match[1]), high=int(match[2]))


@dataclass(frozen=True, kw_only=True)
class EntryPoint:
    """Where a task finds the train function, or the script, once its environment is set.

    Exactly one of `file`, `module` and `pickled` is given.

    Attributes:
      function: Name of the function, as in `path/to/file.py:function`; empty for a pickled function, and for
        a script.
      file: Path of the job file, relative to the working directory that travels.
      module: Dotted module name, importable from the working directory or installed.
      pickled: A cloudpickled function (from `__main__`, a notebook, a closure), kept shut until the
        task's environment is set, because unpickling user code imports TensorFlow.
    """

    function: str
    file: str | None = None
    module: str | None = None
    pickled: bytes | None = field(default=None, repr=False)

    @property
    def is_script(self) -> bool:
        """Whether the file or module is run as `__main__`, as `python` runs it."""
        return not self.function and self.pickled is None

    def __str__(self) -> str:
        if self.is_script:
            return self.file or f"{MODULE_FLAG}{self.module}"
        if self.pickled is not None:
            return "<function>"
        return f"{self.file or self.module}:{self.function}"


def _at_least(lowest: int, *, default: Any) -> Any:
    return field(default=default, metadata={"lowest": lowest})


def _time_limit(default: float | None) -> Any:
    return field(default=default, metadata={"above": 0})


@dataclass(frozen=True, kw_only=True)
class SourceFacts:
    """What a job's source, which is read and not run, says.

    Attributes:
      legacy_keras_reason: Why it needs tf_keras as `tf.keras`; None where it does not.
      strategy_use: Where it takes or builds a strategy; None where it does not.
      own_loop: Where it updates weights in a loop of its own; None where it does not.
      imports_raydist: Whether it does, as far as it could be read.
    """

    legacy_keras_reason: str | None = None
    strategy_use: str | None = None
    own_loop: str | None = None
    imports_raydist: bool = True


NO_FACTS = SourceFacts()


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """One run of a job. Field names are the command line's options with `_`, except the first three.

    `resources` has --cpus, --memory, --gpus and --resources.

    `raydist.run`, `submit` and `plan` take the options as keywords and make the JobSpec; `plan` shows it.

    Example:
        job = raydist.plan("jobs/cifar.py", workers="2:4", timeout="2h").job
        print(job.workers.maximum, job.timeout)  # 4 7200.0

    Attributes:
      name: The run's name, a path name on storage.
      entry_point: The train function, or the script.
      params: The job's params, each with its final value.
      study: Name that the runs of a search share, or others that belong together; None for a run by itself.
      args: Arguments of a script, its `sys.argv[1:]`; the command line's are those after `--`.
      run_on: Which tasks run a script under parameter_server.
      working_dir: Folder (on the driver) whose files travel to every task; None ships nothing.
      env: Environment variables of every task, those of `env_file` included.
      env_file: File of `KEY=VALUE` lines, on the driver; None reads none.
      runtime_env: Ray's runtime environment of every task, such as its pip packages or container image; None
        asks for none.
      address: Ray address; None means RAY_ADDRESS, else a running Ray, else an embedded one.
      workers: Workers; a single-host strategy has exactly the one task worker/0.
      ps: Parameter server tasks.
      evaluator: Whether a side-car task evaluates each new checkpoint.
      data_workers: Tasks that run what `ctx.distribute` is given, in addition to the training tasks.
      resources: What each task of a role asks for, by role and amount, as far as it was set:
        `{"worker": {"cpus": 4.0}}`. See `resources_of`.
      memory_retry: Factor by which a new attempt reserves more memory for a role that ran out of it; None
        reserves the same.
      accelerator_type: Kind of GPU that each worker's host has to have, as Ray names it; None takes any.
      label_selector: What the labels of the tasks' hosts have to be, by label, or by `worker:label` for one
        role.
      roles: Commands that run alongside the training, by name; only a config file or Python code sets them.
      devices: Logical CPU devices per task on hosts without GPUs; None lets the plan choose.
      virtual_replicas: Replicas of the run, divided among its workers; None has one for each device.
      shares: What each worker takes of every global batch; None has equal parts.
      ports: Ports for TensorFlow's servers; None takes any free port.
      allow_public_ports: Whether TensorFlow's servers are started at public addresses too.
      fence: Whether tasks set firewall rules that let only the run's hosts reach their servers.
      keras: What `tf.keras` is.
      patch_keras: Whether raydist patches what is broken in Keras under tf.distribute (the off switch).
      check_equality: Whether a model's own losses are checked for several replicas before its first step.
      default_strategy: Whether a job that builds no strategy gets the run's for all that it makes.
      sync_batchnorm: Whether BatchNormalization normalizes with the statistics of the global batch.
      seed: Seed of Python, NumPy, TensorFlow and Keras, the same in each task.
      storage: Where runs are kept: a path or a URI.
      max_failures: Attempts that may be lost to failures before the run fails.
      success: Which tasks that train have to return.
      timeout: Limit for the whole run in seconds; None sets none.
      start_timeout: Limit for an attempt's start in seconds.
      stall_timeout: Seconds without a step after which an attempt is ended and its stacks are dumped.
      keep_warm: Seconds that each host of an existing Ray keeps a process which has imported TensorFlow, for
        the next run or attempt.
      standby: Agents that wait on other hosts, with TensorFlow imported, for the tasks of a lost host.
      stop_on_nan: Whether the run ends once a reported value is NaN or infinite.
      resume: Whether to continue the run of that name; `auto` continues it if it has not succeeded, and
        starts it if there is none.
      checkpoint_every: When to save.
      keep: Checkpoints to keep, the newest ones; None keeps all.
      keep_best: Metric whose best checkpoint of each `ctx.fit` is kept too, `val_accuracy`. `NAME:max` or
        `NAME:min` says which values are better, where the metric's name does not say it.
      export: Whether the model of `ctx.fit` is exported at its end, the best one with `keep_best`.
      partitioner: How parameter_server cuts large variables into shards; None leaves them whole.
      auto_shard: tf.data auto-shard policy for plain pipelines: `off`, `auto`, `file`, `data`.
      collective: Implementation of collectives between workers under multi_worker_mirrored: `auto`, `ring` or
        `nccl`.
      collective_timeout: Seconds after which a collective that not all workers have joined fails; None sets
        no limit besides `stall_timeout`.
      cross_device_ops: What reduces between the devices of mirrored: `auto`, `nccl`, `hierarchical` or
        `one_device`.
      compress_gradients: What gradients are rounded to before they are summed over replicas: `none`, `fp16`
        or `bf16`.
      log_device_placement: Whether each task's log tells the device of each op.
      on_end: Shell command that whoever drives the run runs once it has ended; None runs nothing.
      mlflow: URI of the MLflow server that is told of the run; None tells none.
      detach: Whether submit returns once the cluster has accepted the run.
    """

    name: str
    entry_point: EntryPoint
    params: Mapping[str, Any] = field(default_factory=dict)
    study: str | None = None
    args: tuple[str, ...] = ()
    run_on: RunOn = RunOn.CHIEF
    working_dir: str | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold secrets
    env_file: str | None = None
    runtime_env: Mapping[str, Any] | None = field(default=None, repr=False)
    address: str | None = None
    strategy: Strategy = Strategy.AUTO
    workers: WorkerRange = WorkerRange()
    ps: int = _at_least(0, default=0)
    evaluator: bool = False
    data_workers: int = _at_least(0, default=0)
    resources: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    memory_retry: float | None = None
    accelerator_type: str | None = None
    label_selector: Mapping[str, str] = field(default_factory=dict)
    roles: ExtraRoles = field(default_factory=dict)
    devices: int | None = _at_least(1, default=None)
    virtual_replicas: int | None = _at_least(1, default=None)
    shares: Shares | None = None
    ports: PortRange | None = None
    allow_public_ports: bool = False
    fence: bool = False
    keras: KerasFlavour = KerasFlavour.AUTO
    patch_keras: bool = True
    check_equality: bool = True
    default_strategy: bool = True
    sync_batchnorm: bool = False
    seed: int = _at_least(0, default=0)
    storage: str = "./raydist_runs"
    max_failures: int = _at_least(0, default=3)
    success: Success = Success.ALL
    timeout: float | None = _time_limit(None)
    start_timeout: float = _time_limit(300.0)
    stall_timeout: float = _time_limit(600.0)
    keep_warm: float = _at_least(0, default=300.0)
    standby: int = _at_least(0, default=0)
    stop_on_nan: bool = False
    resume: Resume = False
    checkpoint_every: CheckpointEvery = CheckpointEvery()
    keep: int | None = _at_least(1, default=3)
    keep_best: str | None = None
    export: bool = True
    partitioner: Partitioner | None = None
    auto_shard: str = "data"
    collective: str = "auto"
    collective_timeout: float | None = _time_limit(None)
    cross_device_ops: str = "auto"
    compress_gradients: str = "none"
    log_device_placement: bool = False
    on_end: str | None = None
    mlflow: str | None = None
    detach: bool = False

    def __post_init__(self) -> None:
        for spec_field in fields(self):
            check_field(spec_field.name, getattr(self, spec_field.name))

    def resources_of(self, task_type: TaskType) -> TaskResources:
        """Returns what each task of a role asks for."""
        return TaskResources(**self.resources.get(task_type.value, {}))


_LIMITS = {spec_field.name: spec_field.metadata for spec_field in fields(JobSpec)}
_HIGHEST_SEED = 2**32 - 1  # NumPy takes no more


def check_field(field_name: str, value: Any) -> None:
    """Raises SpecError unless `value`, of the right type, is in the range of that field of JobSpec."""
    if value is None:
        return
    if field_name in ("name", "study"):
        check_run_name(value, of=field_name)
    limits = _LIMITS[field_name]
    if "lowest" in limits and value < limits["lowest"]:
        raise SpecError(f"{field_name} is {value}; need at least {limits['lowest']}")
    if field_name in ("ps", "data_workers") and value > MAX_TASKS:
        raise SpecError(f"{field_name} is {value}; at most {MAX_TASKS} are supported")
    if "above" in limits and value <= limits["above"]:
        raise SpecError(f"{field_name} is {value:g}; need more than 0 seconds")
    if field_name == "memory_retry" and not 1 < value <= MAX_MEMORY_RETRY:
        raise SpecError(
            f"memory_retry is {value:g}; write a factor above 1 and up to {MAX_MEMORY_RETRY}, such as 1.5x"
        )
    if field_name == "seed" and value > _HIGHEST_SEED:
        raise SpecError(f"seed is {value}; need at most {_HIGHEST_SEED}")


def check_run_name(name: str, *, of: str = "name") -> None:
    """Raises SpecError unless `name`, the value of option `of`, can be one folder's name on every storage."""
    if not is_run_name(name):
        shown = name if len(name) <= MAX_NAME_LENGTH else f"{name[:20]}… ({len(name)} characters)"
        raise SpecError(
            f"{of} is {shown!r}; use letters, digits, '-', '_' and single '.', "
            f"starting with a letter or digit, at most {MAX_NAME_LENGTH} characters"
        )


def is_run_name(name: str) -> bool:
    """Whether `check_run_name` takes it. A shell and a terminal then take it for nothing but a name."""
    return _NAME_PATTERN.fullmatch(name) is not None and len(name) <= MAX_NAME_LENGTH and ".." not in name
