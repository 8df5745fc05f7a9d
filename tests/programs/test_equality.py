"""Programs in the style of keras-io's examples: several replicas train what one device trains."""

from __future__ import annotations

import functools

import pytest

from tests.programs.catalog import PROGRAMS, Expected, names
from tests.programs.in_turn import CLUSTERS, Done, cluster_of, run_programs
from tests.programs.outcome import Outcome

# All quick programs, or all slow ones, of a Keras and cluster run for the first test that asks for one.
pytestmark = pytest.mark.timeout(3600)


@functools.cache
def run(cluster: str, keras: str, is_slow: bool) -> dict[str, list[Done]]:
    programs = names(keras, Expected.EQUAL, is_slow=is_slow)
    return run_programs(
        [one for one in programs if cluster in clusters(one, keras)], cluster_of(cluster, keras)
    )


def clusters(program: str, keras: str) -> tuple[str, str, str]:
    """Returns where a program runs: on one device, on 2 workers, and in turn on 3 workers or 2 devices."""
    place = list(PROGRAMS).index(program) + (keras == "3")
    return ("one device", "2 workers", "3 workers" if place % 2 else "2 devices")


def cases() -> list[object]:
    """Returns a case for each program, Keras and cluster; many of Keras 3 on 2 workers are not slow."""
    return [
        pytest.param(
            program,
            keras,
            cluster,
            marks=pytest.mark.slow if is_slow or (keras, cluster) != ("3", "2 workers") else (),
            id=f"{program}-keras {keras}-{cluster}",
        )
        for keras in ("3", "legacy")
        for cluster in CLUSTERS
        if cluster != "one device"
        for is_slow in (False, True)
        for program in names(keras, Expected.EQUAL, is_slow=is_slow)
        if cluster in clusters(program, keras)
    ]


def outcomes(program: str, keras: str, cluster: str) -> tuple[Outcome, list[Outcome]]:
    """Returns what one device trains, and each task of the cluster."""
    found, is_slow = [], PROGRAMS[program].is_slow
    for done in (*run("one device", keras, is_slow)[program], *run(cluster, keras, is_slow)[program]):
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
