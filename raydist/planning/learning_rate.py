"""How a learning rate that was found for one batch size is scaled to another."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import TypeGuard

from raydist.errors import UnsupportedError
from raydist.spec.text import suggest

# Which power of the ratio of batch sizes a rule takes: "linear" of Goyal et al., arXiv 1706.02677, and
# "sqrt" of Krizhevsky, arXiv 1404.5997.
RULES = {"linear": 1.0, "sqrt": 0.5}


@dataclass(frozen=True, kw_only=True)
class ScaledRate:
    """A learning rate, scaled.

    Attributes:
      base: What was found good for `base_batch_size`; `batch_size` is the global one.
      warmup_steps: Steps over which the rate goes from `base` to `scaled`; 0 begins with `scaled`.

    Raises:
      UnsupportedError: A value is out of its range.
    """

    base: float
    base_batch_size: int
    batch_size: int
    rule: str = "linear"
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        for name in ("base", "base_batch_size", "batch_size"):
            value = getattr(self, name)
            if not (_is_number(value) and 0 < value < math.inf):
                raise UnsupportedError(f"scale_learning_rate got {name}={value!r}; give a number above 0")
        if self.rule not in RULES:
            raise UnsupportedError(
                f"scale_learning_rate got rule={self.rule!r}; {suggest(str(self.rule), RULES)}"
            )
        steps = self.warmup_steps
        if not (_is_number(steps) and steps >= 0 and steps == int(steps)):
            raise UnsupportedError(
                f"scale_learning_rate got warmup_steps={steps!r}; give a number of steps, 0 for no warm-up"
            )

    @property
    def scaled(self) -> float:
        return float(self.base * (self.batch_size / self.base_batch_size) ** RULES[self.rule])

    def at(self, step: int) -> float:
        """Returns the rate of the step that has `step` steps before it."""
        if step >= self.warmup_steps:
            return self.scaled
        return self.base + (self.scaled - self.base) * step / self.warmup_steps

    def __str__(self) -> str:
        """Returns `0.2: 0.1 for batches of 64, scaled by the linear rule to 128`."""
        warmup = f", over {self.warmup_steps} steps of warm-up" if self.warmup_steps else ""
        return (
            f"{self.scaled:.6g}: {self.base:.6g} for batches of {self.base_batch_size}, scaled by the "
            f"{self.rule} rule to {self.batch_size}{warmup}"
        )


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
