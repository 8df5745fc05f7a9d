"""Keras's `PyDataset` (`Sequence`), read from a position on. Its batches have numbers."""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from raydist.training.input.sources import Start
from raydist.training.user_code.code_names import keras_kinds


def is_py_dataset(data: Any) -> bool:
    """Whether it is a PyDataset or Sequence of either Keras."""
    return any(kind in ("PyDataset", "Sequence") for kind in keras_kinds(data))


# What Keras asks such an object for, besides its batches.
_OPTIONS = ("workers", "use_multiprocessing", "max_queue_size")


@functools.lru_cache(maxsize=8)
def _shuffled(num_batches: int, seed: int, number_of_pass: int) -> Sequence[int]:
    """Returns the numbers of the batches in a pass, which seed and pass alone decide."""
    numbers = list(range(num_batches))
    random.Random(f"{seed}/{number_of_pass}").shuffle(numbers)
    return numbers


def from_position(
    data: Any, base: type, *, start: Start, seed: int | None, num_steps: int | None, peeked: Sequence[Any]
) -> Any:
    """Returns a PyDataset of the batches of `data` from a position on, for one `fit`.

    Its hooks are called as often as in the epochs before the position, because many reorder their examples
    in them.

    Args:
      seed: Of the order of the batches; None for the order of their numbers.
      num_steps: Steps of an epoch where they are not the batches of a pass; batches then run on from epoch
        to epoch.
      peeked: The first batches of `data`, see `peeked_at`.
    """
    for _ in range(start.epoch):
        data.on_epoch_begin() if hasattr(data, "on_epoch_begin") else None
        data.on_epoch_end()
    options = {name: getattr(data, name) for name in _OPTIONS if hasattr(data, name)}
    if num_steps is not None:
        made = type("RaydistEndlessBatches", (_Endless, base), {})(**options)
        made.begin(data, first=start.epoch * num_steps + start.step, seed=seed)
    else:
        made = type("RaydistBatches", (_Passes, base), {})(**options)
        made.begin(data, start=start, seed=seed)
    made.peeked = peeked
    return made


@contextlib.contextmanager
def peeked_at(data: Any) -> Iterator[bool]:
    """Shows the first batches of what `from_position` has made as the user numbers them, in the block.

    Yields whether `data` are that. Keras 3 looks at these batches for the sizes in which batches may differ,
    and users see to it that they do. In another order, and from another position on, others would come first.
    """
    shown = isinstance(data, _FromPosition)
    if shown:
        data.is_peeked_at = True
    try:
        yield shown
    finally:
        if shown:
            data.is_peeked_at, data.peeked = False, ()


def is_from_position(data: Any) -> bool:
    """Whether `from_position` has made it, of data whose first batches the workers have compared."""
    return isinstance(data, _FromPosition)


def num_batches_of(data: Any) -> int | None:
    """Returns the batches of a pass; None where it has no end."""
    found = getattr(data, "num_batches", None)
    return len(data) if found is None and hasattr(data, "__len__") else found


class _FromPosition:
    """What Keras is given.

    Attributes:
      peeked: The first batches of the data.
      is_peeked_at: Whether Keras looks at them, see `peeked_at`.
    """

    peeked: Sequence[Any] = ()
    is_peeked_at = False
    _data: Any
    _seed: int | None
    _batch: Callable[[int], Any]

    def _numbered(self, number_of_pass: int, position: int) -> Any:
        """Returns the batch at a position of a pass; without a seed in the order of their numbers."""
        if self._seed is not None:
            position = _shuffled(num_batches_of(self._data) or 0, self._seed, number_of_pass)[position]
        return self._data[position]

    def __getitem__(self, position: int) -> Any:
        return self.peeked[position] if self.is_peeked_at else self._batch(position)

    def on_epoch_begin(self) -> None:
        if hasattr(self._data, "on_epoch_begin"):
            self._data.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self._data.on_epoch_end()


class _Passes(_FromPosition):
    """Each epoch is a pass over all batches; the first one begins at a position.

    Keras counts the batches from the first one of the pass on and drops those before the position: what it
    drops is one and the same batch.
    """

    def begin(self, data: Any, *, start: Start, seed: int | None) -> None:
        self._data, self._seed = data, seed
        self._pass = start.epoch
        self._first = start.step
        self._dropped: Any = None

    def __len__(self) -> int:
        return num_batches_of(self._data) or 0

    @property
    def num_batches(self) -> int:
        return len(self)

    def _batch(self, position: int) -> Any:
        if position >= self._first:
            return self._numbered(self._pass, position)
        if self._dropped is None:
            self._dropped = self._numbered(self._pass, self._first)
        return self._dropped

    def on_epoch_begin(self) -> None:
        self._has_begun = True
        super().on_epoch_begin()

    def on_epoch_end(self) -> None:
        # Keras 3 calls it once before the first epoch begins.
        if self._has_begun or not hasattr(self._data, "on_epoch_begin"):
            self._pass, self._first, self._dropped, self._has_begun = self._pass + 1, 0, None, False
        super().on_epoch_end()

    _has_begun = False


class _Endless(_FromPosition):
    """The passes follow each other without an end, from a position on."""

    num_batches = None

    def begin(self, data: Any, *, first: int, seed: int | None) -> None:
        self._data, self._seed = data, seed
        self._first = first
        self._per_pass = num_batches_of(data)

    def _batch(self, position: int) -> Any:
        position += self._first
        if self._per_pass is None:
            return self._data[position]
        number_of_pass, position = divmod(position, self._per_pass)
        return self._numbered(number_of_pass, position)
