"""The walks of ARCHITECTURE.md are what the code does: each of their functions is entered, in that order."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.guide import ROOT, blocks
from tests.support.processes import Cluster, run_function
from tests.support.walks import TRAINING, Function

TARGETS = "tests.support.walks"
NAMED = pytest.mark.skipif(sys.version_info < (3, 11), reason="before Python 3.11 code has no qualified name")
FIT, LOSS, RESUME = (
    [(one[0], one[1]) for line in block.splitlines() if (one := line.split(maxsplit=2))]
    for block in blocks(ROOT / "ARCHITECTURE.md", "walk")
)


def check(walk: list[Function], entered: list[list[str]]) -> None:
    left = iter(map(tuple, entered))
    for function in walk:
        assert function in left, f"{function} is not entered, or not after those above it"


def test_walks_lead_through_files_that_exist() -> None:
    for path, _ in (*FIT, *LOSS, *RESUME):
        assert Path(TRAINING, path).is_file()


@NAMED
@pytest.mark.slow
def test_walk_of_a_fit() -> None:
    chief, _ = run_function(f"{TARGETS}:first_update", Cluster(strategy="multi_worker_mirrored", workers=2))
    check(FIT, chief.values["entered"])


@NAMED
@pytest.mark.slow
def test_walk_of_a_note() -> None:
    [task] = run_function(f"{TARGETS}:loss_of_own_mean", Cluster(strategy="mirrored", devices=2))
    check(LOSS, task.values["entered"])


@NAMED
@pytest.mark.slow
def test_walk_of_a_resume() -> None:
    [task] = run_function(f"{TARGETS}:resumed_inside_of_an_epoch", Cluster())
    check(RESUME, task.values["entered"])
