"""Collects the gradients that a training step gives to its optimizers, in place of applying them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from raydist.training import tf_private


@dataclass(frozen=True)
class Update:
    """What one optimizer was given once: gradients, and the variables they are for.

    Attributes:
      is_reduced: Whether the step has summed the gradients over replicas itself.
    """

    optimizer: Any
    gradients: tuple[Any, ...]
    variables: tuple[Any, ...]
    is_reduced: bool = False


@dataclass
class Probe:
    """Takes part in tracing a training step outside of the strategy.

    Attributes:
      strategy: The model's, in whose scope variables are made that the step makes in its first call.
      updates: What the optimizers were given, in order.
      means: The `Mean` metrics that were given a scalar without a weight, with that scalar, in order.
      weighted_means: Those that were given one with a weight.
    """

    strategy: tf.distribute.Strategy
    updates: list[Update] = field(default_factory=list)
    means: list[tuple[Any, Any]] = field(default_factory=list)
    weighted_means: list[tuple[Any, Any]] = field(default_factory=list)

    def collect(self, step: Callable[[], Any]) -> list[Update]:
        """Runs `step` and returns what it gave to its optimizers, which change nothing."""
        self.updates, self.means, self.weighted_means = [], [], []
        with tf_private.changed(_Active, probe=self), tf_private.inlined_functions():
            step()
        return self.updates

    def record(
        self, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any], *, is_reduced: bool = False
    ) -> None:
        self.updates.append(Update(optimizer, tuple(gradients), tuple(variables), is_reduced))


class _Active:
    """The probe that steps are traced for now. MirroredStrategy traces replicas in threads, one at a time."""

    probe: Probe | None = None


def active() -> Probe | None:
    """Returns the probe that the step being traced belongs to, if any."""
    return _Active.probe
