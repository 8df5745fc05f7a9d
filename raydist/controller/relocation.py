"""The restart of a coordinator whose workers came back where it cannot reach them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from raydist.controller.attempt import Attempt, name_tasks
from raydist.spec.status import TaskStatus
from raydist.spec.tasks import TaskId


@dataclass(frozen=True, kw_only=True)
class Saving:
    """A chief that was asked to save.

    Attributes:
      checkpoint_before: Its newest checkpoint by then; None without one.
    """

    checkpoint_before: str | None

    def is_done(self, chief: TaskStatus) -> bool:
        return chief.checkpoint != self.checkpoint_before


@dataclass(frozen=True, kw_only=True)
class Relocation:
    """A new attempt, begun because workers have another address than before.

    It is planned: the chief has saved, as far as it could, and no failure is counted.

    Attributes:
      tasks: The workers that moved.
      is_same_host: Whether all of them only got another port.
      stopped_at_s: Unix time from which nothing was trained.
      step: The step that training went on from; None until its next step is done. `pause_s` likewise:
        the seconds without training.
    """

    tasks: tuple[TaskId, ...]
    is_same_host: bool
    stopped_at_s: float
    step: int | None = None
    pause_s: float | None = None

    @classmethod
    def of(cls, attempt: Attempt, *, at_s: float) -> Relocation:
        """Returns the relocation for the workers of `attempt` that moved."""
        before = [_host(attempt.addresses[task]) for task in attempt.moved]
        now = [_host(attempt.statuses[task].address or "") for task in attempt.moved]
        return cls(tasks=attempt.moved, is_same_host=before == now, stopped_at_s=at_s)

    def sentence(self) -> str:
        """Returns what happened, and what it cost once that is known."""
        where = "at another port" if self.is_same_host else "on another host"
        what = f"{name_tasks(self.tasks)} came back {where}: the coordinator was restarted"
        if self.step is None:
            return what
        begin = f"from the checkpoint of step {self.step}" if self.step else "from the beginning"
        return f"{what} {begin} after {self.pause_s:.1f} s"


def resumed(
    relocations: tuple[Relocation, ...], chief: TaskStatus | None, *, at_s: float
) -> tuple[Relocation, ...]:
    """Returns them with the cost of the last one, once the chief of the new attempt has done a step."""
    *before, last = relocations or (None,)
    if last is None or last.step is not None or chief is None or chief.first_step_at_s is None:
        return relocations
    pause_s = max(0.0, at_s - last.stopped_at_s)
    return (*before, dataclasses.replace(last, step=chief.restored_step, pause_s=pause_s))


def _host(address: str) -> str:
    return address.rpartition(":")[0]
