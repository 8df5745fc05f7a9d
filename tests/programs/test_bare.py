"""TensorFlow's tutorials, and other programs: a strategy's scope changes nothing of what plain Keras trains.

They are compared with processes that have no raydist: what it does on one device is not taken for right.
"""

from __future__ import annotations

import functools

import pytest

from tests.programs.bare import run_bare
from tests.programs.catalog import BARE, Expected
from tests.programs.in_turn import Done, cluster_of, run_programs
from tests.support.selected import selected

# All programs that are asked for, of a Keras and cluster, run for the first test that asks for one.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

FIND = "tests.programs.in_task:train_function"
# Others have the same models, as tests/tables and tests/fuzz have too; and what tf_keras does in another way.
REPEATED = pytest.mark.exhaustive(covered_by="tutorials of the same layers, tests/tables and tests/fuzz")
OF_TF_KERAS = ("losses_of_outputs", "tutorials.transfer_learning")


def cases() -> list[object]:
    """Returns each program with each Keras, on 2 workers and 2 devices in turn."""
    return [
        pytest.param(
            *(name, keras, ("2 workers", "2 devices")[place % 2]),
            marks=REPEATED if keras == "legacy" and name not in OF_TF_KERAS else (),
        )
        for keras in ("3", "legacy")
        for place, (name, program) in enumerate(BARE.items())
        if keras in program.expected
    ]


@functools.cache
def run(programs: tuple[str, ...], cluster: str, keras: str) -> dict[str, list[Done]]:
    return run_programs(programs, cluster_of(cluster, keras), find=FIND)


@pytest.mark.parametrize(("program", "keras", "cluster"), cases())
def test_program_in_a_scope_trains_and_shows_what_plain_keras_does(
    request: pytest.FixtureRequest, program: str, keras: str, cluster: str
) -> None:
    known = BARE[program]
    tasks = run(selected(request, "program", keras=keras, cluster=cluster), cluster, keras)[program]
    if known.expected[keras] is Expected.TOLD:
        for task in tasks:
            said = [*task.notes, (task.error or "").rpartition('  File "')[2]]
            assert all(any(piece in sentence for sentence in said) for piece in known.told), said
        return
    bare = run_bare(selected(request, "program", keras=keras), keras, FIND)[program].trained
    for task in tasks:
        task.trained.check_history(bare, atol=max(known.atol, 1e-4))
        task.trained.check_variables(bare, atol=known.atol)
