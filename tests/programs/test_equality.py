"""Programs in the style of keras-io's examples: several replicas train what one device trains."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.programs.catalog import PROGRAMS, Expected, names_for
from tests.programs.in_turn import Done, run_programs
from tests.support.processes import Cluster

# All programs of a Keras and cluster run for the first test that asks for one of them.
pytestmark = pytest.mark.timeout(1800)

CLUSTERS = {
    "one device": {},
    "2 workers": {"strategy": "multi_worker_mirrored", "workers": 2},
    "3 workers": {"strategy": "multi_worker_mirrored", "workers": 3},
    "2 devices": {"strategy": "mirrored", "devices": 2},
}


@functools.cache
def run(cluster: str, keras: str) -> dict[str, list[Done]]:
    return run_programs(names_for(keras), Cluster(**CLUSTERS[cluster], keras=keras))


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
        for cluster in list(CLUSTERS)[1:]
        for program in names_for(keras)
        if PROGRAMS[program].expected[keras] is Expected.EQUAL
    ]


@pytest.mark.parametrize(("program", "keras", "cluster"), cases())
def test_variables_equal_those_of_one_device(program: str, keras: str, cluster: str) -> None:
    [expected] = run("one device", keras)[program]
    assert expected.outcome is not None, expected.error
    for done in run(cluster, keras)[program]:
        assert done.outcome is not None, done.error
        assert done.outcome.variables.keys() == expected.outcome.variables.keys()
        for name, variable in expected.outcome.variables.items():
            np.testing.assert_allclose(
                done.outcome.variables[name], variable, atol=PROGRAMS[program].atol, rtol=0, err_msg=name
            )


@pytest.mark.parametrize(("program", "keras", "cluster"), cases())
def test_history_equals_that_of_one_device(program: str, keras: str, cluster: str) -> None:
    [expected] = run("one device", keras)[program]
    assert expected.outcome is not None, expected.error
    for done in run(cluster, keras)[program]:
        assert done.outcome is not None, done.error
        assert done.outcome.history.keys() == expected.outcome.history.keys()
        for name, values in expected.outcome.history.items():
            np.testing.assert_allclose(
                done.outcome.history[name], values, atol=max(PROGRAMS[program].atol, 1e-4), err_msg=name
            )
