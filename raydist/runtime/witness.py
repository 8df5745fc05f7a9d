"""Witness: holds on to the tasks' processes of this host, to tell how one of them ended."""

from __future__ import annotations

from pathlib import Path

from raydist.runtime.post_mortem import Finding, examine
from raydist.runtime.task_actor import Hello
from raydist.runtime.wait_status import PidFd
from raydist.spec.tasks import TaskId

# Ray announces a death as soon as the process closes its sockets; freeing its memory may take longer.
_DEATH_S = 0.2


class Witness:
    """Knows nothing of other hosts. Not to be used from several threads at once."""

    def __init__(self, *, home: str | None) -> None:
        """Takes the node of this process; None outside the cluster."""
        self._home = home
        self._held: dict[TaskId, PidFd] = {}

    def hold(self, hello: Hello) -> None:
        """Begins to watch a task's process, or the one in its place."""
        self._release(hello.task)
        pidfd = PidFd.open(hello.pid) if hello.node_id == self._home else None
        if pidfd is not None:
            self._held[hello.task] = pidfd

    def examine(self, hello: Hello | None) -> Finding | None:
        """Returns what is known of a task's death; None for one of another host, or that lives after all."""
        if hello is None or hello.node_id != self._home:
            return None
        pidfd = self._held.get(hello.task)
        is_gone = pidfd.wait(_DEATH_S) if pidfd is not None else not Path(f"/proc/{hello.pid}").exists()
        if not is_gone:
            return None
        code = None if pidfd is None else pidfd.exit_code()
        return examine(hello.scratch_path, code=code, oom=hello.oom)

    def close(self) -> None:
        """Lets go of all. Idempotent."""
        for task in list(self._held):
            self._release(task)

    def _release(self, task: TaskId) -> None:
        pidfd = self._held.pop(task, None)
        if pidfd is not None:
            pidfd.close()
