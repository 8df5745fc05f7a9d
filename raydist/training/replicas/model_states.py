"""ModelState: what raydist knows of one model of either Keras, as long as the model lives."""

from __future__ import annotations

import enum
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


class LossRule(enum.Enum):
    """How the losses of a training step are written.

    SCALED: As `tf.distribute` asks for: Keras's losses scale themselves by the replica's share of the global
      batch, others divide by the global batch size or are sums. Gradients are summed over replicas.
    LOCAL_MEAN: As for one device: means over the replica's own examples. Keras's losses do not scale
      themselves, and the optimizer weights each replica's gradients by its share.
    SUM: As for one device: sums over the replica's own examples. Nobody scales them.
    """

    SCALED = "scaled"
    LOCAL_MEAN = "local mean"
    SUM = "sum"


@dataclass
class ModelState:
    """What raydist knows of a model, on which it puts no attribute: Keras tracks, pickles and copies those.

    Attributes:
      rule: What it trains by; None where that is not decided. `evaluation_rule`: by which its test step shows
        losses, where that was looked at.
      traced: `step_trace.Traced` of its `train_step`, if that is the user's own.
      shown: `step_logs.Results` of the step that runs, or ran last; None for one of Keras's own.
      has_shown: Whether a step has run. If not, a function of the user's own runs the steps.
      returned: What each virtual replica has returned, by name, in the last training step (True), and in the
        last test step (False).
      equalize: A function, traced once, that makes moving statistics equal on all replicas.
    """

    rule: LossRule | None = None
    evaluation_rule: LossRule | None = None
    traced: Any = None
    shown: Any = None
    has_shown: bool = False
    returned: dict[bool, dict[str, Any]] = field(default_factory=dict)
    equalize: Callable[[], None] | None = None


_states: weakref.WeakKeyDictionary[Any, ModelState] = weakref.WeakKeyDictionary()


def state_of(model: Any) -> ModelState:
    """Returns what is known of a model; the same object each time."""
    state = _states.get(model)
    if state is None:
        state = _states[model] = ModelState()
    return state
