"""Where a resumed run takes up its data: passed to the data handlers that Keras makes inside `fit`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from raydist.strategies.global_batch import Slice


@dataclass(frozen=True, kw_only=True)
class Start:
    """A position in the data.

    Attributes:
      epoch: Epochs completed.
      step: Steps completed in the epoch that was begun.
    """

    epoch: int = 0
    step: int = 0


class _Pending:
    """The start of the next `fit`, and how many batches the iterators that are made now skip."""

    start = Start()
    skip: tf.Variable | None = None


def set_start(start: Start) -> None:
    """Sets where the next `fit` takes up its training data. The data handler that it makes takes it.

    Call it outside a strategy's scope, where the variable is a plain one.
    """
    _Pending.start = start
    _Pending.skip = tf.Variable(0, dtype=tf.int64) if start != Start() else None


def take_start() -> Start:
    """Returns the start that was set, once; then the beginning."""
    start, _Pending.start = _Pending.start, Start()
    return start


def after(dataset: tf.data.Dataset, start: Start, *, steps_per_epoch: int | None) -> tf.data.Dataset:
    """Returns `dataset` as it stands at `start`; from the second epoch on it is read from its beginning.

    A pipeline that shuffles anew each epoch draws a seed for each iterator; so that epoch k shuffles
    the same in a resumed run, the iterators of the epochs before are made and dropped.

    Args:
      steps_per_epoch: Where given, one iterator goes through all epochs, and on after its end.
    """
    if start == Start() or _Pending.skip is None:
        return dataset
    skip, passes = start.step, start.epoch
    if steps_per_epoch is not None:
        skip, passes = start.epoch * steps_per_epoch + start.step, 0
        size = int(dataset.cardinality())
        if size > 0:
            passes, skip = divmod(skip, size)
    drop_passes(dataset, passes)
    _Pending.skip.assign(skip)
    count = _Pending.skip
    # Read whenever an iterator begins, so that the same data set serves the epochs after.
    return tf.data.Dataset.from_tensors(0).flat_map(lambda _: dataset.skip(count))


def drop_passes(dataset: tf.data.Dataset, count: int) -> None:
    """Begins `count` passes over the data, as the epochs did that are not repeated."""
    for _ in range(count):
        next(iter(dataset), None)


def epoch_ended() -> None:
    """From now on iterators begin at the beginning."""
    if _Pending.skip is not None:
        _Pending.skip.assign(0)


def clear() -> None:
    """Forgets a start that no `fit` took."""
    _Pending.start, _Pending.skip = Start(), None


def element_spec(dataset: Any) -> Any:
    """Returns the structure of one replica's batch of a data set or a distributed data set."""
    spec = tf.nest.map_structure(lambda one: getattr(one, "_value_specs", [one])[0], dataset.element_spec)
    return spec.batch if isinstance(spec, Slice) else spec
