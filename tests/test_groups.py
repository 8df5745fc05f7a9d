"""How the tests are shared out among the workers of pytest-xdist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import HAS_TENSORFLOW

REPOSITORY = Path(__file__).parents[1]


def test_collecting_tests_does_not_import_tensorflow(request: pytest.FixtureRequest) -> None:
    assert not request.config.stash[HAS_TENSORFLOW]


# The first is a file that only some of the workers take, the second one that only the others take.
@pytest.mark.slow
@pytest.mark.parametrize("path", ["runtime/host/test_address.py", "cli/test_main.py"])
def test_few_files_are_run_whatever_the_number_of_workers(path: str) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "4", f"tests/{path}"],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        timeout=120,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert re.search(r"\d passed", process.stdout), process.stdout
