"""What interrupted a run, as its events tell it: tasks that were replaced, restarts, resumes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_TOLD = ("task_back", "task_given_up", "restarting", "restarted", "attempt")
_RESUMED = "the run was resumed"


@dataclass(frozen=True, kw_only=True)
class Incident:
    """One interruption of a run.

    Attributes:
      event: `task_back` or `task_given_up` for a task that died while its attempt went on; `restarting`, then
        `restarted`, for a planned new attempt; `attempt` for one that was lost or has another size;
        `resumed` for a run that was resumed by hand.
      at_s: Unix time, seconds.
      attempt: The attempt that was interrupted, for `restarted` the one after; None for `resumed`.
      message: The cause, and what was done.
    """

    event: str
    at_s: float
    attempt: int | None
    message: str


def incidents_of(events: Iterable[Mapping[str, Any]]) -> list[Incident]:
    """Returns the interruptions that the events tell of, in their order.

    An event of another shape, which an older raydist or damage may have left, is skipped.
    """
    found: list[Incident] = []
    is_planned = False
    for event in events:
        match event:
            case {"event": str(name), "at_s": int() | float() as at_s, **rest}:
                pass
            case _:
                continue
        if name == "planned":
            if is_planned:
                found.append(Incident(event="resumed", at_s=at_s, attempt=None, message=_RESUMED))
            is_planned = True
            continue
        match rest:
            case {"attempt": int(attempt), "message": str(message)} if name in _TOLD:
                if name == "restarted":  # says what `restarting` said, and what it cost
                    found = [one for one in found if not _is_begun_by(one, message)]
                found.append(Incident(event=name, at_s=at_s, attempt=attempt, message=message))
    return found


def _is_begun_by(incident: Incident, message: str) -> bool:
    return incident.event == "restarting" and message.startswith(incident.message)
