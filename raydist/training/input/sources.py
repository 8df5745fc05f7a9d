"""How a resumed `fit` continues in its training data: a class for each kind of data.

The trainers choose the class, both Kerases call `begin` with the dataset that they read, and `epoch_ended`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import tensorflow as tf

from raydist import tf_private
from raydist.training.input import shuffle_seeds
from raydist.training.input.shuffle_seeds import Unread
from raydist.training.replicas.accumulation import BatchGroups
from raydist.training.replicas.batch_slices import own_rows_of
from raydist.training.reporting import reporter

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


Begin: TypeAlias = Callable[[tf.data.Dataset], tf.data.Dataset]


class Source:
    """Data that begin at the position without help, such as batches that raydist numbers.

    Attributes:
      start: The position. `groups`: which batches make up each step.
    """

    def __init__(self, start: Start | None = None, groups: BatchGroups | None = None) -> None:
        self.start = start or Start()
        self.groups = groups or BatchGroups()

    @classmethod
    def at(cls, start: Start, groups: BatchGroups | None = None) -> Source:
        """Returns one of this kind; all are alike at the beginning of the data."""
        return Source(start, groups) if start == Start() else cls(start, groups)

    def of_python(self) -> Source:
        """Returns the source of Python data that cannot be read again, or come in another order each time."""
        return self

    def begin(self, dataset: tf.data.Dataset, *, steps_per_epoch: int | None, unread: Unread) -> Begin:
        """Brings the dataset to the position, as far as its random numbers go.

        Returns what makes of a dataset with an element for each batch those from the position on, and all of
        them after `epoch_ended`.

        Args:
          steps_per_epoch: Where given, one iterator goes through all epochs, and on after its end.
          unread: Which iterators the `fit` makes besides those that it reads.
        """
        return lambda batches: batches

    def epoch_ended(self) -> None:
        """From now on iterators begin at the beginning."""


class UncountedSource(Source):
    """Data of a `fit` that saves no position, such as a plain `model.fit`."""

    def begin(self, dataset: tf.data.Dataset, **options: Any) -> Begin:
        shuffle_seeds.note_read_ahead(dataset)
        return super().begin(dataset, **options)


class NumberedSource(Source):
    """Data whose passes are all read alike: the batches before the position are skipped."""

    def __init__(self, start: Start, groups: BatchGroups | None = None) -> None:
        super().__init__(start, groups)
        # Batches that new iterators skip.
        self._skip = tf_private.plain_variable(0, tf.int64)

    def begin(self, dataset: tf.data.Dataset, *, steps_per_epoch: int | None, unread: Unread) -> Begin:
        skip, passes = self.start.step, self.start.epoch  # in steps
        if steps_per_epoch is not None:
            skip, passes = self.start.epoch * steps_per_epoch + self.start.step, 0
            size = int(dataset.cardinality())
            if size > 0:
                passes, skip = divmod(skip, self.groups.num_steps(size))
        # With `steps_per_epoch` the iterator after each pass is read on.
        self._begin_passes(dataset, passes, unread if steps_per_epoch is None else None)
        self._skip.assign(skip * self.groups.size)
        # Read whenever an iterator begins, so that the same dataset serves the epochs after.
        return lambda batches: tf.data.Dataset.from_tensors(0).flat_map(lambda _: batches.skip(self._skip))

    def epoch_ended(self) -> None:
        self._skip.assign(0)

    def _begin_passes(self, dataset: tf.data.Dataset, count: int, unread: Unread | None) -> None:
        """Draws what the passes before the position have drawn: nothing."""


class PipelineSource(NumberedSource):
    """A pipeline of `tf.data`, which may draw from generators in each pass.

    A pipeline that reshuffles each epoch draws a seed for each iterator. So that epoch k shuffles the same
    in a resumed run, the seeds of the epochs before are drawn first.
    """

    def _begin_passes(self, dataset: tf.data.Dataset, count: int, unread: Unread | None) -> None:
        shuffle_seeds.begin_epochs(dataset, count, unread=unread)


class KerasSource(PipelineSource):
    """Data of a `fit` of the user's own."""

    def of_python(self) -> Source:
        reporter.note(_BEGIN_ANEW)
        return Source()


def element_spec(dataset: Any) -> Any:
    """Returns the structure of one replica's batch of a dataset or a distributed dataset."""
    return own_rows_of(tf_private.spec_of_replica(dataset.element_spec))
