"""TensorFlow's tutorials, and other programs: a strategy's scope changes nothing of what plain Keras trains.

They are compared with processes that have no raydist: what it does on one device is not taken for right.
"""

from __future__ import annotations

import functools

import pytest

from tests.programs.bare import run_bare
from tests.programs.catalog import BARE, Expected, Program
from tests.programs.in_turn import Done, cluster_of, run_programs
from tests.support.selected import selected

# All programs that are asked for, of a Keras and cluster, run for the first test that asks for one.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

FIND = "tests.programs.in_task:train_function"
CLUSTERS = ("one device", "2 workers", "2 devices")


def cases() -> list[object]:
    """Returns a case for each program, Keras and cluster: 2 workers, and the others in turn."""
    return [
        pytest.param(name, keras, cluster, id=f"{name}-keras {keras}-{cluster}")
        for keras in ("3", "legacy")
        for cluster in CLUSTERS
        for place, (name, program) in enumerate(BARE.items())
        if keras in program.expected
        and (cluster == "2 workers" or cluster == CLUSTERS[2 * ((place + (keras == "3")) % 2)])
    ]


@functools.cache
def run(programs: tuple[str, ...], cluster: str, keras: str) -> dict[str, list[Done]]:
    return run_programs(programs, cluster_of(cluster, keras), find=FIND)


@pytest.fixture
def bare(request: pytest.FixtureRequest, program: str, keras: str) -> Done:
    """What plain Keras makes of the program on one device."""
    return run_bare(selected(request, "program", keras=keras), keras, FIND)[program]


@pytest.fixture
def tasks(request: pytest.FixtureRequest, program: str, keras: str, cluster: str) -> list[Done]:
    """What each task of the cluster makes of it."""
    return run(selected(request, "program", keras=keras, cluster=cluster), cluster, keras)[program]


@pytest.mark.parametrize(("program", "keras", "cluster"), cases())
def test_program_in_a_scope_trains_and_shows_what_plain_keras_does(
    bare: Done, tasks: list[Done], program: str, keras: str, cluster: str
) -> None:
    known = BARE[program]
    for task in tasks:
        if is_told(known, keras, cluster):
            said = [*task.notes, (task.error or "").rpartition('  File "')[2]]
            assert all(any(piece in sentence for sentence in said) for piece in known.told), said
            continue
        task.trained.check_history(bare.trained, atol=max(known.atol, 1e-4))
        task.trained.check_variables(bare.trained, atol=known.atol)


def is_told(program: Program, keras: str, cluster: str) -> bool:
    """Whether several replicas cannot do the same, and say so."""
    return program.expected[keras] is Expected.TOLD and cluster != "one device"
