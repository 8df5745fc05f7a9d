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
    y: Any = None
    epochs: int
    batch_size: int | None = None
    shuffle: bool = True
    sample_weight: Any = None
    steps_per_epoch: int | None = None
    initial_epoch: int = 0
    validation_data: Any = None
    validation_split: float = 0.0
    validation_batch_size: int | None = None
    validation_steps: int | None = None
    validation_freq: int | Sequence[int] = 1
    class_weight: Mapping[int, float] | None = None
    accumulate: int = 1
    callbacks: Sequence[Any] = ()
    verbose: int | str | None = None

    def validates(self, epoch: int) -> bool:
        """Whether the data are evaluated at the end of an epoch, counted from 0, as Keras counts."""
        if self.validation_data is None:
            return False
        freq = self.validation_freq
        return (epoch + 1) % freq == 0 if isinstance(freq, int) else epoch + 1 in freq


@dataclass(frozen=True, kw_only=True)
class LoopRequest:
    """The arguments of `TrainContext.train_steps`."""

    step_fn: Callable[[Any], Mapping[str, Any]]
    train_data: Any
    num_steps: int
    steps_per_call: int = 10


@dataclass(frozen=True, kw_only=True)
class EvaluateRequest:
    """The arguments of `TrainContext.evaluate`."""

    model: Any
    data: Any
    steps: int | None = None
    verbose: int | str | None = None


@dataclass(frozen=True, kw_only=True)
class PredictRequest:
    """The arguments of `TrainContext.predict`."""

    model: Any
    data: Any
    steps: int | None = None


class Trainer(Protocol):
    """What `TrainContext` hands its calls to."""

    def fit(self, request: FitRequest) -> Any:
        """Trains, or follows the training; returns a Keras `History`."""

    def evaluate(self, request: EvaluateRequest) -> dict[str, Any]:
        """Returns the metrics over the data, by name."""

    def predict(self, request: PredictRequest) -> Any:
        """Returns the outputs for all rows, in their order."""

    def train_steps(self, request: LoopRequest) -> Mapping[str, float]:
        """Runs the steps; returns the scalars of the last ones."""
