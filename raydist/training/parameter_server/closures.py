"""Training steps as closures that the coordinator schedules on whichever worker is free.

One step a closure costs the coordinator as much Python as a small step takes; so a closure holds a
loop of steps. In a loop that spans devices each turn costs every ps a message more, so several steps
are unrolled in each turn (2 cores, 3 workers, 2 ps, a small model: 250 steps/s with one step a
closure, 480 in a loop, 620 with 10 steps unrolled).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from raydist import tf_private
from raydist.errors import UnsupportedError
from raydist.training.cluster.ps_messages import StepReads
from raydist.training.parameter_server.closure_sizes import BusyTimes, ClosureSizes
from raydist.training.parameter_server.train_input import Feed
from raydist.training.trainers.base import TaskRun

Step = Callable[[Any, Any], Any]

# Each worker has one closure to run and one that waits, so that it never waits for the coordinator.
_CLOSURES_PER_WORKER = 2
_POLL_S = 0.001


class PackedSteps:
    """Closures of several steps.

    Attributes:
      applied: int64 variable on a ps: the steps that were applied, those included that a worker's
        death made another one repeat.
    """

    def __init__(
        self,
        run: TaskRun,
        step: Step,
        *,
        feed: Feed,
        zeros: Callable[[], Sequence[tf.Tensor]],
        variables: Sequence[Any],
    ) -> None:
        """Takes `step(element, state) -> state`, which runs in a closure and calls `strategy.run`.

        Args:
          zeros: Makes the state (tensors that are summed over closures) that each closure begins with.
          variables: What a step is likely to read: those that are small travel together.
        """
        self._strategy = run.strategy
        self._coordinator = run.coordinator
        self._worker_numbers = tf_private.worker_numbers(run.coordinator)
        self._step = step
        self._zeros = zeros
        self._variables = variables
        self.feed = feed
        self._functions: dict[int, Any] = {}
        self._shapes: list[tuple[int, ...]] = []
        with run.strategy.scope():
            self.applied = tf.Variable(0, dtype=tf.int64, trainable=False, name="raydist_steps_applied")
        self.trace_s = 0.0

    def trace(self, unroll: int) -> None:
        """Traces the closure whose loop takes `unroll` steps a turn, unless it is there already.

        Raises:
          UnsupportedError: A step uses a variable that was made outside of the strategy's scope.
        """
        if unroll in self._functions:
            return
        began_at_s = time.perf_counter()
        function = self._make(unroll)
        specs = *self.feed.specs, tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.int32)
        with tf_private.traced_for_workers(self._strategy):
            concrete = function.get_concrete_function(*specs)
        check_variables(concrete.variables)
        # The function itself is kept too: it owns what the concrete one calls.
        self._functions[unroll] = function
        self.trace_s = (time.perf_counter() - began_at_s) / unroll

    def unpack(self, result: np.ndarray) -> tuple[int, list[np.ndarray]]:
        """Returns which worker has run a closure, and the state that it returned, in double precision."""
        result, worker = result[:-1], int(result[-1])
        sizes = [int(np.prod(shape)) for shape in self._shapes]
        parts = np.split(result, np.cumsum(sizes)[:-1])
        return worker, [part.reshape(shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def schedule(self, *, first_step: int, turns: int, unroll: int) -> Any:
        """Schedules `turns * unroll` steps; returns the remote value of their state."""
        data = self.feed.arguments(first_step, turns * unroll)
        arguments = (*data, tf.constant(turns), self._worker_numbers)
        return self._coordinator.schedule(self._functions[unroll], args=arguments)

    def _make(self, unroll: int) -> Any:
        is_alone = self._strategy.num_replicas_in_sync == 1  # without several GPUs in a worker

        @tf.function(autograph=False)
        def closure(*arguments: Any) -> tf.Tensor:
            *data, turns, worker = arguments
            iterator = self.feed.iterator(*data)

            def turn(index: tf.Tensor, *state: tf.Tensor) -> tuple[tf.Tensor, ...]:
                reads = StepReads(self._variables)
                for _ in range(unroll):
                    with reads.step() if is_alone else contextlib.nullcontext():
                        state = self._step(next(iterator), state)
                    with tf.device(self.applied.device):  # the number, too, or each step would send it
                        self.applied.assign_add(1)
                return (index + 1, *state)

            zeros = self._zeros()
            self._shapes = [tuple(part.shape) for part in zeros]
            _, *state = tf.while_loop(
                lambda index, *state: index < turns, turn, [tf.constant(0), *zeros], parallel_iterations=1
            )
            # One tensor, as each costs a message of its own while the worker waits.
            parts = [tf.reshape(tf.cast(part, tf.float64), [-1]) for part in (*state, worker)]
            return tf.concat(parts, axis=0)

        return closure


@contextlib.contextmanager
def _naming_empty_data() -> Iterator[None]:
    """Raises UnsupportedError where the data of closures in the block have no batch at all."""
    try:
        yield
    except tf.errors.OutOfRangeError as error:
        if "End of sequence" not in str(error):
            raise
        # They are read over and over, so only those end that have nothing.
        raise UnsupportedError(
            "train_data has no batches: the dataset that its function returns on the workers is empty; look "
            "at the files that it reads there, and at its filters"
        ) from error


class StepScheduler:
    """Keeps all workers busy until a number of steps is done, and counts what is."""

    def __init__(
        self,
        run: TaskRun,
        steps: PackedSteps,
        sizes: ClosureSizes,
        *,
        first_step: int,
        is_watched: bool = False,
    ) -> None:
        """Takes what to schedule.

        Args:
          first_step: The step of the data that comes first.
          is_watched: Whether each closure waits for the one before it on a worker, because what is done
            between two steps may change the next one.
        """
        self._per_worker = 1 if is_watched else _CLOSURES_PER_WORKER
        self._times = BusyTimes(run.assignment.num_slots, report=run.reporter.progress.workers_paced)
        self._coordinator = run.coordinator
        self._steps = steps
        self._sizes = sizes
        self._done = 0
        self._first_step = self._next_step = first_step

    @property
    def num_repeated(self) -> int:
        """Steps that were applied once more because their worker died with the closure half done."""
        return int(self._steps.applied.numpy()) - self._done

    @_naming_empty_data()
    def run(
        self,
        num_steps: int,
        on_done: Callable[[int, Sequence[np.ndarray]], None],
        *,
        on_begin: Callable[[int], None] = lambda count: None,
        should_pause: Callable[[], bool] = lambda: False,
    ) -> None:
        """Runs `num_steps` steps, fewer after a pause, and returns once no closure is under way.

        Args:
          on_begin: Called with the number of steps of each closure before it is scheduled.
          on_done: Takes the number of steps and the state of each closure that is done.
          should_pause: Asked often; once it is true nothing more is scheduled.

        Raises:
          Exception: What a step raised, or what TensorFlow says of a dead ps.
        """
        self._sizes.begin()
        left = num_steps
        pending: list[tuple[int, Any]] = []
        has_begun = False
        while left or pending:
            if left and should_pause():
                left = 0
            self._count_workers()
            is_outdated = self._steps.feed.is_outdated
            if is_outdated and not pending:
                self._steps.feed.renew(self._next_step - self._first_step)
                continue
            while left and not is_outdated and len(pending) < self._sizes.num_workers * self._per_worker:
                self._prepare()
                turns, unroll = self._sizes.next(left)
                if not has_begun:  # not before tracing
                    self._times.begin()
                    has_begun = True
                on_begin(turns * unroll)
                scheduled = self._steps.schedule(first_step=self._next_step, turns=turns, unroll=unroll)
                pending.append((turns * unroll, scheduled))
                left -= turns * unroll
                self._next_step += turns * unroll
            finished = [entry for entry in pending if tf_private.is_fetched(entry[1])]
            if not finished:
                self._coordinator.done()  # raises what a closure raised
                time.sleep(_POLL_S)
                continue
            pending = [entry for entry in pending if entry not in finished]
            for count, remote_value in finished:
                self._done += count
                self._sizes.completed(count)
                worker, state = self._steps.unpack(remote_value.fetch())
                self._times.completed(worker, count)
                on_done(count, state)

    def _count_workers(self) -> None:
        num_workers = tf_private.num_present(self._coordinator)
        if num_workers != self._sizes.num_workers:
            self._sizes.num_workers = num_workers
            self._sizes.begin()
            self._times.begin()

    def _prepare(self) -> None:
        self._steps.trace(1)
        unroll = self._sizes.wanted_unroll(trace_s=self._steps.trace_s)
        if unroll > 1:
            self._steps.trace(unroll)
            self._sizes.unrolled(unroll)


def check_variables(variables: Sequence[tf.Variable]) -> None:
    """Raises UnsupportedError for a variable that the workers cannot reach.

    A worker sees what is on a ps or on itself, and nothing of the chief's.
    """
    for variable in variables:
        device = variable.handle.device
        if "/job:ps" not in device and "/job:worker" not in device:
            raise UnsupportedError(
                f"variable {variable.name} was made outside of the strategy, where the workers cannot reach "
                "it; make models, optimizers and variables inside `with ctx.strategy.scope():`"
            )
