"""Which Keras a test of the training side takes, where it says no more than `keras`."""

from __future__ import annotations

import pytest

LEGACY = pytest.param("legacy", marks=pytest.mark.exhaustive(covered_by="the same with Keras 3"))


@pytest.fixture(params=["3", LEGACY])
def keras(request: pytest.FixtureRequest) -> str:
    return str(request.param)
