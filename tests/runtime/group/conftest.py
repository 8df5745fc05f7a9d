"""Attempts of one run, each after the other, on a real Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from raydist.outcome.status import TaskState
from raydist.planning.plan import Plan
from raydist.runtime.cluster.connection import Connection
from raydist.runtime.group.group import LaunchSpec
from raydist.runtime.group.launcher import RayLauncher
from tests.conftest import WaitUntil
from tests.runtime.conftest import COUNTING, Drive
from tests.support.ray_heads import wait_for_lost_nodes


@pytest.fixture
def only_the_drivers_node(ray_cluster: Connection) -> None:
    """Waits until Ray has given up the nodes of tests before."""
    wait_for_lost_nodes()


class Attempts:
    """A run's attempts, each driven as `Drive` does it."""

    def __init__(self, launcher: RayLauncher, storage_path: Path, wait_until: WaitUntil) -> None:
        self.launcher = launcher
        self._storage_path = storage_path
        self._wait_until = wait_until
        self._number = 0

    def begin(self, plan: Plan) -> Drive:
        group = self.launcher.launch(plan, attempt=self._number)
        self._number += 1
        return Drive(group, self._storage_path)

    def train(self, plan: Plan) -> Drive:
        """Begins the next attempt, and waits until all workers train."""
        drive = self.begin(plan)
        self._wait_until(lambda: drive.all_in(TaskState.RUNNING, *map(str, plan.tasks)))
        return drive


@pytest.fixture
def attempts(
    ray_cluster: Connection, no_leaks: None, tmp_path: Path, wait_until: WaitUntil
) -> Iterator[Callable[[Plan], Attempts]]:
    with ExitStack() as stack:

        def make(plan: Plan) -> Attempts:
            launch = LaunchSpec(
                connection=ray_cluster,
                storage_uri=plan.job.storage,
                run_uri=str(tmp_path / "run"),
                runner=COUNTING,
            )
            launcher = RayLauncher(plan, launch)
            stack.callback(launcher.close)
            return Attempts(launcher, tmp_path, wait_until)

        yield make


def agents_of(drive: Drive) -> dict[str, int]:
    return {str(task): hello.pid for task, hello in drive.group._ledger.hellos.items()}
