"""Where a resumed run takes up its data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from raydist.training.replicas.slices import Slice


@dataclass(frozen=True, kw_only=True)
class Start:
    """A position in the data.

    Attributes:
      epoch: Epochs completed.
      step: Steps completed in the epoch that was begun.
    """

    epoch: int = 0
    step: int = 0


class Resumption:
    """Where one `fit` takes up its training data."""

    def __init__(self, start: Start) -> None:
        """Takes the position. Call it outside a strategy's scope, where the variable is a plain one."""
        self.start = start
        # How many batches the iterators skip that are made now.
        self._skip = tf.Variable(0, dtype=tf.int64) if start != Start() else None

    def after(self, dataset: tf.data.Dataset, *, steps_per_epoch: int | None) -> tf.data.Dataset:
        """Returns `dataset` from the position on; from the second epoch on it is read from its beginning.

        A pipeline that shuffles anew each epoch draws a seed for each iterator; so that epoch k shuffles
        the same in a resumed run, the iterators of the epochs before are made and dropped.

        Args:
          steps_per_epoch: Where given, one iterator goes through all epochs, and on after its end.
        """
        count, start = self._skip, self.start
        if count is None:
            return dataset
        skip, passes = start.step, start.epoch
        if steps_per_epoch is not None:
            skip, passes = start.epoch * steps_per_epoch + start.step, 0
            size = int(dataset.cardinality())
            if size > 0:
                passes, skip = divmod(skip, size)
        drop_passes(dataset, passes)
        count.assign(skip)
        # Read whenever an iterator begins, so that the same data set serves the epochs after.
        return tf.data.Dataset.from_tensors(0).flat_map(lambda _: dataset.skip(count))

    def epoch_ended(self) -> None:
        """From now on iterators begin at the beginning."""
        if self._skip is not None:
            self._skip.assign(0)


def drop_passes(dataset: tf.data.Dataset, count: int) -> None:
    """Begins `count` passes over the data, as the epochs did that are not repeated."""
    for _ in range(count):
        next(iter(dataset), None)


def element_spec(dataset: Any) -> Any:
    """Returns the structure of one replica's batch of a data set or a distributed data set."""
    spec = tf.nest.map_structure(lambda one: getattr(one, "_value_specs", [one])[0], dataset.element_spec)
    return spec.batch if isinstance(spec, Slice) else spec
