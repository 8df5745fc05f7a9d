"""Trainer: how a task trains. A session chooses one, by the kind of task and the strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, kw_only=True)
class FitRequest:
    """The arguments of `TrainContext.fit`."""

    model: Any
    train_data: Any
    epochs: int
    steps_per_epoch: int | None = None
    validation_data: Any = None
    callbacks: Sequence[Any] = ()


@dataclass(frozen=True, kw_only=True)
class LoopRequest:
    """The arguments of `TrainContext.train_steps`."""

    step_fn: Callable[[Any], Mapping[str, Any]]
    train_data: Any
    num_steps: int
    steps_per_call: int = 10


class Trainer(Protocol):
    """What `TrainContext` hands its calls to."""

    def fit(self, request: FitRequest) -> Any:
        """Trains, or follows the training; returns a Keras `History`."""

    def train_steps(self, request: LoopRequest) -> Mapping[str, float]:
        """Runs the steps; returns the scalars of the last ones."""
