"""Which batches make up each update, where several do."""

from __future__ import annotations

from dataclasses import dataclass

from raydist.errors import UnsupportedError


@dataclass(frozen=True, kw_only=True)
class Groups:
    """How the batches of a `fit` are grouped; one group makes one step.

    A group never reaches from one epoch into the next: the last one of an epoch may have fewer batches.

    Attributes:
      size: Batches of a group.
      batches_per_epoch: Where one iterator goes through all epochs, so that the data do not show an
        epoch's end; else None.
    """

    size: int = 1
    batches_per_epoch: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.size, bool) or not isinstance(self.size, int) or self.size < 1:
            raise UnsupportedError(f"ctx.fit got accumulate={self.size!r}; give a whole number from 1 on")

    def num_steps(self, num_batches: int) -> int:
        """Returns the steps that `num_batches` batches make."""
        return -(-num_batches // self.size)

    def next_call(self, step: int, left: int, *, num_batches: int | None) -> tuple[int, int]:
        """Returns how many steps the next call may have, and how many batches each of them.

        Args:
          step: Steps of this pass over the data that are done.
          left: The most steps that it may have, at least 1.
          num_batches: Batches of this pass; None where it has as many as are taken.
        """
        if num_batches is None:
            return left, self.size
        num_full, rest = divmod(num_batches, self.size)
        if step < num_full:
            return min(left, num_full - step), self.size
        return 1, rest or self.size
