"""With --ps-staleness K workers train as if they read the weights once for K + 1 steps, and say where not."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.processes import Cluster, TaskProcess, run_function, run_in_turn, started
from tests.support.selected import selected
from tests.support.stale_functions import BATCH_SIZE

pytestmark = pytest.mark.slow

FUNCTIONS = "tests.support.stale_functions"
STALENESS, EPOCHS, STEPS = 2, 2, 44
DIGITS_EPOCHS = 6
WAYS = ("fit", "train_steps")
PROGRAMS = ("dense sgd", "dense adam", "embedding sgd", "embedding adagrad")
# The steps between which one worker begins with new readings.
SEGMENTS = {"fit": [STEPS] * EPOCHS, "train_steps": [STEPS * EPOCHS]}


def one_worker(keras: str) -> Cluster:
    return Cluster(strategy="parameter_server", workers=1, ps=2, keras=keras)


def training(way: str, program: str, **options: Any) -> tuple[str, dict[str, Any]]:
    kind, optimizer = program.split()
    arguments = {"way": way, "kind": kind, "optimizer": optimizer, "epochs": EPOCHS, "steps_per_epoch": STEPS}
    return f"{FUNCTIONS}:train", {**arguments, **options}


def options(**more: str) -> dict[str, str]:
    return {"ps_staleness": str(STALENESS), "export": "false", **more}


@functools.cache
def trained(keras: str, programs: tuple[str, ...], *, is_unrolled: bool) -> Mapping[str, TaskProcess]:
    calls = {
        f"{way} {program}": training(way, program, is_unrolled=is_unrolled)
        for way in WAYS
        for program in programs
    }
    found = run_in_turn(calls, one_worker(keras), job_options=options())
    return {name: chief for name, [chief] in found.items()}


@functools.cache
def simulated(keras: str, programs: tuple[str, ...]) -> Mapping[str, TaskProcess]:
    """What Keras by itself trains in one process, by way, program, and steps that share a reading."""
    calls = {
        f"{way} {program} {shared}": simulation(program, SEGMENTS[way], shared=shared, keras=keras)
        for way in WAYS
        for program in programs
        for shared in (STALENESS + 1, 1)
    }
    found = run_in_turn(calls, Cluster(keras=keras), job_options={"patch_keras": "false"})
    return {name: task for name, [task] in found.items()}


def simulation(
    program: str, segments: Sequence[int], *, shared: int, keras: str
) -> tuple[str, dict[str, Any]]:
    kind, optimizer = program.split()
    arguments = {"kind": kind, "optimizer": optimizer, "segments": segments, "shared": shared}
    # Keras 3 reads a table as a whole, like other weights; tf_keras reads rows.
    return f"{FUNCTIONS}:simulate", {**arguments, "shares_rows": keras == "3"}


@pytest.mark.exhaustive("legacy", covered_by="the same with Keras 3")
@pytest.mark.parametrize("keras", ["3", "legacy"])
@pytest.mark.parametrize("is_unrolled", [False, True], ids=["default", "unrolled"])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("way", WAYS)
def test_one_worker_trains_what_stale_gradients_train(
    request: pytest.FixtureRequest, way: str, program: str, is_unrolled: bool, keras: str
) -> None:
    programs = selected(request, "program", keras=keras, is_unrolled=is_unrolled)
    chief = trained(keras, programs, is_unrolled=is_unrolled)[f"{way} {program}"]
    stale, fresh = (simulated(keras, programs)[f"{way} {program} {one}"] for one in (STALENESS + 1, 1))
    # The same operations in the same order.
    np.testing.assert_array_equal(chief.arrays["weights"], stale.arrays["weights"])
    assert abs(chief.arrays["weights"] - fresh.arrays["weights"]).max() > 1e-2
    assert chief.values["iterations"] == chief.values["steps"] == EPOCHS * STEPS
    assert chief.values["notes"] == []
    if way == "fit":
        history = chief.values["history"]
        found = np.array([history["loss"], history["mae"]]).T
        np.testing.assert_allclose(found, stale.arrays["means"], rtol=1e-5)  # float32 against float64
        assert history["examples"] == [STEPS * BATCH_SIZE] * EPOCHS


@pytest.mark.exhaustive("legacy", covered_by="the same with Keras 3")
@pytest.mark.parametrize("keras", ["3", "legacy"])
@pytest.mark.parametrize("way", WAYS)
def test_a_resumed_run_trains_what_the_undisturbed_one_trains(way: str, keras: str, tmp_path: Path) -> None:
    target, arguments = training(way, "dense adam")
    where, every = one_worker(keras), options(checkpoint_every="25")
    failing = started(target, where, storage=tmp_path / "failed", job_options=every, fail_at=60, **arguments)
    with failing as [first, *_]:
        assert first.process.wait(timeout=120) == 1, first.text()
        assert "RuntimeError: as asked" in first.text()
    run = functools.partial(run_function, target, where, job_options=every, **arguments)
    [resumed] = run(storage=tmp_path / "failed", attempt=1)
    [undisturbed] = run(storage=tmp_path / "undisturbed")
    assert resumed.values["iterations"] == resumed.values["steps"] == EPOCHS * STEPS
    np.testing.assert_array_equal(resumed.arrays["weights"], undisturbed.arrays["weights"])
    # Each checkpoint, and each epoch's end, comes before a new reading.
    segments = {"fit": [25, 19, 6, 25, 13], "train_steps": [25, 25, 25, 13]}[way]
    simulate, arguments = simulation("dense adam", segments, shared=STALENESS + 1, keras=keras)
    [stale] = run_function(simulate, Cluster(keras=keras), job_options={"patch_keras": "false"}, **arguments)
    np.testing.assert_array_equal(resumed.arrays["weights"], stale.arrays["weights"])


@pytest.mark.exhaustive("legacy", covered_by="the same with Keras 3")
@pytest.mark.parametrize("keras", ["3", "legacy"])
def test_several_workers_count_each_step_and_example_and_learn_as_without_staleness(keras: str) -> None:
    where = Cluster(strategy="parameter_server", workers=3, ps=2, keras=keras)
    losses = {}
    way, embedding = training("train_steps", "embedding adagrad")
    for staleness in (0, 4):
        asked = options(ps_staleness=str(staleness))
        calls = {"fit": (f"{FUNCTIONS}:learn", {"epochs": DIGITS_EPOCHS}), "train_steps": (way, embedding)}
        found = run_in_turn(calls, where, job_options=asked)
        [loop], [fit] = found["train_steps"], found["fit"]
        assert loop.values["iterations"] == loop.values["steps"] == EPOCHS * STEPS
        values = fit.values
        assert values["iterations"] == values["steps"] == values["examples"] // 32 * DIGITS_EPOCHS
        assert values["history"]["examples"] == [values["examples"]] * DIGITS_EPOCHS
        losses[staleness] = values["loss"]
    # 1.01 times in one run; asynchronous training differs from run to run.
    assert losses[4] < 1.25 * losses[0]


def test_notes_say_where_fewer_steps_share_a_reading_than_was_asked() -> None:
    asked = options(ps_staleness="4")
    [chief] = run_function(f"{FUNCTIONS}:inert", one_worker("3"), job_options=asked)
    nothing = (
        "ps_staleness has no effect on these steps, which read every weight anew: steps share a weight if a "
        "gradient tape records it outside of loops and conditions, and if only an optimizer updates it"
    )
    assert chief.values == {
        "whole": [],
        "one step a call": [
            "ps_staleness 4 has no effect in this train_steps: steps_per_call=1 allows at most 1 step per "
            "reading of the weights"
        ],
        "short calls": [
            "ps_staleness 4 acts as 2 in this train_steps: steps_per_call=3 allows at most 3 steps per "
            "reading of the weights"
        ],
        "assigned by hand": [nothing],
        "in a tf.function": [],
        "epochs of one step": [
            "ps_staleness 4 has no effect in this fit: steps_per_epoch=1 allows at most 1 step per reading "
            "of the weights"
        ],
        "short epochs": [
            "ps_staleness 4 acts as 3 in this fit: steps_per_epoch=4 allows at most 4 steps per reading of "
            "the weights"
        ],
    }


@pytest.mark.parametrize(("staleness", "is_noted"), [("4", True), ("0", False)])
def test_loop_of_the_users_own_is_told_that_it_reads_the_weights_in_each_step(
    staleness: str, is_noted: bool
) -> None:
    asked = options(ps_staleness=staleness)
    [chief] = run_function(f"{FUNCTIONS}:own_loop", one_worker("3"), job_options=asked)
    assert ("ps_staleness 4 has no effect: job.py:train called neither ctx.fit" in chief.printed) is is_noted
