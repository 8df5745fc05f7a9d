"""Whether an attempt that failed is followed by another one: budgets by cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raydist.spec.status import AttemptEnd, FailureKind, TaskFailure

# What the same code raises again on the same data: mistakes of programs, and TensorFlow's error for values
# that an operation does not take, such as a label beyond the last class.
_REPEATING = frozenset(
    {
        *("AttributeError", "ImportError", "InvalidArgumentError", "ModuleNotFoundError", "NameError"),
        *("NotImplementedError", "SyntaxError", "TypeError", "UnboundLocalError"),
    }
)
# A callback's `monitor` that no epoch's logs have: Keras looks for it when the first epoch ends.
_UNKNOWN_MONITOR = "isn't able to automatically determine"


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What follows a failure.

    Attributes:
      reason: Half a sentence, which goes on after `retried:` or `not retried:`.
    """

    is_retry: bool
    reason: str


def decide(
    end: AttemptEnd, *, restored_step: int, history: Sequence[AttemptEnd], max_failures: int
) -> Decision:
    """Decides what follows `end`.

    Args:
      restored_step: The step that the attempt was restored at; 0 without a checkpoint.
      history: What ended the attempts before, of this submit.
    """
    match end:
        case TaskFailure() if end.kind.is_incurable:
            return _final("another attempt would end the same way")
        case TaskFailure(wants_retry=False):
            return _final(f"{end.error_type} is a FinalError")
        case TaskFailure(wants_retry=True):
            pass
        case TaskFailure(kind=FailureKind.USER) if end.step <= restored_step:
            return _final(f"no step was completed since step {restored_step}, where the attempt began")
        case TaskFailure(kind=FailureKind.USER) if _is_repeated(end, history):
            return _final(f"{end.error_type} was raised at step {end.step} before")
        case TaskFailure(kind=FailureKind.USER) if (
            end.error_type in _REPEATING or _UNKNOWN_MONITOR in end.message
        ):
            return _final(f"{end.error_type} would be raised again: data and code would be the same")
        case TaskFailure(kind=FailureKind.STALLED) if _is_repeated(end, history):
            return _final(f"it stood still at step {end.step} before")
    num_lost = len(history) + 1
    if num_lost > max_failures:
        attempts = "attempt" if num_lost == 1 else "attempts"
        return _final(f"{num_lost} {attempts} lost, --max-failures is {max_failures}")
    reason = f"failure {num_lost} of {max_failures} allowed"
    if isinstance(end, TaskFailure) and end.kind is FailureKind.USER and not end.wants_retry:
        reason += f"; if {end.error_type} is raised at step {end.step} again, the run ends"
    return Decision(is_retry=True, reason=reason)


def _final(reason: str) -> Decision:
    return Decision(is_retry=False, reason=reason)


def _is_repeated(failure: TaskFailure, history: Sequence[AttemptEnd]) -> bool:
    """Whether an attempt before ended the same way, at the same step."""
    how = (failure.kind, failure.error_type, failure.step)
    earlier = (before for before in history if isinstance(before, TaskFailure))
    return any((before.kind, before.error_type, before.step) == how for before in earlier)
