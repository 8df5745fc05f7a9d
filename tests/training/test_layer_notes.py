"""Layers of the user's own that draw by `tf.random` are noted, and those that want a whole batch refused."""

from __future__ import annotations

import functools
import re

import pytest

from tests.support.processes import Cluster, TaskProcess, run_function, run_in_turn

pytestmark = pytest.mark.slow

FUNCTION = "tests.support.loss_functions:layer_that_draws"
KINDS = ("layer", "lambda", "subclassed", "none")
CONSTANT = "tests.support.mistake_functions:constant"


@functools.cache
def run(keras: str) -> dict[str, list[TaskProcess]]:
    calls: dict[str, tuple[str, dict[str, object]]] = {kind: (FUNCTION, {"kind": kind}) for kind in KINDS}
    calls |= {name: (f"{CONSTANT}_{name}", {}) for name in ("batch_sizes", "inputs")}
    return run_in_turn(calls, Cluster(strategy="mirrored", devices=2, keras=keras))


@pytest.mark.parametrize("kind", KINDS)
def test_layers_that_draw_by_tensorflow_are_noted(kind: str, keras: str) -> None:
    [task] = run(keras)[kind]
    assert len(task.values["notes"]) == (kind != "none")
    assert all("random numbers" in note for note in task.values["notes"])


class TestAConstantBatchSize:
    def test_two_replicas_are_told_the_layer_and_how_many_rows_each_has(self, keras: str) -> None:
        [task] = run(keras)["batch_sizes"]
        del task.values["errors"]["ctx.fit"]  # as fit
        for name, error in task.values["errors"].items():
            # Where rows have no known size either, TensorFlow counts values.
            found = re.sub("96 values(.*) has 48", r"16 rows\1 has 8", error)
            assert found == (
                f"UnsupportedError: layer {name.partition(',')[0]} has a constant batch size of 16 rows, and "
                "each of 2 replicas has 8 of them; write -1 or tf.shape(x)[0] in its place, or use one "
                "worker with one device"
            ), name

    def test_a_layer_that_counts_on_the_rows_of_an_input_is_named(self, keras: str) -> None:
        [task] = run(keras)["inputs"]
        told = task.values["told"]
        assert told.pop("none") == "32"
        assert "incompatible" in told["multiplies"] or "Dimensions must be equal" in told["multiplies"]
        assert "constant batch size" not in told.pop("multiplies")
        assert "is not in [0, 5)" in told.pop("looks up")
        for index in (8, 12):
            assert told.pop(f"takes {index}") == (
                f"UnsupportedError: layer takes_{index} takes row {index} of a tensor with 8 rows. If that "
                "is a batch, each of 2 replicas has only its part; take rows that each part has, or use one "
                "worker with one device"
            )
        assert told.pop("halves") == (
            "UnsupportedError: layer halves combines 8 rows of a tensor with 0 rows. If they are parts of a "
            "batch that is cut at constant rows, such as x[:8] and x[8:], each of 2 replicas has fewer rows; "
            "put what belongs together into one row, or use one worker with one device"
        )
        for name, error in told.items():
            name = name.replace(" ", "_")
            refusal = f"UnsupportedError: layer {name} has a constant batch size of 16 rows, and each of 2 "
            assert error.startswith(refusal), name

    def test_one_device_trains_it(self, keras: str) -> None:
        [task] = run_function(f"{CONSTANT}_batch_sizes", Cluster(keras=keras))
        assert set(task.values["errors"].values()) == {""}
