"""Which tests a worker of pytest-xdist runs one after another."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

from tests.support import worker_machine

# By folder, the longest first. Whole runs, Rays and TensorFlow keep both cores of a small machine busy: two
# of a kind at a time would run into their time limits.
GROUPS = {
    "e2e": "whole runs",
    "training": "TensorFlow",
    "programs": "programs",
    "jobs": "programs",
    "runtime": "Ray",
    "runs": "Ray",
}


class GroupScheduling(LoadScopeScheduling):
    """Gives each worker a group at a time, which `--dist loadgroup` of xdist 3.8 cannot with pytest 9.2."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def group_of(nodeid: str) -> str:
    """Returns what a test is run together with: at least with its file, whose fixtures are made once."""
    path = nodeid.partition("::")[0].removeprefix("tests/")
    group = GROUPS.get(path.partition("/")[0])
    if group in ("whole runs", "Ray") and worker_machine.why_unavailable() is not None:
        return "Ray"  # two tests that look for Rays on the machine would find each other's
    return group or path


def rank_of(nodeid: str) -> int:
    """Returns a number to sort tests by, so that the longest groups begin first."""
    folder = nodeid.removeprefix("tests/").partition("/")[0]
    return list(GROUPS).index(folder) if folder in GROUPS else len(GROUPS)
