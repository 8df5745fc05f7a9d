"""Steps: which examples of an epoch's order make up which step, and which replica has which of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Steps:
    """How the examples of each epoch are cut into global batches.

    Attributes:
      num_examples: Per epoch.
      batch_size: The global one.
      drop_remainder: Whether an epoch leaves out the examples that do not fill a batch.
    """

    num_examples: int
    batch_size: int
    drop_remainder: bool = False

    @property
    def per_epoch(self) -> int:
        full, rest = divmod(self.num_examples, self.batch_size)
        return full + (rest > 0 and not self.drop_remainder)

    @property
    def num_full(self) -> int:
        """The steps of an epoch whose batch is full; one at most is not."""
        return self.num_examples // self.batch_size

    @property
    def last_size(self) -> int:
        """The size of the batch that is not full; 0 where there is none."""
        return 0 if self.drop_remainder else self.num_examples % self.batch_size

    @property
    def is_whole(self) -> bool:
        """Whether an epoch has every example."""
        return not self.drop_remainder or self.num_examples % self.batch_size == 0

    def locate(self, step: int) -> tuple[int, int]:
        """Returns the epoch of a step of the run, and its number within the epoch."""
        return divmod(step, self.per_epoch)

    def size_of(self, step_in_epoch: int) -> int:
        return self.batch_size if step_in_epoch < self.num_full else self.last_size


def cut(num_rows: int, part: int, num_parts: int, shares: Sequence[int] = ()) -> tuple[int, int]:
    """Returns first and end of one of `num_parts` almost equal parts of a batch, the larger ones first.

    Args:
      shares: What each worker takes of the batch, of which its parts, as many as any other's, are equal ones.
        Empty where all workers take as much.
    """
    if shares:
        worker, part = divmod(part, num_parts // len(shares))
        before, size = rows_of_worker(num_rows, worker, shares)
        first, end = cut(size, part, num_parts // len(shares))
        return before + first, before + end
    base, extra = divmod(num_rows, num_parts)
    first = part * base + min(part, extra)
    return first, first + base + (part < extra)


def rows_of_worker(num_rows: Any, worker: int, shares: Sequence[int]) -> tuple[Any, Any]:
    """Returns the first row that a worker has of a batch, and how many; of an int, or an int64 tensor.

    With equal shares it is `cut`. A larger batch gives no worker fewer rows, which a pipeline relies on that
    batches a worker's own rows (input/cut.py); and the first worker has a row of every batch.
    """
    first, left = 0, num_rows
    for number in range(worker):
        size = _rounded_up(left * shares[number], sum(shares[number:]))
        first, left = first + size, left - size
    return first, _rounded_up(left * shares[worker], sum(shares[worker:]))


def _rounded_up(amount: Any, whole: int) -> Any:
    return (amount + (whole - 1)) // whole
