"""RunState: where a run stands."""

from __future__ import annotations

import enum


class RunState(enum.Enum):
    """Where a run stands; JSON uses the names."""

    STARTING = "STARTING"  # an attempt's tasks are not all training yet
    RUNNING = "RUNNING"  # every task trains, or has ended
    STOPPING = "STOPPING"  # the attempt is over: hearing why, then ending its processes
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"  # stopped by Ctrl-C or `raydist stop`

    @property
    def is_terminal(self) -> bool:
        return self in (RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED)
