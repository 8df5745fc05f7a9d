"""Remains: what processes whose agents are dead left on their hosts, until it is gathered."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError

from raydist.runtime.cluster.inventory import remote_on, unreachable_hosts
from raydist.runtime.host.salvage import salvage
from raydist.runtime.host.scratch import scratch_root
from raydist.runtime.task.greeting import Hello, TaskSetup
from raydist.spec.tasks import TaskId

logger = logging.getLogger(__name__)

# A salvage that takes longer continues by itself; one on a host that is gone never starts.
_TIMEOUT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Remnant:
    """A process whose agent has died, or was killed.

    Attributes:
      hello: What it sent when it came up; None where it never did.
    """

    setup: TaskSetup
    hello: Hello | None


class Remains:
    """Stores the end of each such process's log and deletes its scratch folder, on its own host."""

    def __init__(self, *, home: str | None) -> None:
        """Takes the node of this process; None outside the cluster."""
        self._home = home
        self._left: list[Remnant] = []
        self._refs: list[Any] = []
        self._threads: list[threading.Thread] = []

    def leave(self, remnant: Remnant) -> None:
        """Notes a process whose remains are to be gathered, by `gather` or in the end."""
        self._left.append(remnant)

    def gather(self, task: TaskId) -> None:
        """Begins to gather what dead processes of that task left, and waits for nothing."""
        for remnant in [each for each in self._left if each.setup.task == task]:
            self._left.remove(remnant)
            if self._is_away(remnant):
                self._refs.append(_salvage_there(remnant))
            else:
                self._threads.append(_salvage_aside(remnant))

    def gather_there(self, killed: Iterable[Remnant]) -> None:
        """Gathers by Ray what is on other hosts, that of `killed` too; waits as long as is reasonable."""
        away = self._within_reach([each for each in (*self._left, *killed) if self._is_away(each)])
        deadline = time.monotonic() + _TIMEOUT_S
        for ref in [*self._refs, *map(_salvage_there, away)]:
            try:
                ray.get(ref, timeout=max(0.0, deadline - time.monotonic()))
            except RayError as error:
                logger.warning("the end of a log is lost with its host: %s", error)

    def gather_here(self, killed: Iterable[Remnant], *, by_ray: bool = True) -> None:
        """Gathers without Ray what is on this host, that of `killed` too, and waits for it.

        Args:
          by_ray: Whether Ray has killed them; else this does.
        """
        for thread in self._threads:
            thread.join(_TIMEOUT_S)
        for remnant in (*self._left, *killed):
            if not self._is_away(remnant):
                _salvage(remnant, patience_s=_TIMEOUT_S if by_ray else 0.0)
        self._left, self._refs, self._threads = [], [], []

    def _within_reach(self, away: list[Remnant]) -> list[Remnant]:
        """Returns those on hosts whose Ray still runs; elsewhere they cannot be gathered."""
        if not away or self._home is None:  # from outside, hosts need not answer
            return away
        gone = unreachable_hosts()
        return [each for each in away if each.hello is None or each.hello.host not in gone]

    def _is_away(self, remnant: Remnant) -> bool:
        # One without a hello may have died between making its folder and sending it: here it is looked for,
        # on another host it is swept by the next task.
        return remnant.hello is not None and remnant.hello.node_id != self._home


def _salvage(remnant: Remnant, *, patience_s: float = _TIMEOUT_S) -> None:
    hello, setup = remnant.hello, remnant.setup
    path = scratch_root() / setup.scratch_name if hello is None else hello.scratch_path
    salvage(path, setup.log, pid=hello.pid if hello else None, patience_s=patience_s)


def _salvage_aside(remnant: Remnant) -> threading.Thread:
    def run() -> None:
        try:
            _salvage(remnant)
        except OSError as error:
            logger.warning("%s: what it left cannot be cleared: %s", remnant.setup.task, error)

    thread = threading.Thread(target=run, name="raydist-salvage", daemon=True)
    thread.start()
    return thread


def _salvage_there(remnant: Remnant) -> Any:
    assert remnant.hello is not None
    hello = remnant.hello
    there = remote_on(hello.node_id, salvage)
    return there.remote(hello.scratch_path, remnant.setup.log, pid=hello.pid)
