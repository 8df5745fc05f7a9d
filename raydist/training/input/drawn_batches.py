"""DrawnBatches: how far Keras's calls read a Python generator, or a PyDataset, equal in all workers.

A pipeline reads ahead as fast as it can. What a call leaves of a generator, which the next call gets, and
what it changes in Python would depend on time, and differ between workers.
"""

from __future__ import annotations

import collections
import math
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from raydist import tf_private
from raydist.training.cluster import collective_calls, collectives
from raydist.training.reporting import reporter

_CUT_OFF = (
    "a callback stopped model.fit inside an epoch, when batches of its generator had been read ahead: what "
    "reads the generator next begins behind them, in all workers with the same batch (on one device it is "
    "the same, and their number differs from run to run)"
)


def of_python(dataset: Any, strategy: tf.distribute.Strategy) -> DrawnBatches | None:
    """Returns what is drawn for a dataset that Keras has made of a generator or a PyDataset; None of others.

    It takes the generator's place in the dataset.
    """
    if not isinstance(dataset, tf.data.Dataset):
        return None
    found = [tf_private.generator_of(one) for one in tf_private.nodes_of(dataset)]
    generators = [one for one in found if one is not None]
    return DrawnBatches(generators[0], strategy) if len(generators) == 1 else None


class DrawnBatches:
    """Gives an epoch as many batches as it has steps, and draws one more, as plain Keras mostly does.

    With that one the next epoch of the same call begins. Where the steps are not known, or an epoch ends
    before, all workers draw as many as the one that has drawn most, at the end of the call.
    """

    def __init__(self, generator: tf_private.PythonGenerator, strategy: tf.distribute.Strategy) -> None:
        self._strategy = strategy
        self._function = generator.function
        if hasattr(self._function, "raydist_compared"):
            self.raydist_compared = True
        self._lock = threading.Lock()  # TensorFlow draws in threads of its own
        self._epoch = 0
        self._has_begun = self._is_settled = False
        self._source: Iterator[Any] | None = None
        self._ahead: collections.deque[Any] = collections.deque()
        self._num_given = 0
        self._limit = 0.0
        generator.replace(self)
        collective_calls.at_end(self._settle)

    def __call__(self, *args: Any) -> Iterator[Any]:
        """Yields the batches of one epoch to the iterator that TensorFlow makes for it."""
        epoch = self._epoch
        with self._lock:
            if self._source is None:
                self._source = iter(self._function(*args))
        while True:
            with self._lock:
                if epoch != self._epoch or (self._has_begun and self._num_given >= self._limit):
                    return
                if not self._ahead:
                    self._draw()
                if not self._ahead:
                    return
                self._num_given += 1
                batch = self._ahead.popleft()
                if isinstance(batch, _Raised):
                    raise batch.error
            yield batch

    def begin_epoch(self, num_batches: int | None, *, is_new_pass: bool) -> None:
        """Call it before an epoch's iterator is made.

        Args:
          num_batches: Of the epoch; None where it is not known, and where the data begin at a later one.
          is_new_pass: Whether the data begin again; else the first epoch of a call does.
        """
        with self._lock:
            if is_new_pass and self._has_begun:
                self._epoch += 1
                self._source, self._num_given, self._limit = None, 0, 0.0
                self._ahead.clear()
            self._has_begun, self._is_settled = True, False
            self._limit += math.inf if num_batches is None else num_batches

    def end_epoch(self) -> None:
        """Call it when all steps of an epoch have run, before its end is told to the data."""
        if math.isinf(self._limit):
            return
        with self._lock:
            self._epoch += 1
            if not self._ahead:
                self._draw()
            self._is_settled = True

    def _draw(self) -> None:
        if self._source is None:
            return
        try:
            self._ahead.append(next(self._source))
        except StopIteration:
            self._source = iter(())
        except Exception as error:  # the user's code; it is raised where the batch is read
            self._ahead.append(_Raised(error))

    def _settle(self) -> None:
        """Draws no more, and brings all workers to the same batch. A collective."""
        if self._is_settled:
            return
        with self._lock:
            self._epoch += 1
        if collectives.is_alone(self._strategy):
            return
        num_drawn = self._num_given + len(self._ahead)
        rows = collectives.gather_over_workers(self._strategy, [num_drawn])
        for _ in range(max(count for [count] in rows) - num_drawn):
            self._draw()
        if math.isfinite(self._limit) and self._has_begun:
            reporter.detail(_CUT_OFF)


class _Raised:
    def __init__(self, error: Exception) -> None:
        self.error = error
