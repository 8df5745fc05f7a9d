"""The seeds that shuffles draw for each pass: which a training takes, and how a resumed run takes them."""

from __future__ import annotations

import enum
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from raydist import tf_private
from raydist.training.input import map_functions
from raydist.training.reporting import reporter

DEPENDS_ON_TIMING = (
    "the data were shuffled by an earlier training, which read ahead into its next pass: from where this one "
    "shuffles on depends on timing, so the order of examples differs from run to run, from one device's, and "
    "after a resume; make a dataset for each training, or use raydist.data"
)


class Unread(enum.Enum):
    """Where a Keras makes an iterator that it does not read. With it, too, a shuffle draws an order.

    AFTER_PASS: Keras 3, when it has read data of a known length to their end.
    AT_FIRST: tf_keras, before the first epoch of data that it restarts in each.
    """

    AFTER_PASS = "after pass"
    AT_FIRST = "at first"


# What begins its inputs once, with its own iterator: not `repeat`, `concatenate` and `cache`.
_BEGIN_WITH_INPUT = {
    *("map", "batch", "padded_batch", "prefetch", "take", "skip", "filter", "options", "assert_cardinality"),
    *("shuffle", "zip", "flat_map", "interleave", "window", "scan", "take_while", "unbatch", "rebatch"),
    "random",
}


def shuffles_of(dataset: Any) -> list[tf.data.Dataset]:
    """Returns the shuffles in a pipeline that draw another order for each pass; none of other data."""
    if not isinstance(dataset, tf.data.Dataset):
        return []
    return [node for node in tf_private.nodes_of(dataset) if tf_private.reshuffles(node)]


def begin_passes(dataset: tf.data.Dataset, count: int) -> None:
    """Takes the seeds of `count` passes over the whole of the data.

    It reads the data only where that decides how many seeds a pass takes, as with a `repeat` after a shuffle.
    """
    is_begun_at_once = _is_begun_at_once(dataset)
    for _ in range(count):
        if is_begun_at_once:
            next(iter(dataset), None)  # a shuffle of shuffled data begins these with its first element
        else:
            _read(dataset)


def begin_unread(dataset: Any) -> None:
    """Takes the seeds of an iterator that is made and not read."""
    if shuffles_of(dataset):
        iter(dataset)


def begin_epochs(dataset: tf.data.Dataset, count: int, *, unread: Unread | None) -> None:
    """Takes the seeds of `count` epochs, each of which has read the whole of the data.

    Those of tf_keras's unread iterator are not among them.

    Args:
      unread: None where every iterator is read.
    """
    for _ in range(count):
        begin_passes(dataset, 1)
        if unread is Unread.AFTER_PASS and int(dataset.cardinality()) > 0:
            begin_unread(dataset)


