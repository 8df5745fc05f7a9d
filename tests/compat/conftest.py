from __future__ import annotations

import pytest

from tests.compat.environments import SELECTED, is_chosen
from tests.conftest import leave_out
from tests.e2e.conftest import raydist, running_ray

__all__ = ["raydist", "running_ray"]  # fixtures

# What a set's own pytest runs, in the environment of the set.
OF_A_SET = ("test_promises.py", "test_jobs.py", "test_smoke.py")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects what needs `--compat`, and the sets that it does not name."""
    left = [item for item in items if not _is_wanted(item, config.getoption("--compat"))]
    leave_out(config, items, left, "--compat")


def _is_wanted(item: pytest.Item, names: list[str]) -> bool:
    if item.path.parent.name != "compat":
        return True
    if item.path.name in OF_A_SET:
        return bool(SELECTED)
    if item.path.name != "test_sets.py":
        return True
    return not SELECTED and is_chosen(item.callspec.params["name"], names)  # type: ignore[attr-defined]
