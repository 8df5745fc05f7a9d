"""`pytest --compat oldest tests/compat`: the promises in an environment of each set that is named.

`--compat minors` runs a smoke test with each minor version of Ray, `minors:2/5` with a fifth of them.

Where there is no Python for a set that is named, its test fails.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.compat.environments import (
    ROOT,
    environment_variables,
    make_environment,
    minor_sets,
    version_sets,
)

# What runs in each environment. It takes some 3 minutes on two cores, the installation not counted.
TESTS = (
    *("tests/spec", "tests/planning", "tests/controller", "tests/storage"),
    *("tests/training/test_tf_private.py", "tests/training/test_seam.py"),
    *("tests/compat/test_promises.py", "tests/compat/test_jobs.py"),
    "tests/training/test_keras_patches.py::test_every_replaced_function_is_the_one_it_was_written_for",
)

SMOKE_TEST = "tests/compat/test_smoke.py"
CASES = ("-m", "not exhaustive")


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", list(version_sets()))
def test_promises_hold_with_the_set(name: str, pytestconfig: pytest.Config, tmp_path: Path) -> None:
    versions = version_sets()[name]
    kept = pytestconfig.getoption("--compat-dir")
    python = make_environment(versions, Path(kept, name) if kept else tmp_path / name)
    done = subprocess.run(
        [python, "-m", "pytest", "-n", "auto", "-q", "-p", "no:cacheprovider", *CASES, *TESTS],
        cwd=ROOT,
        env=environment_variables(versions),
        check=False,
    )
    assert done.returncode == 0


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", list(minor_sets()))
def test_smoke_job_runs_with(name: str, pytestconfig: pytest.Config, tmp_path: Path) -> None:
    versions = minor_sets()[name]
    kept = pytestconfig.getoption("--compat-dir")
    python = make_environment(versions, Path(kept, name) if kept else tmp_path / name, extra="tensorflow")
    done = subprocess.run(
        [python, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", *CASES, SMOKE_TEST],
        cwd=ROOT,
        env=environment_variables(versions),
        check=False,
    )
    assert done.returncode == 0
