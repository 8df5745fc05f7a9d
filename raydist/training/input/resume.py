"""Where a resumed run takes up its data, also if shuffles draw another order for each pass over it."""

from __future__ import annotations

import enum
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from raydist.training import tf_private
from raydist.training.replicas.accumulation import BatchGroups
from raydist.training.replicas.slices import own_rows_of
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


def begin_epochs(dataset: tf.data.Dataset, count: int, *, unread: Unread) -> None:
    """Takes the seeds of `count` epochs, each of which has read the whole of the data.

    Those of tf_keras's unread iterator are not among them.
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
    steps: int,
    unread: Unread,
    group_size: int = 1,
) -> Callable[[], None] | None:
    """Returns what takes the seeds of a `fit` that has ended; None if they depend on timing.

    They do if one iterator over endless data goes through passes of a shuffle: TensorFlow reads ahead.

    Args:
      epochs: Epochs that it had begun.
      steps_per_epoch: None where the data's end ended each of them.
      steps: Steps of all epochs together.
      group_size: Batches of each step.
    """
    size = int(dataset.cardinality())
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


def seeds_of_loop(dataset: tf.data.Dataset, *, num_steps: int) -> Callable[[], None] | None:
    """Returns what takes the seeds of `num_steps` batches, from passes over the data one after the other.

    None if they depend on timing, as for `seeds_of_fit`.
    """
    size = int(dataset.cardinality())
    if size > 0:
        return lambda: begin_passes(dataset, -(-num_steps // size))
    if size == tf.data.INFINITE_CARDINALITY:
        return (lambda: begin_passes(dataset, 1)) if _is_begun_at_once(dataset) else None
    return lambda: _read(dataset.repeat().take(num_steps))


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


@dataclass(frozen=True)
class _Ended:
    """A training that has ended, and that later ones may shuffle on from."""

    shuffles: list[tf.data.Dataset]
    take_seeds: Callable[[], None] | None


class EndedTrainings:
    """The trainings of a run that have ended, as far as later ones depend on the seeds that they took.

    Data that no later training shuffles on are not read.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._ended: list[_Ended] = []

    def add(self, dataset: Any, take_seeds: Callable[[], None] | None) -> None:
        """Adds a training on `dataset` whose seeds `take_seeds` takes.

        Args:
          take_seeds: None if nobody knows how many there were.
        """
        if shuffles := shuffles_of(dataset):
            self._ended.append(_Ended(shuffles, take_seeds))

    def continue_with(self, *datasets: Any) -> None:
        """Takes the seeds of the trainings that have a shuffle in common with what is read from now on."""
        wanted = {id(one) for dataset in datasets for one in shuffles_of(dataset)}
        ended, self._ended = self._ended, []
        for one in ended:
            if wanted.isdisjoint(map(id, one.shuffles)):
                self._ended.append(one)
            elif one.take_seeds is not None:
                one.take_seeds()
            else:
                self._note(DEPENDS_ON_TIMING)


_BEGIN_ANEW = (
    "the data of this model.fit restart from the beginning after the restore: PyDatasets, generators, and "
    "arrays that tf_keras shuffles cannot be read from the middle, so examples may be trained on in another "
    "order than without the restart, or twice; ctx.fit and tf.data.Datasets continue where they were"
)


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

    def __init__(
        self,
        start: Start,
        groups: BatchGroups | None = None,
        *,
        is_there: bool = False,
        redraws: bool = True,
        rereads: bool = False,
    ) -> None:
        """Takes the position.

        Args:
          is_there: Whether the data begin at the position by themselves.
          redraws: Whether each pass may draw from a generator, so that those before have to be begun too.
          rereads: Whether data that cannot be read from the position on begin at their beginning.
        """
        self.start = start
        self._groups = groups or BatchGroups()
        self._is_there = is_there
        self._redraws = redraws
        # How many batches the iterators skip that are made now.
        self._skip = tf_private.plain_variable(0, tf.int64) if start != Start() else None
        self._rereads = rereads

    def of_data(self, *, is_fixed: bool) -> Resumption:
        """Returns where data begin that Keras has made a dataset of.

        Args:
          is_fixed: Whether each process gets the same batches in each epoch, and can read them again.
        """
        if is_fixed or not self._rereads:
            return self
        if self.start != Start():
            reporter.note(_BEGIN_ANEW)
        return Resumption(Start(), self._groups)

    def prepare(self, dataset: tf.data.Dataset, *, steps_per_epoch: int | None, unread: Unread) -> None:
        """Brings a dataset's random numbers to the position, and finds out how many batches to skip.

        A pipeline that reshuffles each epoch draws a seed for each iterator. So that epoch k shuffles
        the same in a resumed run, the seeds of the epochs before are drawn first.

        Args:
          steps_per_epoch: Where given, one iterator goes through all epochs, and on after its end.
          unread: Which iterators the `fit` makes besides those that it reads.
        """
        if self._skip is None or self._is_there:
            return
        skip, passes = self.start.step, self.start.epoch  # in steps
        if steps_per_epoch is not None:
            skip, passes = self.start.epoch * steps_per_epoch + self.start.step, 0
            size = int(dataset.cardinality())
            if size > 0:
                passes, skip = divmod(skip, self._groups.num_steps(size))
        if self._redraws and steps_per_epoch is not None:
            begin_passes(dataset, passes)  # the one after each pass is read on
        elif self._redraws:
            begin_epochs(dataset, passes, unread=unread)
        self._skip.assign(skip * self._groups.size)

    def begin(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        """Returns a dataset with an element for each batch from the position on, until `epoch_ended`."""
        count = self._skip
        if count is None or self._is_there:
            return batches
        # Read whenever an iterator begins, so that the same dataset serves the epochs after.
        return tf.data.Dataset.from_tensors(0).flat_map(lambda _: batches.skip(count))

    def epoch_ended(self) -> None:
        """From now on iterators begin at the beginning."""
        if self._skip is not None:
            self._skip.assign(0)


def element_spec(dataset: Any) -> Any:
    """Returns the structure of one replica's batch of a dataset or a distributed dataset."""
    return own_rows_of(tf_private.spec_of_replica(dataset.element_spec))
