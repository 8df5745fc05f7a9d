"""The pace of a training: how long steps wait for data and for other tasks, and what is reported of that."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from raydist import tf_private
from raydist.outcome.status import Scope, TaskPace
from raydist.training.cluster import collective_clock
from raydist.training.replicas import batch_slices
from raydist.training.reporting.host_usage import TaskLinks, read_cpu_usage
from raydist.training.reporting.logs import REPORT_INTERVAL_S, floats
from raydist.training.reporting.progress import say
from raydist.training.reporting.reporter import Reporter

INPUT_WAIT = "input_wait"  # the name of the share that is reported
# Of the time of a step: above it the run has a note.
WAIT_LIMIT = 0.2
# A training that was shorter has mostly traced and filled its buffers.
MIN_TRAINING_S = 10.0


@dataclass(frozen=True)
class Reading:
    """Sums since the task began; `at_s` is on the clock of `time.perf_counter`.

    Attributes:
      waited_s: None where the time is not measured, see `InputClock.next`.
    """

    at_s: float
    waited_s: float | None
    num_examples: float

    def since(self, earlier: Reading) -> dict[str, float]:
        """Returns the share of the time spent waiting for data, if measured, and this worker's examples/s."""
        seconds = max(self.at_s - earlier.at_s, 1e-9)
        values = {"examples_per_s": (self.num_examples - earlier.num_examples) / seconds}
        if self.waited_s is not None and earlier.waited_s is not None:
            values[INPUT_WAIT] = min(1.0, (self.waited_s - earlier.waited_s) / seconds)
        return values


def advice(task: str, begun: Reading, ended: Reading) -> str | None:
    """Returns a note on a training that waited too long for its data; None where it did not."""
    seconds, share = ended.at_s - begun.at_s, ended.since(begun).get(INPUT_WAIT, 0.0)
    if seconds < MIN_TRAINING_S or share <= WAIT_LIMIT:
        return None
    return (
        f"{task} waited for data {share:.0%} of the time ({share * seconds:.0f} of "
        f"{seconds:.0f} s): cache what does not change (cached()), make maps cheaper, or "
        "give it more CPUs with --cpus worker=N"
    )


class InputClock:
    """Measures `next` on the iterators of training data, in graphs and outside."""

    def __init__(self) -> None:
        # Outside of every strategy: each worker has its own.
        with tf.init_scope():
            self._totals = tf.Variable(
                [0.0, 0.0], dtype=tf.float64, trainable=False, name="raydist_input_clock"
            )
        self._waited_s = 0.0
        self._num_examples = 0.0
        self._is_timed = True

    def next(self, iterator: Any) -> Any:
        """Returns `next(iterator)`.

        A graph that is traced when the user has enabled deterministic operations counts the examples only.
        """
        if not tf.inside_function():
            began_at_s = time.perf_counter()
            element = next(iterator)
            self._waited_s += time.perf_counter() - began_at_s
            self._num_examples += float(_num_examples(element))
            return element
        if tf_private.is_op_determinism_enabled():
            self._is_timed = False
            element, waited_s = next(iterator), tf.constant(0.0, tf.float64)
        else:
            element, waited_s = _timed_next(iterator)
        self._totals.assign_add(tf.stack([waited_s, tf.cast(_num_examples(element), tf.float64)]))
        return element

    def give_back(self, element: Any) -> None:
        """Uncounts an element that was taken outside of a graph, and will be taken again."""
        self._num_examples -= float(_num_examples(element))

    def read(self) -> Reading:
        waited_s, num_examples = self._totals.numpy().tolist()
        is_timed = self._is_timed and not tf_private.is_op_determinism_enabled()
        return Reading(
            at_s=time.perf_counter(),
            waited_s=waited_s + self._waited_s if is_timed else None,
            num_examples=num_examples + self._num_examples,
        )


def _timed_next(iterator: Any) -> tuple[Any, tf.Tensor]:
    """Returns `next(iterator)` in a graph, and the seconds until all of it was there."""
    # A step of a loop in a graph begins when the one before has ended.
    began_at_s = tf_private.Timestamps.now()
    with tf.control_dependencies([began_at_s]):
        element = next(iterator)
    # Not on the number of rows: of a batch of static size it is a constant, which waits for nothing.
    with tf.control_dependencies(_tensors_of(element)):
        return element, tf_private.Timestamps.now() - began_at_s


def _tensors_of(element: Any) -> list[tf.Tensor]:
    components = [one for part in tf.nest.flatten(element) for one in _of_replicas(part)]
    return [one for one in tf.nest.flatten(components, expand_composites=True) if tf.is_tensor(one)]


# Of the process, not of a `fit`: Keras keeps the functions that it has traced from one `fit` to the next, and
# they add to the variable of the clock that was there when they were traced.
_clock: InputClock | None = None


