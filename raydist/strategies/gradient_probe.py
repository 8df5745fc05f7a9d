"""Collects the gradients that a training step gives to its optimizers, in place of applying them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf


@dataclass(frozen=True)
class Update:
    """What one optimizer was given once: gradients, and the variables they are for."""

    optimizer: Any
    gradients: tuple[Any, ...]
    variables: tuple[Any, ...]


@dataclass
class Probe:
    """Takes part in tracing a training step outside of the strategy.

    Attributes:
      strategy: The model's, in whose scope variables are made that the step makes in its first call.
      updates: What the optimizers were given, in order.
    """

    strategy: tf.distribute.Strategy
    updates: list[Update] = field(default_factory=list)

    def collect(self, step: Callable[[], Any]) -> list[Update]:
        """Runs `step` and returns what it gave to its optimizers, which change nothing."""
        self.updates = []
        _Active.probe = self
        try:
            step()
        finally:
            _Active.probe = None
        return self.updates

    def record(self, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        self.updates.append(Update(optimizer, tuple(gradients), tuple(variables)))


class _Active:
    """The probe that steps are traced for now. MirroredStrategy traces replicas in threads, one at a time."""

    probe: Probe | None = None


def active() -> Probe | None:
    """Returns the probe that the step being traced belongs to, if any."""
    return _Active.probe
