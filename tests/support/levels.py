"""Which cases a mark is for, and what a test needs.

`slow` is for what takes more than a second or two, `exhaustive` for slow cases that repeat what another case
or test shows. Both are for all cases of a test, or for those whose names have certain words between hyphens:
`@pytest.mark.slow("legacy", "2 workers")`. The default run has neither.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

LEVELS = ("slow", "exhaustive")
# The mark of a test by the module or the fixture that it uses.
NEEDS = {
    "browser": ("tests.support.browser", "browser"),
    "hosts": ("tests.support.netns", "tests.support.hosts"),
    "processes": ("tests.support.processes",),
    "ray": ("tests.support.ray_heads", "running_ray", "gpu_ray", "shared_ray", "ray_cluster"),
    "s3": ("tests.support.object_store", "s3_endpoint"),
    "slurm": ("tests.support.slurm",),
}


def is_slow(path: Path) -> bool:
    """Returns whether each test of a file is slow, without importing it."""
    return re.search(r"^pytestmark = .*pytest\.mark\.slow", path.read_text(), re.MULTILINE) is not None


def faults_of_marks(items: Sequence[pytest.Item]) -> list[str]:
    """Returns words of marks that no case's name has, as after a renaming, and marks without `covered_by`."""
    uses: dict[str, bool] = {}
    for item in items:
        for mark in item.own_markers:
            name = f"{item.nodeid.partition('[')[0]}: {mark.name}"
            if mark.name == "exhaustive" and not mark.kwargs.get("covered_by"):
                uses[f"{name} without covered_by"] = False
            for word in mark.args if mark.name in LEVELS else ():
                uses[f"{name} {word}"] = uses.get(f"{name} {word}", False) or _has(item, word)
    return [fault for fault, is_used in uses.items() if not is_used]


def mark_case(item: pytest.Item) -> None:
    """Takes from an item the marks of other cases of its test, and adds what it needs."""
    item.own_markers[:] = [
        mark
        for mark in item.own_markers
        if mark.name not in LEVELS or not mark.args or any(_has(item, word) for word in mark.args)
    ]
    for name in _needs(item):
        item.add_marker(name)


def _has(item: pytest.Item, words: str) -> bool:
    return f"-{words}-" in f"-{item.name.partition('[')[2].removesuffix(']')}-"


def _needs(item: pytest.Item) -> list[str]:
    used = _used_by(item.module) | set(getattr(item, "fixturenames", ()))  # type: ignore[attr-defined]
    return [name for name, users in NEEDS.items() if used.intersection(users)]


@functools.cache
def _used_by(module: ModuleType) -> frozenset[str]:
    """Returns the modules that a module of tests takes names of."""
    used = {getattr(one, "__module__", None) or getattr(one, "__name__", "") for one in vars(module).values()}
    return frozenset(used)


def names_only_tests(arguments: Sequence[str]) -> bool:
    """Returns whether each argument of pytest names a test: then it is run, whatever its marks."""
    return bool(arguments) and all("::" in one for one in arguments)
