"""What the tests run their tasks with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes import Cluster, run_function

pytestmark = pytest.mark.slow

TARGET = "tests.support.profiles:abort_like_the_profiler"


def test_tasks_that_the_profiler_killed_are_run_once_more(tmp_path: Path) -> None:
    marker = str(tmp_path / "marker")
    [task] = run_function(TARGET, Cluster(), profiles=True, marker=marker, file="profiler_v2.py")
    assert task.values == {"steps": 1}


@pytest.mark.parametrize(("profiles", "file"), [(True, "session.py"), (False, "profiler_v2.py")])
def test_tasks_that_died_of_something_else_are_not(tmp_path: Path, profiles: bool, file: str) -> None:
    marker = str(tmp_path / "marker")
    with pytest.raises(AssertionError, match="worker/0 ended with"):
        run_function(TARGET, Cluster(), profiles=profiles, marker=marker, file=file)
