"""The strategy that a script builds by itself: prepared for as raydist's own, and checked against the run."""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from raydist import tf_private
from raydist.errors import UnsupportedError
from raydist.planning.assignment import TaskAssignment
from raydist.spec.job import JobSpec, Strategy
from raydist.spec.tasks import TaskType
from raydist.training.cluster.default_strategy import as_default, builds_none
from raydist.training.cluster.strategy import (
    build_coordinator,
    check_replicas,
    is_parameter_server,
    joining_workers,
    new_strategy,
    split_devices,
)
from raydist.training.cluster.virtual_strategy import is_virtual
from raydist.training.reporting import reporter

_MULTI_WORKER = tf.distribute.MultiWorkerMirroredStrategy
_LOCAL = (
    tf.distribute.MirroredStrategy,
    tf.distribute.OneDeviceStrategy,
    tf.distribute.experimental.CentralStorageStrategy,
    tf.distribute.TPUStrategy,
)
# Options that raydist gives to the strategies that it builds.
_OF_OWN_STRATEGY = ("collective", "collective_timeout", "cross_device_ops", "partitioner")
_SERVERS = (TaskType.WORKER, TaskType.PS)


class ScriptStrategy:
    """What a session asks for the strategy, while a script builds it or not.

    Args:
      release_port: Gives up the task's port, once TensorFlow has it.
      on_built: Called with each strategy that becomes the run's.
    """

    def __init__(
        self,
        assignment: TaskAssignment,
        *,
        release_port: Callable[[], None],
        on_built: Callable[[tf.distribute.Strategy], None],
    ) -> None:
        self._assignment = assignment
        self._release_port = release_port
        self._on_built = on_built
        self._built: tf.distribute.Strategy | None = None
        self._is_own = False  # while raydist builds one
        self._default = contextlib.ExitStack()  # the scope of the run's strategy, where that is the default

    @property
    def strategy(self) -> tf.distribute.Strategy:
        """The run's strategy; the one outside of every scope where the script has built none."""
        return tf_private.default_strategy() if self._built is None else self._built

    @property
    def coordinator(self) -> Any:
        """The ClusterCoordinator of the script's ParameterServerStrategy, of which there is one."""
        return None if self._built is None else build_coordinator(self._built)

    def planned(self) -> tf.distribute.Strategy:
        """Returns the script's strategy; where it has built none that spans the run, builds the run's own.

        Raises:
          UnsupportedError: It is too late for that.
        """
        if self._built is not None and self._spans_run(self._built):
            return self._built
        assignment = self._assignment
        if not assignment.strategy.is_single_host:
            try:
                tf_private.check_untouched()
            except UnsupportedError:
                raise UnsupportedError(
                    f"raydist.context().strategy is asked for after {self._script} has used TensorFlow; ask "
                    "for it before the first tensor, variable, model or other strategy"
                ) from None
        with tf_private.changed(self, _is_own=True):
            strategy = new_strategy(assignment)
        if is_virtual(strategy) or is_parameter_server(strategy) or isinstance(strategy, _MULTI_WORKER):
            self._release_port()
        self._adopt(strategy)
        return strategy

    @contextlib.contextmanager
    def as_default(self) -> Iterator[None]:
        """Has what the block makes made in the scope of the run's strategy, until it builds one by itself."""
        with self._default:
            self._default.enter_context(as_default(self.planned(), self._assignment))
            try:
                yield
            except Exception as error:
                if _is_of_strategy(error):
                    reporter.note(
                        f"{self._script} fails in the run's strategy, which it has because it builds none: "
                        "--no-default-strategy lets each worker run all of it by itself, and ctx.train_steps "
                        "divides a loop of its own"
                    )
                raise

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Prepares for and checks each strategy and server that is built in the block."""
        split_devices(self._assignment)
        with contextlib.ExitStack() as stack:
            for kind, around in (
                (_MULTI_WORKER, self._around_multi_worker),
                (tf.distribute.ParameterServerStrategy, self._around_parameter_server),
                *((kind, self._around_local) for kind in _LOCAL),
                (tf.distribute.Server, self._around_server),
            ):
                original = kind.__init__
                stack.callback(setattr, kind, "__init__", original)
                kind.__init__ = self._built_within(original, around)
            yield

    def finish(self) -> None:
        """Tells, once the script has ended, where it has not used what the run gave it."""
        assignment = self._assignment
        if self._built is None and assignment.job.virtual_replicas is not None:
            reporter.note(
                f"virtual_replicas {assignment.job.virtual_replicas} has no effect, because {self._script} "
                "never took raydist.context().strategy"
            )
        if self._built is not None and self._spans_run(self._built):
            return
        if assignment.strategy is Strategy.MULTI_WORKER_MIRRORED and assignment.num_workers > 1:
            if self._built is None and not assignment.has_own_loop:  # of which the plan has a note
                reporter.note(
                    f"{self._script} built no strategy: each of {assignment.num_workers} workers ran it by "
                    "itself; build tf.distribute.MultiWorkerMirroredStrategy() to train one model"
                )
        elif assignment.strategy is Strategy.PARAMETER_SERVER and assignment.is_chief:
            reporter.note(
                f"{self._script} built no ParameterServerStrategy: the workers and parameter servers of the "
                "run had nothing to do"
            )

    @property
    def _script(self) -> str:
        return str(self._assignment.job.entry_point)

    def _spans_run(self, strategy: tf.distribute.Strategy) -> bool:
        """Whether it has the replicas of all tasks that train."""
        match self._assignment.strategy:
            case Strategy.MULTI_WORKER_MIRRORED:
                is_planned = isinstance(strategy, _MULTI_WORKER) or is_virtual(strategy)
                return is_planned or self._assignment.num_workers == 1
            case Strategy.PARAMETER_SERVER if self._assignment.task.task_type is TaskType.EVALUATOR:
                return True
            case Strategy.PARAMETER_SERVER:
                return is_parameter_server(strategy)
            case _:
                return True

    def _refuse_with_virtual_replicas(self, strategy: tf.distribute.Strategy) -> None:
        if self._assignment.job.virtual_replicas is not None:
            raise UnsupportedError(
                f"{self._script} builds a {type(strategy).__name__}, which has no virtual replicas; take "
                "raydist.context().strategy in its place, or leave --virtual-replicas out"
            )

    def _take(self, strategy: tf.distribute.Strategy) -> None:
        """Takes a strategy of the script's own."""
        job = self._assignment.job
        for name in _OF_OWN_STRATEGY:
            if (value := getattr(job, name)) != getattr(JobSpec, name):
                reporter.note(
                    f"{name} {value} has no effect, because {self._script} builds its strategy itself; give "
                    "it to that strategy, or take raydist.context().strategy"
                )
        self._adopt(strategy)

    def _adopt(self, strategy: tf.distribute.Strategy) -> None:
        if self._built is None or self._spans_run(strategy):
            self._built = strategy
            self._on_built(strategy)

    @contextlib.contextmanager
    def _around_multi_worker(self, strategy: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
        assignment = self._assignment
        self._refuse_with_virtual_replicas(strategy)
        if assignment.strategy is Strategy.PARAMETER_SERVER:
            raise UnsupportedError(
                f"{self._script} builds a MultiWorkerMirroredStrategy, and the run is parameter_server: its "
                "workers only serve the chief; drop --ps, or use --strategy multi_worker_mirrored"
            )
        resolver = args[0] if args else kwargs.get("cluster_resolver")
        resolver = resolver or tf.distribute.cluster_resolver.TFConfigClusterResolver()
        cluster = resolver.cluster_spec().as_dict()
        if cluster and cluster == assignment.cluster_spec.as_dict():
            with joining_workers(assignment):
                yield
            self._release_port()
            check_replicas(strategy, assignment.num_workers * max(assignment.num_gpus, 1))
        else:
            yield
            if assignment.num_workers > 1:
                raise UnsupportedError(
                    f"{self._script} builds a MultiWorkerMirroredStrategy for another cluster than the "
                    f"{assignment.num_workers} workers of the run; leave TF_CONFIG as it is and give no "
                    "cluster_resolver"
                )
        self._take(strategy)

    @contextlib.contextmanager
    def _around_parameter_server(self, strategy: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
        assignment = self._assignment
        if assignment.strategy is not Strategy.PARAMETER_SERVER:
            resolver = args[0] if args else kwargs.get("cluster_resolver")
            has_own_cluster = resolver is not None and "ps" in resolver.cluster_spec().jobs
            if not has_own_cluster:
                raise UnsupportedError(
                    f"{self._script} builds a ParameterServerStrategy, and the run has no parameter servers; "
                    "add --ps 1, and --workers N"
                )
        yield
        self._release_port()
        self._take(strategy)

    @contextlib.contextmanager
    def _around_local(self, strategy: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
        self._refuse_with_virtual_replicas(strategy)
        yield
        assignment = self._assignment
        is_alone = self._built is None or not self._spans_run(self._built)
        if assignment.strategy is Strategy.MULTI_WORKER_MIRRORED and assignment.num_workers > 1 and is_alone:
            reporter.note(
                f"{self._script} built a {type(strategy).__name__}, with replicas in its own process: each "
                f"of the {assignment.num_workers} workers trains a model of its own; build "
                "tf.distribute.MultiWorkerMirroredStrategy() to train one model"
            )
        self._take(strategy)

    @contextlib.contextmanager
    def _around_server(self, server: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
        yield
        if self._assignment.task.task_type in _SERVERS:
            self._release_port()

    def _leave_default(self) -> None:
        if builds_none():
            self._default.close()
            self._built = None

    def _built_within(self, original: Callable[..., None], around: Callable[..., Any]) -> Callable[..., None]:
        @functools.wraps(original)
        def __init__(strategy: Any, *args: Any, **kwargs: Any) -> None:
            if self._is_own:
                original(strategy, *args, **kwargs)
                return
            self._leave_default()
            with around(strategy, *args, **kwargs):
                original(strategy, *args, **kwargs)

        return __init__


def _is_of_strategy(error: BaseException) -> bool:
    """Whether an error tells of a strategy, or was raised where TensorFlow has its strategies."""
    innermost = traceback.extract_tb(error.__traceback__)[-1:]
    told = ("tf.distribute", "DistributedVariable", "'merge_call'")
    return any("tensorflow/python/distribute/" in one.filename for one in innermost) or any(
        one in str(error) for one in told
    )
