"""Source: examples that a user names, and the recipe of batches that is made of them."""

from __future__ import annotations

import math
import numbers

import numpy as np

from raydist.data.batches import Batches, checked_int
from raydist.data.examples import Examples
from raydist.data.order.steps import Steps
from raydist.errors import DataError

_WINDOW_MB = 64.0
_WINDOW_EXAMPLES = 1 << 19


class Source(Examples):
    """Examples that batches can be made of.

    Example:
        source = raydist.data.from_arrays(x, y)
        ctx.fit(model, source.batches(global_batch_size=128, seed=1), epochs=3)
    """

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

        Example:
            batches = source.batches(global_batch_size=1024, seed=7, epochs=3)

        Args:
          global_batch_size: Examples per step, over all replicas.
          shuffle: False keeps the source's own order in every epoch.
          epochs: Number of epochs; None for as many as training takes, and one everywhere else.
          seed: An int of 64 bits, alike in every task.
          drop_remainder: Drops the last, incomplete batch of each epoch. With shuffling these are other
            examples in each epoch. Otherwise the last batch is smaller and is weighted by its number of
            examples.
          window_mb: How much a source in groups (Parquet, CSV, TFRecord, Ray Data) mixes at once, in MB of
            examples in memory; twice as much is held, as the next window is read ahead. At least one
            group of any size. None: 64 MB, or less where that is more than half a million
            examples, as a run that resumes waits for its windows.

        Raises:
          DataError: The source has fewer examples than one batch, or an argument is out of its range.
        """
        global_batch_size = checked_int("global_batch_size", global_batch_size, 1)
        if epochs is not None:
            epochs = checked_int("epochs", epochs, 1)
        if window_mb is None:
            window_mb = min(_WINDOW_MB, _WINDOW_EXAMPLES * self.num_bytes / 1e6)
        if not isinstance(window_mb, numbers.Real) or not 0 < window_mb < math.inf:
            raise DataError(f"window_mb is {window_mb!r}; it has to be a number of MB, more than 0")
        seed = checked_int("seed", seed, -(2**63))
        if seed >= 2**63:
            raise DataError(f"seed is {seed}; it has to be less than 2**63")
        if len(self) < global_batch_size:
            raise DataError(
                f"global_batch_size is {global_batch_size}, and the source has {len(self)} examples, fewer "
                "than one batch; give more data or a smaller batch"
            )
        steps = Steps(num_examples=len(self), batch_size=global_batch_size, drop_remainder=drop_remainder)
        return Batches(
            source=self,
            steps=steps,
            seed=seed if shuffle else None,
            epochs=epochs,
            window_bytes=int(window_mb * 1e6),
        )


class GroupedSource(Source):
    """A source in groups."""

    group_sizes: np.ndarray

    def __len__(self) -> int:
        return int(self.group_sizes.sum())
