"""Witness: holds on to the tasks' processes of this host, to find out how one of them ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from raydist.controller.task_group import Explanation
from raydist.runtime.host.post_mortem import Finding, examine
from raydist.runtime.host.wait_status import PidFd
from raydist.runtime.task.greeting import Hello
from raydist.spec.status import TaskFailure
from raydist.spec.tasks import TaskId

# Describes a death, with `finding=` what is known of it; None where nothing is.
Describe = Callable[..., TaskFailure]

# Ray announces a death as soon as the process closes its sockets; freeing its memory may take longer.
_DEATH_S = 0.2


class Witness:
    """Not to be used from several threads at once."""

    def __init__(self, *, home: str | None) -> None:
        """Takes the node of this process; None outside the cluster."""
        self._home = home
        self._held: dict[TaskId, PidFd] = {}
        # The deaths on other hosts, as they were described.
        self._elsewhere: list[tuple[Hello, TaskFailure, Describe]] = []

    def hold(self, hello: Hello) -> None:
        """Begins to watch a task's process, or the one in its place."""
        self._release(hello.task)
        pidfd = PidFd.open(hello.pid) if hello.node_id == self._home else None
        if pidfd is not None:
            self._held[hello.task] = pidfd

    def describe(self, hello: Hello, describe: Describe) -> TaskFailure:
        """Describes a death with what this host knows of it; another host's comes with `explanations`."""
        if hello.node_id == self._home:
            return describe(finding=self._examine(hello))
        failure = describe(finding=None)
        self._elsewhere.append((hello, failure, describe))
        return failure

    def explanations(self, findings: Mapping[tuple[str, int], Finding]) -> tuple[Explanation, ...]:
        """Describes the deaths on other hosts anew, with what was found there, by node and pid."""
        found = ((each, findings.get((each[0].node_id, each[0].pid))) for each in self._elsewhere)
        return tuple(
            _explanation(hello.task, failure, describe(finding=finding))
            for (hello, failure, describe), finding in found
            if finding is not None
        )

    def _examine(self, hello: Hello) -> Finding | None:
        """Returns what is known of a death on this host; None for a process that lives after all."""
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


def _explanation(task: TaskId, before: TaskFailure, known: TaskFailure) -> Explanation:
    return Explanation(
        task=task,
        before=before.message,
        message=known.message,
        log_end=known.log_end,
        is_out_of_memory=known.is_out_of_memory,
    )
