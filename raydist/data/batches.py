"""Batches: the recipe of a run's global batches, of which each worker makes its own part."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

from raydist.data.cached_examples import Place, Where
from raydist.data.failures import data_error_in
from raydist.data.mixture import with_cache
from raydist.data.recipe import Map, Recipe
from raydist.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Batches(Recipe):
    """Global batches in an order that epoch and seed alone decide, and what is done to each.

    Example:
        batches = source.batches(global_batch_size=1024, seed=7).map(lambda x, y: (x / 255, y))
        ctx.fit(model, batches, epochs=3)

    Give it to `ctx.fit` or `ctx.train_steps`, which ask it for each worker's part from the step on that a
    run resumes at; or take `dataset()`. Iterating it gives the global batches, and `len` their number.
    Without `epochs` training takes as many as it needs, and everything else one.
    """

    def map(self, function: Map) -> Batches:
        """Returns the recipe with `function` applied to each batch, or to each worker's part of it.

        Example:
            batches.map(lambda x, y: (tf.cast(x, tf.float32) / 255.0, y))

        As `tf.data.Dataset.map` after `batch`: it gets the components of a tuple as arguments, is traced
        by TensorFlow, and runs on several batches at once.
        """
        if not callable(function):
            raise DataError(f"map got {function!r}; give a function of a batch")
        return dataclasses.replace(self, maps=(*self.maps, function))

    def prefetch(self, num_batches: int) -> Batches:
        """Returns the recipe with `num_batches` more batches prepared in advance.

        Without it some MB of batches are read in advance, and each map, and decoding, holds one batch for
        each core (16 at most).
        """
        return dataclasses.replace(self, num_prefetched=checked_int("prefetch", num_batches, 1))

    def cached(self, where: Where = "disk", *, max_gb: float | None = None, version: str = "") -> Batches:
        """Returns the recipe that keeps each example once it was read and decoded, before any `map`.

        Example:
            batches = source.batches(global_batch_size=128).cached().map(augment)

        Unlike `tf.data.Dataset.cache` it does not fix the order: each epoch is shuffled again, and a run that
        resumes continues where it was. Arrays and Ray datasets are in memory already, and stay as they are.

        Args:
          where: `disk` keeps files for all tasks and later runs of this user on the host, until 7 days after
            they were opened last: in `RAYDIST_CACHE`, by default `$TMPDIR/raydist-<uid>-examples`. `memory`
            is this process's own, and ends with it.
          max_gb: The most on disk, of all that is cached there, or in memory. None for no limit but that a
            tenth of the disk, or of the host's memory, stays free. What no process uses is removed first.
            Examples that find no room are read and decoded in each epoch.
          version: A text that you change with a function that decodes, if that runs Python or has a state:
            such changes raydist cannot see.

        Raises:
          DataError: The function that decodes needs a `version`, or gives tensors of several shapes.
        """
        if where not in get_args(Where):
            raise DataError(f"cached got where={where!r}; give 'disk' or 'memory'")
        if max_gb is not None and (not isinstance(max_gb, numbers.Real) or not max_gb > 0):
            raise DataError(f"cached got max_gb={max_gb!r}; give a number of GB above 0")
        if self.maps:
            raise DataError("cached() comes before map(): it keeps what the source decodes, and maps nothing")
        max_bytes = math.inf if max_gb is None else float(max_gb) * 1e9
        source = with_cache(self.source, Place(where, max_bytes, version))
        return self if source is self.source else dataclasses.replace(self, source=source)

    def for_epochs(self, epochs: int | None) -> Batches:
        """Returns the recipe that ends after so many epochs; None: where training ends, else after one."""
        return dataclasses.replace(self, epochs=epochs)

    def without_maps(self) -> Batches:
        """Returns the recipe before any `map`, which can be sent to another process."""
        return dataclasses.replace(self, maps=())

    def dataset(self, input_context: Any = None, start_step: int = 0) -> Any:
        """Returns a `tf.data.Dataset` of the batches of all epochs, one if none are given.

        Each iteration over it begins with the first epoch again. For several epochs, each in its own order,
        give their number: `batches.for_epochs(3).dataset()`.

        tf.data's autotuning is off in what is built on it; another `with_options` turns it on.

        Args:
          input_context: A `tf.distribute.InputContext`: the batches of that pipeline's replicas, in turn,
            which together make up the global batch, the first ones one example larger where it does not
            divide. None for the global batches.
          start_step: The step to begin with, over all epochs.

        Raises:
          DataError: `start_step` is negative, or beyond the end.
        """
        from raydist.data import pipeline

        start_step, num_steps = checked_int("start_step", start_step, 0), len(self)
        if start_step > num_steps:
            remedy = "" if self.epochs else "; give batches(epochs=…) for more than one epoch"
            raise DataError(f"start_step is {start_step}, and the data end after {num_steps} steps{remedy}")
        part = pipeline.Part.of(input_context)
        return pipeline.dataset(self.for_epochs(self.epochs or 1), part, start_step=start_step)

    def __len__(self) -> int:
        return self.num_steps or self.steps_per_epoch

    def __iter__(self) -> Iterator[Any]:
        """Yields the global batches; raises DataError or StorageError where the source cannot be read."""
        from raydist.data import pipeline

        is_plain = not self.maps and not self.source.decodes and self.num_prefetched is None
        try:
            yield from pipeline.batches(self.for_epochs(self.epochs or 1)) if is_plain else self.dataset()
        except Exception as error:
            raise (data_error_in(error) or error) from None


def checked_int(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise DataError(f"{name} is {value!r}; it has to be an int of at least {least}")
    return int(value)  # NumPy's ints overflow
