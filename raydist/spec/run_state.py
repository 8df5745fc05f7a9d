"""RunState: where a run stands."""

from __future__ import annotations

import enum


class RunState(str, enum.Enum):
    """Where a run stands. Each member equals its name as text, which `--json` and run.json have.

    Example:
        while not handle.status().state.is_terminal:
            time.sleep(10)
    """

    STARTING = "STARTING"  # an attempt's tasks are not all training yet
    RUNNING = "RUNNING"  # every task trains, or has ended
    STOPPING = "STOPPING"  # the attempt is over: hearing why, then ending its processes
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"  # stopped by Ctrl-C or `raydist stop`

    __str__ = str.__str__  # as of an enum.StrEnum, which came with Python 3.11

    @property
    def is_terminal(self) -> bool:
        """Whether the run has ended, so that its state changes no more."""
        return self in (RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED)
