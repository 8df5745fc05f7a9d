"""Source: examples that can be read from any position, and the recipe of batches that is made of it."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from raydist.data.fields import Field
from raydist.data.windows import Piece

if TYPE_CHECKING:
    from raydist.data.batches import Batches


class Source(abc.ABC):
    """Examples of a known number, each a structure of arrays.

    Attributes:
      fields: What one example consists of.
      structure: Tuples and dicts whose ends stand for the fields, in their order.
      group_sizes: For examples that are cheap to read only in groups, the examples of each, int64
        `[groups]`; None where any of them is as cheap as any other.
    """

    fields: tuple[Field, ...]
    structure: Any
    group_sizes: np.ndarray | None = None

    @abc.abstractmethod
    def __len__(self) -> int:
        """Returns the number of examples."""

    @abc.abstractmethod
    def take(self, rows: np.ndarray) -> list[np.ndarray]:
        """Returns the examples of these numbers (int64 `[n]`), one array `[n, ...]` for each field.

        Only for a source without groups. Raises DataError where it cannot be read.
        """

    @abc.abstractmethod
    def read(self, pieces: Sequence[Piece]) -> list[np.ndarray]:
        """Returns the examples of some pieces of groups, one array `[n, ...]` for each field.

        Only for a source with groups. Raises DataError, naming file, group and column.
        """

    @abc.abstractmethod
    def fingerprint(self) -> int:
        """Returns a number that differs, in all likelihood, where the examples or their order do.

        Below 2**32, and alike on every host that sees the same data.
        """

    @property
    def num_bytes(self) -> int:
        """The size of one example in memory, estimated where it is not fixed."""
        return max(1, sum(field.num_bytes for field in self.fields))

    @property
    def decodes(self) -> bool:
        """Whether `decode` is more than a change of structure."""
        return False

    def decode(self, values: Sequence[Any]) -> Any:
        """Turns tensors `[n, ...]`, one for each field, into a batch. Runs in a TensorFlow graph."""
        from raydist.data.fields import with_leaves

        return with_leaves(self.structure, values)

    def batches(
        self,
        *,
        global_batch_size: int,
        seed: int = 0,
        shuffle: bool = True,
        epochs: int | None = None,
        drop_remainder: bool = False,
        window_mb: float | None = None,
    ) -> Batches:
        """Returns the recipe of global batches: epoch and seed alone decide their order.

        Args:
          global_batch_size: Examples per step, over all replicas.
          shuffle: False keeps the source's own order in every epoch.
          epochs: After so many the data end; None lets them go on for ever.
          seed: An int of 64 bits, alike in every task.
          drop_remainder: Leaves out the examples of an epoch that do not fill a batch, other ones in
            each epoch where they are shuffled. Otherwise an epoch's last batch is smaller, and weighs
            what it holds.
          window_mb: How much a source in groups (Parquet, TFRecord, Ray Data) mixes at once, in MB of
            examples in memory; twice as much is held, as the next window is read ahead. At least one
            group, whatever its size. None: 64 MB, or less where that is more than half a million
            examples, as a run that resumes waits for its windows.

        Raises:
          DataError: The source has fewer examples than one batch, or an argument is out of its range.
        """
        from raydist.data.batches import Batches

        return Batches.of(
            self,
            global_batch_size=global_batch_size,
            seed=seed,
            shuffle=shuffle,
            epochs=epochs,
            drop_remainder=drop_remainder,
            window_mb=window_mb,
        )


class TakenSource(Source):
    """A source without groups."""

    def read(self, pieces: Sequence[Piece]) -> list[np.ndarray]:
        raise NotImplementedError(f"{type(self).__name__} has no groups")


class GroupedSource(Source):
    """A source in groups."""

    group_sizes: np.ndarray

    def __len__(self) -> int:
        return int(self.group_sizes.sum())

    def take(self, rows: np.ndarray) -> list[np.ndarray]:
        raise NotImplementedError(f"{type(self).__name__} is read in groups")