def seeds_of_fit(
    dataset: tf.data.Dataset,
    *,
    epochs: int,
    steps_per_epoch: int | None,
    steps: int | None = None,
    unread: Unread,
    group_size: int = 1,
) -> Callable[[], None] | None:
    """Returns what takes the seeds of a `fit` that has ended; None if they depend on timing.

    They do if one iterator over endless data goes through passes of a shuffle: TensorFlow reads ahead.

    Args:
      steps_per_epoch: None where the data's end ended each of them.
      steps: Steps of all epochs together; None for whole epochs.
    """
    size = int(dataset.cardinality())
    steps = epochs * (steps_per_epoch or 0) if steps is None else steps
    begins_anew = steps_per_epoch in (None, size)
    if steps_per_epoch is None:
        passes, left = epochs, 0
    elif size > 0:  # one iterator after the other, each as long as the data
        passes, left = divmod(steps, -(-size // group_size))
    elif _is_begun_at_once(dataset):
        passes, left = 0, steps
    else:
        return None

    def take_seeds() -> None:
        if unread is Unread.AT_FIRST and begins_anew:
            begin_unread(dataset)
        if steps_per_epoch is None:
            begin_epochs(dataset, passes, unread=unread)
            return
        begin_passes(dataset, passes + (left > 0))
        if unread is Unread.AFTER_PASS and passes and not left:
            begin_unread(dataset)  # with several passes, that of each but the last one was read

    return take_seeds


def seeds_of_loop(dataset: Any, *, num_steps: int) -> Callable[[], None] | None:
    """Returns what takes the seeds of `num_steps` batches, from passes over the data one after the other.

    None if they depend on timing, as for `seeds_of_fit`.
    """
    if not isinstance(dataset, tf.data.Dataset):
        return lambda: None
    size = int(dataset.cardinality())
    if size > 0:
        return lambda: begin_passes(dataset, -(-num_steps // size))
    if size == tf.data.INFINITE_CARDINALITY:
        return (lambda: begin_passes(dataset, 1)) if _is_begun_at_once(dataset) else None
    return lambda: _read(dataset.repeat().take(num_steps))


def passes_from(dataset: tf.data.Dataset, first_batch: int) -> tf.data.Dataset:
    """Returns passes over the data, one after the other, from a batch on.

    Of whole passes before it the seeds are taken. They are read only where they may draw something else.
    """
    size = int(dataset.cardinality())
    functions = (one for node in tf_private.nodes_of(dataset) for one in tf_private.functions_of(node))
    if size > 0 and not any(map(map_functions.operation_with_state, functions)):
        passes, first_batch = divmod(first_batch, size)
        if shuffles_of(dataset):
            begin_passes(dataset, passes)
    return dataset.repeat().skip(first_batch)


_read_ahead: weakref.WeakSet[tf.data.Dataset] = weakref.WeakSet()


def note_read_ahead(dataset: Any) -> None:
    """Notes a `fit` of the user's own on data that an earlier one has read on, nobody knows how far."""
    shuffles = shuffles_of(dataset)
    if not shuffles or seeds_of_loop(dataset, num_steps=1) is not None:
        return
    if any(one in _read_ahead for one in shuffles):
        reporter.note(DEPENDS_ON_TIMING)
    _read_ahead.update(shuffles)


def _read(dataset: tf.data.Dataset) -> None:
    dataset.reduce(tf.constant(0, tf.int64), lambda number, _: number + 1)


def _is_begun_at_once(dataset: tf.data.Dataset) -> bool:
    """Whether each shuffle takes exactly one seed for an iterator over the data, when that is made."""
    if not shuffles_of(dataset):
        return True
    if tf_private.name_of_transformation(dataset) not in _BEGIN_WITH_INPUT:
        return False
    return all(map(_is_begun_at_once, tf_private.inputs_of(dataset)))


class EndedTrainings:
    """The trainings of a run that have ended, as far as later ones depend on the seeds that they took.

    Data that no later training shuffles on are not read.
    """

    def __init__(self) -> None:
        self._ended: list[tuple[list[tf.data.Dataset], Callable[[], None] | None]] = []

    def add(self, dataset: Any, take_seeds: Callable[[], None] | None, *, is_done: bool) -> None:
        """Adds a training on `dataset` whose seeds `take_seeds` takes.

        Args:
          take_seeds: None if nobody knows how many there were.
          is_done: Whether it ended before a resume, so that nothing has taken them yet.
        """
        if (is_done or take_seeds is None) and (shuffles := shuffles_of(dataset)):
            self._ended.append((shuffles, take_seeds))

    def continue_with(self, *datasets: Any) -> None:
        """Takes the seeds of the trainings that have a shuffle in common with what is read from now on."""
        wanted = {id(one) for dataset in datasets for one in shuffles_of(dataset)}
        ended, self._ended = self._ended, []
        for shuffles, take_seeds in ended:
            if wanted.isdisjoint(map(id, shuffles)):
                self._ended.append((shuffles, take_seeds))
            elif take_seeds is not None:
                take_seeds()
            else:
                reporter.note(DEPENDS_ON_TIMING)
