"""Where a resumed run takes up its data: passed to the data handlers that Keras makes inside `fit`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf


@dataclass(frozen=True, kw_only=True)
class Start:
    """A position in the data.

    Attributes:
      epoch: Epochs completed.
      step: Steps completed in the epoch that was begun.
    """

    epoch: int = 0
    step: int = 0


_BEGINNING = Start()
_next_start = _BEGINNING


def set_start(start: Start) -> None:
    """Sets where the next `fit` takes up its training data. The data handler that it makes takes it."""
    global _next_start
    _next_start = start


def take_start() -> Start:
    """Returns the start that was set, once; then the beginning."""
    global _next_start
    start, _next_start = _next_start, _BEGINNING
    return start


def after(dataset: tf.data.Dataset, start: Start) -> Any:
    """Returns `dataset` as it stands after `start.epoch` epochs.

    A pipeline that shuffles anew each epoch draws a seed for each iterator; so that epoch k shuffles
    the same in a resumed run, the iterators of the epochs before are made and dropped.
    """
    for _ in range(start.epoch):
        next(iter(dataset), None)
    return dataset
