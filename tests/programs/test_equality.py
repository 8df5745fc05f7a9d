"""Programs in the style of keras-io's examples: several replicas train what one device trains."""

from __future__ import annotations

import functools

import pytest

from tests.programs.catalog import PROGRAMS, Expected, names
from tests.programs.in_turn import CLUSTERS, Done, cluster_of, run_programs
from tests.programs.outcome import Outcome

# All programs of a Keras and cluster run for the first test that asks for one of them.
pytestmark = pytest.mark.timeout(3600)


@functools.cache
def run(cluster: str, keras: str) -> dict[str, list[Done]]:
    return run_programs(names(keras, Expected.EQUAL), cluster_of(cluster, keras))


def cases() -> list[object]:
    """Returns a case for each program, Keras and cluster; all but those of Keras 3 on 2 workers are slow."""
    return [
        pytest.param(
            program,
            keras,
            cluster,
            marks=() if (keras, cluster) == ("3", "2 workers") else pytest.mark.slow,
            id=f"{program}-keras {keras}-{cluster}",
        )
        for keras in ("3", "legacy")
        for cluster in CLUSTERS
        if cluster != "one device"
        for program in names(keras, Expected.EQUAL)
    ]


def outcomes(program: str, keras: str, cluster: str) -> tuple[Outcome, list[Outcome]]:
    """Returns what one device trains, and each task of the cluster."""
    found = []
    for done in (*run("one device", keras)[program], *run(cluster, keras)[program]):
        assert done.outcome is not None, done.error
        found.append(done.outcome)
    return found[0], found[1:]


@pytest.mark.parametrize(("program", "keras", "cluster"), cases())
def test_variables_equal_those_of_one_device(program: str, keras: str, cluster: str) -> None:
    expected, others = outcomes(program, keras, cluster)
    for other in others:
        other.check_variables(expected, atol=PROGRAMS[program].atol)


@pytest.mark.parametrize(("program", "keras", "cluster"), cases())
def test_history_equals_that_of_one_device(program: str, keras: str, cluster: str) -> None:
    expected, others = outcomes(program, keras, cluster)
    for other in others:
        other.check_history(expected, atol=max(PROGRAMS[program].atol, 1e-4))
