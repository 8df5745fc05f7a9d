"""Recipe: what decides a run's global batches, as plain values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from isal import isal_zlib

from raydist.data.examples import Examples
from raydist.data.mixture import MixedReader, reader_of
from raydist.data.order import permutation
from raydist.data.order.steps import Steps
from raydist.data.reader import Reader

Map = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The order of global batches, which epoch and seed alone decide, and what is done to each.

    Attributes:
      seed: None where the source's order is kept.
      epochs: After so many the data end; None where they continue as long as needed.
      maps: Functions of a batch, in their order.
      num_prefetched: Batches made ahead, beside those that maps and decoding hold; None for no more.
    """

    source: Examples
    steps: Steps
    seed: int | None
    epochs: int | None
    window_bytes: int
    maps: tuple[Map, ...] = ()
    num_prefetched: int | None = None

    @property
    def steps_per_epoch(self) -> int:
        return self.steps.per_epoch

    @property
    def global_batch_size(self) -> int:
        return self.steps.batch_size

    @property
    def num_steps(self) -> int | None:
        """The steps of all epochs; None where the data continue as long as needed."""
        return None if self.epochs is None else self.epochs * self.steps_per_epoch

    def fingerprint(self) -> int:
        """Returns a number, below 2**32, that differs in all likelihood where the batches do."""
        told = (
            f"{self.source.fingerprint()} {self.steps} {self.seed} {self.window_bytes} {permutation.VERSION}"
        )
        return int(isal_zlib.crc32(told.encode()))

    def reader(self) -> Reader | MixedReader:
        """Returns what reads the examples."""
        return reader_of(
            self.source, self.steps, seed=self.seed, window_bytes=self.window_bytes, epochs=self.epochs
        )
