"""A program that several replicas cannot train as one device does is told so."""

from __future__ import annotations

import functools

import pytest

from tests.programs.catalog import PROGRAMS, Expected, names
from tests.programs.in_turn import Done, cluster_of, run_programs
from tests.support.selected import selected

pytestmark = pytest.mark.timeout(1800)

# Two replicas in one process: what is told does not depend on where they are.
CLUSTER = "2 devices"


@functools.cache
def run(programs: tuple[str, ...], keras: str) -> dict[str, list[Done]]:
    return run_programs(programs, cluster_of(CLUSTER, keras))


@pytest.mark.exhaustive("legacy", covered_by="the same with Keras 3")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "keras"), [(one, keras) for keras in ("3", "legacy") for one in names(keras, Expected.TOLD)]
)
def test_what_cannot_be_equal_is_told(request: pytest.FixtureRequest, program: str, keras: str) -> None:
    [done] = run(selected(request, "program", keras=keras), keras)[program]
    # Of an error what it says, without the lines of code that lead to it.
    said = [*done.notes, (done.error or "").rpartition('  File "')[2]]
    for piece in PROGRAMS[program].told:
        assert any(piece in sentence for sentence in said), said
