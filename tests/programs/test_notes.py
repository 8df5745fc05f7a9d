"""A program that several replicas cannot train as one device does is told so; others are not alarmed."""

from __future__ import annotations

import functools

import pytest

from tests.programs.catalog import BATCHNORM, PROGRAMS, RANDOM, Expected, names
from tests.programs.in_turn import Done, cluster_of, run_programs

pytestmark = pytest.mark.timeout(1800)

# Two replicas in one process: what is told does not depend on where they are.
CLUSTER = "2 devices"


@functools.cache
def run(keras: str, expected: Expected, is_slow: bool) -> dict[str, list[Done]]:
    return run_programs(names(keras, expected, is_slow=is_slow), cluster_of(CLUSTER, keras))


def cases(expected: Expected) -> list[object]:
    return [
        pytest.param(
            program,
            keras,
            marks=() if _is_quick(program, keras, expected) else pytest.mark.slow,
            id=f"{program}-keras {keras}",
        )
        for keras in ("3", "legacy")
        for program in names(keras, expected)
    ]


def _is_quick(program: str, keras: str, expected: Expected) -> bool:
    return keras == "3" and expected is Expected.TOLD and not PROGRAMS[program].is_slow


@pytest.mark.parametrize(("program", "keras"), cases(Expected.TOLD))
def test_what_cannot_be_equal_is_told(program: str, keras: str) -> None:
    [done] = run(keras, Expected.TOLD, PROGRAMS[program].is_slow)[program]
    # Of an error what it says, without the lines of code that lead to it.
    said = [*done.notes, (done.error or "").rpartition('  File "')[2]]
    for piece in PROGRAMS[program].told:
        assert any(piece in sentence for sentence in said), said


@pytest.mark.parametrize(("program", "keras"), cases(Expected.EQUAL))
def test_what_is_equal_has_no_such_note(program: str, keras: str) -> None:
    [done] = run(keras, Expected.EQUAL, PROGRAMS[program].is_slow)[program]
    assert done.error is None, done.error
    false_alarms = (RANDOM, BATCHNORM, "could not be shown")
    assert [note for note in done.notes if any(words in note for words in false_alarms)] == []
