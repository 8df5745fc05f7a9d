"""InputClock: how long steps wait for their data, and how many examples they take."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from raydist.strategies.context import TaskContext

# Of the time of a step: above it the user is told.
WAIT_LIMIT = 0.2
# A training that was shorter has mostly traced and filled its buffers.
MIN_TRAINING_S = 10.0


@dataclass(frozen=True)
class Reading:
    """Sums since the task began; `at_s` is on the clock of `time.perf_counter`."""

    at_s: float
    waited_s: float
    num_examples: float

    def since(self, earlier: Reading) -> dict[str, float]:
        """Returns the share of the time that was spent waiting for data, and this worker's examples/s."""
        seconds = max(self.at_s - earlier.at_s, 1e-9)
        share = (self.waited_s - earlier.waited_s) / seconds
        return {
            "input_wait": min(1.0, share),
            "examples_per_s": (self.num_examples - earlier.num_examples) / seconds,
        }


def advice(task: str, begun: Reading, ended: Reading) -> str | None:
    """Returns what to tell of a training that waited too long for its data; None where it did not."""
    seconds, share = ended.at_s - begun.at_s, ended.since(begun)["input_wait"]
    if seconds < MIN_TRAINING_S or share <= WAIT_LIMIT:
        return None
    return (
        f"{task} waited for data {share:.0%} of the time ({ended.waited_s - begun.waited_s:.0f} of "
        f"{seconds:.0f} s): cache what does not change (cache_examples()), make maps cheaper, or "
        "give it more --cpus-per-worker"
    )


class InputClock:
    """Measures `next` on the iterators of training data, in graphs and outside."""

    def __init__(self) -> None:
        # Outside of every strategy: each worker has its own.
        with tf.init_scope():
            self._totals = tf.Variable([0.0, 0.0], dtype=tf.float64, trainable=False)
        self._waited_s = 0.0
        self._num_examples = 0.0

    def next(self, iterator: Any) -> Any:
        """Returns `next(iterator)`."""
        if not tf.inside_function():
            began_at_s = time.perf_counter()
            element = next(iterator)
            self._waited_s += time.perf_counter() - began_at_s
            self._num_examples += float(_num_examples(element))
            return element
        # A step of a loop in a graph begins when the one before has ended.
        began_at_s = tf.timestamp()
        with tf.control_dependencies([began_at_s]):
            element = next(iterator)
        count = tf.cast(_num_examples(element), tf.float64)
        with tf.control_dependencies([count]):
            waited_s = tf.timestamp() - began_at_s
        self._totals.assign_add(tf.stack([waited_s, count]))
        return element

    def read(self) -> Reading:
        waited_s, num_examples = self._totals.numpy().tolist()
        return Reading(time.perf_counter(), waited_s + self._waited_s, num_examples + self._num_examples)


_clock: InputClock | None = None


def start(strategy: tf.distribute.Strategy) -> None:
    """Measures from now on. Not on TPUs, whose loops run where there is no such clock, nor on a chief.

    Under ParameterServer the workers take the data.
    """
    global _clock
    is_elsewhere = isinstance(strategy, (tf.distribute.TPUStrategy, tf.distribute.ParameterServerStrategy))
    _clock = None if is_elsewhere else InputClock()


def read() -> Reading | None:
    """Returns the sums so far; None where nothing is measured."""
    return None if _clock is None else _clock.read()


def next_element(iterator: Any) -> Any:
    """Returns `next(iterator)`, measured."""
    return next(iterator) if _clock is None else _clock.next(iterator)


class InputReport:
    """What one training tells of its input. Does nothing where nothing is measured."""

    def __init__(self) -> None:
        self._begun: Reading | None = None
        self._last: Reading | None = None

    def update(self) -> dict[str, float]:
        """Returns the values since the last call; nothing at the first one, which is after a step.

        What the first steps take is not counted: tracing, and filling the buffers.
        """
        reading = read()
        if reading is None:
            return {}
        last, self._last = self._last, reading
        if last is None:
            self._begun = reading
            return {}
        return reading.since(last)

    def finish(self, context: TaskContext) -> None:
        """Prints a line, and notes an advice where the training waited too long."""
        reading, begun = read(), self._begun
        if reading is None or begun is None or reading.at_s - begun.at_s < 1.0:
            return
        values = reading.since(begun)
        print(
            f"raydist: input {values['examples_per_s']:,.0f} examples/s in this task, "
            f"{values['input_wait']:.0%} of the time waited for data",
            flush=True,
        )
        sentence = advice(str(context.task), begun, reading)
        if sentence is not None:
            context.note(sentence)


def _num_examples(element: Any) -> Any:
    """Returns this task's examples in an element: those of its slices, or the rows of its first component."""
    counted = getattr(element, "num_examples", None)
    if counted is not None:
        return tf.add_n([tf.cast(one, tf.int64) for one in _of_replicas(counted)])
    return tf.add_n([_num_rows(one) for one in _of_replicas(tf.nest.flatten(element)[0])])


def _of_replicas(value: Any) -> Sequence[Any]:
    return value.values if isinstance(value, tf.distribute.DistributedValues) else [value]


def _num_rows(component: Any) -> Any:
    if isinstance(component, tf.SparseTensor):
        return component.dense_shape[0]
    if isinstance(component, tf.RaggedTensor):
        return tf.cast(component.nrows(), tf.int64)
    if component.shape.rank == 0:
        return tf.constant(1, tf.int64)
    return tf.shape(component, out_type=tf.int64)[0]
