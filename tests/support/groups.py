"""Which tests a worker of pytest-xdist runs, so that those that compute leave room for those that wait."""

from __future__ import annotations

import os
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.support import worker_machine

# What keeps a core busy all the time, by folder, the longest first. Of these only as many run at a time as
# there are cores: more would run into their time limits. `cli` is here because its tests end the session's
# Ray: the command line's process has none.
COMPUTING = ("programs", "tables", "e2e", "training", "jobs", "cli")
# Of these, mostly idle ones: they wait for deadlines.
WAITING = ("e2e/test_hosts.py", "e2e/test_storage.py", "training/test_busy_times.py")
# What runs on the session's Ray, which takes long to start: one worker runs all of it.
ON_RAY = ("runtime", "runs")
RAY = "Ray"
# What imports TensorFlow, here or to fork tasks, which is most of what the default tests of it cost: in the
# default run one worker has all of them.
ON_TENSORFLOW = ("training/", "inference/", "data/test_mix.py")
# Workers beside those that compute.
NUM_WAITING = 2


class GroupScheduling(LoadScopeScheduling):
    """Gives each worker a file at a time, of those that suit it."""

    def __init__(self, config: pytest.Config, log: Any, *, is_default: bool) -> None:
        super().__init__(config, log)
        self._is_default = is_default
        self._is_complete: bool | None = None
        self._helper: str | None = None

    def _split_scope(self, nodeid: str) -> str:
        group = group_of(nodeid)
        return "training" if self._is_default and group.startswith(ON_TENSORFLOW) else group

    def _assign_work_unit(self, node: Any) -> None:
        group = next((group for group in self.workqueue if self._suits(group, node)), None)
        if group is not None:
            if not self._computes(node) and not _waits(group):
                self._helper = node.gateway.id
            self.workqueue.move_to_end(group, last=False)
            super()._assign_work_unit(node)

    def _reschedule(self, node: Any) -> None:
        if any(self._suits(group, node) for group in self.workqueue):
            super()._reschedule(node)
        elif not node.shutting_down:
            node.shutdown()  # once it has run what it was given

    def _suits(self, group: str, node: Any) -> bool:
        # Where there are fewer files than workers, pytest-xdist has ended the last ones before any work is
        # given out; those that are left take everything.
        if self._is_complete is None:
            self._is_complete = len(self.nodes) == self.numnodes
        if self.numnodes == 1 or not self._is_complete:
            return True
        if self._computes(node):
            return not _only_waits(group)
        # What computes leaves a share of the cores idle, too: once all that waits is given out, one helps.
        may_help = self._helper in (None, node.gateway.id) and not any(map(_waits, self.workqueue))
        return may_help or _waits(group)

    def _computes(self, node: Any) -> bool:
        return int(node.gateway.id.removeprefix("gw")) < max(1, self.numnodes - NUM_WAITING)


def _only_waits(group: str) -> bool:
    return group == RAY or group in WAITING


def _waits(group: str) -> bool:
    return _only_waits(group) or group.partition("/")[0] not in COMPUTING


def num_workers() -> int:
    return (os.cpu_count() or 1) + NUM_WAITING


def group_of(nodeid: str) -> str:
    """Returns what a test is run together with: at least with its file, whose fixtures are made once."""
    path = nodeid.partition("::")[0].removeprefix("tests/")
    folder = path.partition("/")[0]
    # Two tests that look for Rays on one machine would find each other's.
    shares_machine = folder == "e2e" and worker_machine.why_unavailable() is not None
    return RAY if folder in ON_RAY or shares_machine else path


def rank_of(nodeid: str) -> int:
    """Returns a number to sort tests by, so that the longest groups begin first."""
    folder = nodeid.removeprefix("tests/").partition("/")[0]
    ranks = (*ON_RAY, *COMPUTING)
    return ranks.index(folder) if folder in ranks else len(ranks)
