"""`pytest --compat oldest tests/compat`: the promises in an environment of each set that is named.

`--compat minors` runs a smoke test with each minor version of Ray, `minors:2/5` with a fifth of them.

Where there is no Python for a set that is named, its test fails.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.compat.environments import (
    ROOT,
    VersionSet,
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


@pytest.fixture(scope="module")
def environment_of(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Path]]:
    """Returns the Python of a set's environment; makes the next one while the set is tested."""
    folder = Path(request.config.getoption("--compat-dir") or tmp_path_factory.mktemp("compat"))
    sets = {**version_sets(), **minor_sets()}
    chosen = [
        sets[item.callspec.params["name"]] for item in request.session.items if item.module is request.module
    ]

    def make(versions: VersionSet) -> Path:
        extra = "test" if versions.name in version_sets() else "tensorflow"
        return make_environment(versions, folder / versions.folder, extra=extra)

    with ThreadPoolExecutor(max_workers=1) as maker:
        made: dict[str, Future[Path]] = {}

        def environment(name: str) -> Path:
            place = chosen.index(sets[name])
            for one in chosen[place : place + 2]:
                if one.folder != sets[name].folder or one.name == name:
                    made[one.name] = made.get(one.name) or maker.submit(make, one)
            return made[name].result()

        yield environment


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", list(version_sets()))
def test_promises_hold_with_the_set(name: str, environment_of: Callable[[str], Path]) -> None:
    check_in(environment_of(name), version_sets()[name], *TESTS)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", list(minor_sets()))
def test_smoke_job_runs_with(name: str, environment_of: Callable[[str], Path]) -> None:
    check_in(environment_of(name), minor_sets()[name], SMOKE_TEST)


def check_in(python: Path, versions: VersionSet, *tests: str) -> None:
    done = subprocess.run(
        [python, "-m", "pytest", "-n", "2", "-q", "-p", "no:cacheprovider", "-m", "not exhaustive", *tests],
        cwd=ROOT,
        env=environment_variables(versions),
        check=False,
    )
    assert done.returncode == 0
