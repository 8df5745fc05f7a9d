from __future__ import annotations

import base64
import dataclasses
import json
import zlib
from typing import Any

import numpy as np
import pytest

from raydist.metrics.curves import Series
from raydist.outcome.status import Scope
from raydist.page.curves import Packer, attempt_starts, later_trainings, pack_curves, with_step_times, workers


def series(values: Any, *, task: str = "worker/0", name: str = "loss", step_s: float = 0.1) -> Series:
    steps = np.arange(1, len(values) + 1)
    return Series(
        scope=Scope.LOCAL,
        name=name,
        task=task,
        steps=steps,
        times=1.7e9 + steps * step_s,
        values=np.asarray(values, float),
        attempts=np.zeros(len(values), int),
    )


def unpacked(packed: dict[str, Any], where: dict[str, Any]) -> list[float]:
    """Reads an array as page.js does."""
    content = zlib.decompress(base64.b64decode(packed["blob"]))
    kind = {"d4": "<i4", "f4": "<f4", "f8": "<f8"}[where["t"]]
    numbers = np.frombuffer(content, kind, count=where["n"], offset=where["o"])
    return (np.cumsum(numbers) if where["t"] == "d4" else numbers).tolist()


def test_values_come_back_as_they_were_packed() -> None:
    packed = pack_curves([series([0.5, float("nan"), 2.0])], num_points=100)
    (one,) = packed["series"]
    assert unpacked(packed, one["step"]) == [1, 2, 3]
    assert unpacked(packed, one["time"]) == [0, 10, 20]
    values = unpacked(packed, one["value"])
    assert (values[0], values[2], one["odd"]) == (0.5, 2.0, 1)
    assert np.isnan(values[1])


@pytest.mark.parametrize("values", [[1e300, 1.0], [1e-300, 1.0]], ids=["huge", "tiny"])
def test_values_that_do_not_fit_into_32_bits_keep_all_of_them(values: list[float]) -> None:
    packed = pack_curves([series(values)], num_points=100)
    assert unpacked(packed, packed["series"][0]["value"]) == values


def test_steps_above_32_bits_are_exact() -> None:
    packer = Packer()
    where = packer.add_integers(np.array([2**40, 2**40 + 1]))
    assert unpacked({"blob": packer.packed()}, where) == [2**40, 2**40 + 1]


def test_equal_arrays_are_stored_once() -> None:
    packed = pack_curves([series([1.0, 2.0]), series([3.0, 4.0], name="accuracy")], num_points=100)
    first, second = packed["series"]
    assert first["step"] == second["step"]
    assert first["value"] != second["value"]


def test_thinned_curve_keeps_a_single_spike() -> None:
    values = np.ones(100_000)
    values[54_321] = 7.0
    packed = pack_curves([series(values)], num_points=1000)
    (one,) = packed["series"]
    assert max(unpacked(packed, one["value"])) == 7.0
    assert one["step"]["n"] <= 1100
    assert (packed["points"], one["whole"]) == (100_000, 100_000)


def test_step_time_of_each_worker_and_who_is_slow() -> None:
    tasks = [
        series(np.ones(9), task="worker/0"),
        series(np.ones(9), task="worker/1", step_s=0.16),
        series(np.ones(9), task="worker/2"),
    ]
    found = workers(with_step_times([*tasks, series(np.full(9, 0.3), task="worker/1", name="input_wait")]))
    assert [(one["task"], round(one["step_s"], 3), one["input_wait"]) for one in found] == [
        ("worker/0", 0.1, None),
        ("worker/1", 0.16, 0.3),
        ("worker/2", 0.1, None),
    ]
    assert [one["task"] for one in found if one["times_slower"]] == ["worker/1"]


def test_worker_that_the_others_wait_for_is_slow_although_all_steps_take_the_same() -> None:
    waits = {"worker/0": 0.7, "worker/1": 0.1, "worker/2": 0.65}
    curves = [series(np.full(9, wait), task=task, name="collective_wait") for task, wait in waits.items()]
    found = workers(with_step_times(curves))
    assert {one["task"]: one["collective_wait"] for one in found} == waits
    assert {one["task"]: one["times_slower"] for one in found if one["times_slower"]} == {
        "worker/1": pytest.approx(0.9 / 0.35)
    }


def test_repeated_values_are_packed_with_their_attempt_and_count_for_nothing_else() -> None:
    curve = series(np.ones(9))
    before = dataclasses.replace(series(np.full(60, 0.9), name="input_wait"), is_repeated=True)
    found = with_step_times([curve, before])
    assert [one["attempt"] for one in pack_curves(found, num_points=100)["series"]] == [None, 0, None]
    assert [(one["task"], one["input_wait"]) for one in workers(found)] == [("worker/0", None)]
    assert attempt_starts([dataclasses.replace(before, attempts=before.attempts + 3)]) == []


def test_each_training_but_the_first_is_marked_where_it_began_last() -> None:
    begun = [("fit", 1, 0), ("fit", 2, 20), ("train_steps", 1, 30), ("fit", 2, 25)]
    told = [{"event": "training", "kind": kind, "number": n, "step": step} for kind, n, step in begun]
    damaged = [{"event": "training", "kind": "fit"}, {"event": "note", "message": "fit"}, {}]
    assert later_trainings([*told, *damaged]) == [
        {"name": "fit 2", "step": 25},
        {"name": "train_steps 1", "step": 30},
    ]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300, 5e-324])
def test_waits_and_times_that_no_page_can_show_are_left_out(value: float) -> None:
    curves = [
        series(np.full(9, 0.3 if name == "step_time" and task == "worker/0" else value), task=task, name=name)
        for task in ("worker/0", "worker/1")
        for name in ("step_time", "input_wait", "collective_wait")
    ]
    json.dumps(workers(curves), allow_nan=False)
    json.dumps(workers(curves, known_slow={"worker/0": value}), allow_nan=False)
