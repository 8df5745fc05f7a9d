"""Layers of the user's own that draw by `tf.random`, which their classes do not show, are noted."""

from __future__ import annotations

import functools

import pytest

from tests.support.processes import Cluster, TaskProcess, run_in_turn

FUNCTION = "tests.support.loss_functions:layer_that_draws"
KINDS = ("layer", "lambda", "subclassed", "none")


@functools.cache
def run(keras: str) -> dict[str, list[TaskProcess]]:
    calls = {kind: (FUNCTION, {"kind": kind}) for kind in KINDS}
    return run_in_turn(calls, Cluster(strategy="mirrored", devices=2, keras=keras))


@pytest.mark.parametrize("keras", ["3", "legacy"])
@pytest.mark.parametrize("kind", KINDS)
def test_layers_that_draw_by_tensorflow_are_noted(kind: str, keras: str) -> None:
    [task] = run(keras)[kind]
    assert len(task.values["notes"]) == (kind != "none")
    assert all("random numbers" in note for note in task.values["notes"])
