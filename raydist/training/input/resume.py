"""Where a resumed run takes up its data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from raydist.training import tf_private
from raydist.training.input import reshuffles
from raydist.training.replicas.accumulation import Groups
from raydist.training.replicas.slices import Slice
from raydist.training.reporting import reporter

_BEGIN_ANEW = (
    "the data of this model.fit begin anew after the restore: PyDatasets, generators, and arrays that "
    "tf_keras shuffles cannot be read from the checkpoint on, so examples may be trained on in another order "
    "than without the restart, or twice; ctx.fit continues where it was, and so do tf.data.Datasets"
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
        groups: Groups | None = None,
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
        self._groups = groups or Groups()
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

    def prepare(
        self, dataset: tf.data.Dataset, *, steps_per_epoch: int | None, unread: reshuffles.Unread
    ) -> None:
        """Brings a dataset's random numbers to the position, and finds out how many batches to skip.

        A pipeline that shuffles anew each epoch draws a seed for each iterator. So that epoch k shuffles
        the same in a resumed run, the seeds of the epochs before are drawn first (reshuffles.py).

        Args:
          steps_per_epoch: Where given, one iterator goes through all epochs, and on after its end.
          unread: Which iterators the `fit` makes beside those that it reads.
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
            reshuffles.begin_passes(dataset, passes)  # the one after each pass is read on
        elif self._redraws:
            reshuffles.begin_epochs(dataset, passes, unread=unread)
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
    spec = tf.nest.map_structure(lambda one: getattr(one, "_value_specs", [one])[0], dataset.element_spec)
    return spec.batch if isinstance(spec, Slice) else spec
