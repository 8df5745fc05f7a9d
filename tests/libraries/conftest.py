from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import leave_out
from tests.support.installing import install_beside

REQUIREMENTS = Path(__file__).with_name("requirements.txt")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects what needs `--libraries`."""
    left = [item for item in items if item.path.parent == Path(__file__).parent]
    if not config.getoption("--libraries"):
        leave_out(config, items, left, "--libraries")


@pytest.fixture(scope="session")
def libraries(pytestconfig: pytest.Config) -> str:
    """The folder of the libraries' packages; they are installed unless it has them."""
    # A note that names a function asks by this name of its folder whether it is the user's.
    folder = Path(pytestconfig.getoption("--libraries"), "site-packages").absolute()
    marker, wanted = folder / "raydist-libraries.txt", REQUIREMENTS.read_text()
    if not marker.exists() or marker.read_text() != wanted:
        install_beside(folder, REQUIREMENTS)
        marker.write_text(wanted)
    return str(folder)