def start_input_clock(strategy: tf.distribute.Strategy) -> None:
    """Measures from now on. Not on TPUs, whose loops run where there is no such clock, nor on a chief.

    Under ParameterServer the workers take the data.
    """
    global _clock
    tf_private.Timestamps.begin()
    is_elsewhere = isinstance(strategy, (tf.distribute.TPUStrategy, tf.distribute.ParameterServerStrategy))
    _clock = None if is_elsewhere else InputClock()


def read_input_clock() -> Reading | None:
    """Returns the sums so far; None where nothing is measured."""
    return None if _clock is None else _clock.read()


def next_element(iterator: Any) -> Any:
    return next(iterator) if _clock is None else _clock.next(iterator)


def give_back(element: Any) -> None:
    """Uncounts an element of `next_element` that will be taken again, from another iterator."""
    if _clock is not None:
        _clock.give_back(element)


def _num_examples(element: Any) -> Any:
    """Returns this task's examples in an element: those of its slices, or the rows of its first component."""
    counted = getattr(element, "num_examples", None)
    if counted is not None:
        return tf.add_n([tf.cast(one, tf.int64) for one in _of_replicas(counted)])
    return tf.add_n([_num_rows(one) for one in _of_replicas(tf.nest.flatten(element)[0])])


def _of_replicas(value: Any) -> Sequence[Any]:
    return value.values if isinstance(value, tf.distribute.DistributedValues) else [value]


def _num_rows(component: Any) -> Any:
    has_rows = (
        isinstance(component, (tf.Tensor, tf.SparseTensor, tf.RaggedTensor)) and component.shape.rank != 0
    )
    return tf.cast(batch_slices.num_rows(component) if has_rows else 1, tf.int64)


# A file of each thread and the state of each connection are read for it.
PACE_INTERVAL_S = 2.0


class PaceReport:
    """What one training reports of the time of its steps, and of its input where that is measured."""

    def __init__(self) -> None:
        self._begun: Reading | None = None
        self._last: Reading | None = None
        self._waited: tuple[float, float] | None = None  # until when, and how long
        self._reported_at_s = self._logged_at_s = float("-inf")

    def completed(
        self,
        reporter: Reporter,
        logs: Any,
        *,
        step: int,
        epoch: int | None,
        is_measured: bool = True,
        is_resumable: bool = True,
    ) -> None:
        """Reports `step` steps; at most twice a second with this task's own values of `logs`, Keras's.

        Args:
          is_measured: False for a training whose time is not measured.
          is_resumable: As of `Reporter.advance`.
        """
        values, now_s = None, time.monotonic()
        if now_s - self._logged_at_s >= REPORT_INTERVAL_S:
            self._logged_at_s, values = now_s, floats(logs)
            measured = self.update(reporter, step=step) if is_measured else {}
            reporter.report({**values, **measured}, step=step, epoch=epoch, scope=Scope.LOCAL)
        reporter.advance(step, epoch=epoch, values=values, is_resumable=is_resumable)

    def update(self, reporter: Reporter, *, step: int) -> dict[str, float]:
        """Returns this task's values since the last call, and reports its sums to the controller every 2 s.

        Called at a step's end. What the first steps take is not counted: tracing, and filling the buffers.
        """
        values, waited_s, now_s = self._update_input(), collective_clock.waited_s(), time.monotonic()
        if waited_s is not None:
            last, self._waited = self._waited, (now_s, waited_s)
            if last is not None and now_s > last[0]:
                values["collective_wait"] = min(1.0, (waited_s - last[1]) / (now_s - last[0]))
        if now_s - self._reported_at_s >= PACE_INTERVAL_S:
            self._reported_at_s = now_s
            pace = _pace(step, at_s=now_s, collective_wait_s=waited_s, links=reporter.links)
            reporter.progress.paced(pace)
        return values

    def _update_input(self) -> dict[str, float]:
        """Returns the values of the input since the last call; nothing at the first one."""
        reading = read_input_clock()
        if reading is None:
            return {}
        last, self._last = self._last, reading
        if last is None:
            self._begun = reading
            return {}
        return reading.since(last)

    def finish(self, reporter: Reporter) -> None:
        """Prints a line on the input, and notes an advice where the training waited too long for it."""
        reading, begun = read_input_clock(), self._begun
        if reading is None or begun is None or reading.at_s - begun.at_s < 1.0:
            return
        values = reading.since(begun)
        waited = (
            f"{values[INPUT_WAIT]:.0%} of the time waited for data"
            if INPUT_WAIT in values
            else "time waited for data not measured with deterministic operations"
        )
        say(f"input {values['examples_per_s']:,.0f} examples/s in this task, {waited}")
        if (sentence := advice(str(reporter.task), begun, reading)) is not None:
            reporter.note(sentence)


def _pace(step: int, *, at_s: float, collective_wait_s: float | None, links: TaskLinks) -> TaskPace:
    read = read_input_clock()
    return TaskPace(
        at_s=at_s,
        steps=step,
        input_wait_s=None if read is None else read.waited_s,
        collective_wait_s=collective_wait_s,
        **dataclasses.asdict(read_cpu_usage()),
        host=links.host,
        links=links.read(),
    )
