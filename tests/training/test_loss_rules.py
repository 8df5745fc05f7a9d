"""A loss that is right on one device is right on several replicas, or the run says so."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
import pytest

from tests.support.processes import Cluster, TaskProcess, run_in_turn
from tests.support.selected import selected

pytestmark = pytest.mark.slow

FUNCTIONS = "tests.support.loss_functions"
SUMMED = ("function, sum", "step, divided by replicas")
AVERAGED = ("function, mean", "compute_loss", "Keras's Distiller", "step, mean")
THREE = ("step, mean", "step, divided by three")  # in batches of 3, of which one worker has a single row
NOTED = {
    "clips": "clips or rescales its gradients by itself",
    "assigns": "assigns to centre",
    "assigns the mean": None,
    "reduces": "adds them up over the 2 replicas by itself",
    "unscaled regularizer": "could not be shown",
}
COMPARING = "step, compares examples"
DRAWING = "step, random"
AVERAGES = "are means over a replica's part of the batch"
COMPARES = "make what they give an example depend on the others of the batch"
STATE = "update their own state from each replica's part of the batch"
DRAWS = "draw random numbers, so results repeat only with the same number of replicas"
ANY_NUMBER = "; --virtual-replicas K gives the same on any number of workers"
DICE = "Keras's loss Dice compares the examples of a batch"
# What is noted of a model, each by a piece of a sentence; nothing else is, but of a mean that it is averaged.
MODELS = {
    "a metric that draws": ["contrast (", "compares the examples of a batch"],
    "a layer whose draws are not used": [],
    "a dropout": [f"layers dropout {DRAWS}{ANY_NUMBER}"],
    "a masked mean": ["its losses depend on how a batch is divided"],
    "a pruned layer": [],
    "an averaged layer": [f"layers averaged {STATE}"],
    "text as long as the longest": [f"layers text {COMPARES}", "; set output_sequence_length"],
    "text of one length": [],
    "a layer that compares": [f"layers centred {COMPARES}"],
    "a softmax over the batch": [f"layers ranks {COMPARES}"],
    "a subclassed model that compares": [f"layers paired {COMPARES}"],
    "a model of Keras's layers": [],
    "Keras's Dice": [DICE],
    "Keras's Dice by its name": ["Keras's loss dice compares the examples of a batch"],
    "Keras's Dice of each example": [],
}
# Known to treat each example by itself, so that nothing is traced to find out.
UNCHECKED = {
    *("text of one length", "a model of Keras's layers"),
    *("Keras's Dice", "Keras's Dice by its name", "Keras's Dice of each example"),
}
CLUSTERS = {
    "one device": Cluster(),
    "2 devices": Cluster(strategy="mirrored", devices=2),
    "2 workers": Cluster(strategy="multi_worker_mirrored", workers=2),
}


Calls = dict[str, list[TaskProcess]]
# The programs of the tests that have one each are chosen by `selected`; the others run in any case.
ALWAYS = ("function, mean", "compute_loss", "step, mean", COMPARING, DRAWING)


@functools.cache
def _run(cluster: str, keras: str, kinds: tuple[str, ...]) -> Calls:
    written = f"{FUNCTIONS}:loss_written_as"
    calls: dict[str, tuple[str, dict[str, object]]] = {
        **{kind: (written, {"kind": kind}) for kind in dict.fromkeys((*kinds, *ALWAYS))},
        **{f"{kind} of 3": (written, {"kind": kind, "batch_size": 3}) for kind in THREE},
    }
    others = ["model_made_outside", "compiled_twice", "term_that_begins_at_zero", "float16_sum_overflows"]
    if keras == "3":  # tf_keras refuses a loss object in a loop, and sums gradients that are unscaled
        others += ["layer_losses_in_a_loop", "first_step_overflows"]
    if cluster != "one device":
        others += ["step_that_counts_its_calls", "loop_that_evaluates"]
        kinds_of_notes = [name for name in NOTED if name != "reduces" or keras == "3"]
        calls |= {name: (f"{FUNCTIONS}:step_that_needs_a_note", {"kind": name}) for name in kinds_of_notes}
    if cluster == "2 devices" and keras == "3":
        others += ["optimizer_that_accumulates_as_an_attribute", "keras_layers_that_draw"]
    calls |= {name: (f"{FUNCTIONS}:{name}", {}) for name in others}
    return run_in_turn(calls, dataclasses.replace(CLUSTERS[cluster], keras=keras))


@functools.cache
def _run_models(cluster: str, keras: str, models: tuple[str, ...]) -> Calls:
    calls = {model: (f"{FUNCTIONS}:model_that_has", {"kind": model}) for model in models}
    return run_in_turn(calls, dataclasses.replace(CLUSTERS[cluster], keras=keras), timeout_s=480)


Run = Callable[[str, str], Calls]


@pytest.fixture
def run(request: pytest.FixtureRequest) -> Run:
    """Returns what each program left on a cluster with a Keras."""
    kinds = selected(request, "kind")
    return lambda cluster, keras: _run(cluster, keras, kinds)


@pytest.fixture
def run_models(request: pytest.FixtureRequest) -> Run:
    models = selected(request, "model")
    return lambda cluster, keras: _run_models(cluster, keras, models)


ALIKE = pytest.mark.exhaustive(covered_by="the same on 2 devices, with Keras 3")
CASES = [
    ("2 devices", "3"),
    *(pytest.param("2 workers", keras, marks=ALIKE) for keras in ("3", "legacy")),
    pytest.param("2 devices", "legacy", marks=ALIKE),
]


@pytest.mark.parametrize(("cluster", "keras"), CASES)
@pytest.mark.parametrize("kind", [*SUMMED, *AVERAGED])
def test_weights_and_losses_equal_those_of_one_device(run: Run, kind: str, cluster: str, keras: str) -> None:
    if (kind, keras) == ("Keras's Distiller", "legacy"):
        pytest.skip("tf_keras has none")
    [expected] = run("one device", keras)[kind]
    for task in run(cluster, keras)[kind]:
        np.testing.assert_allclose(task.arrays["weights"], expected.arrays["weights"], atol=1e-5, rtol=0)
        # This step returns what it has divided. tf_keras weighs each replica's sum by its examples.
        if kind != "step, divided by replicas" and (kind, keras) != ("function, sum", "legacy"):
            np.testing.assert_allclose(task.values["loss"], expected.values["loss"], atol=1e-5)
        if kind in SUMMED:
            assert about_gradients(task) == []


@pytest.mark.parametrize(("cluster", "keras"), CASES)
def test_what_is_averaged_on_the_users_behalf_is_told_with_file_and_line(
    run: Run, cluster: str, keras: str
) -> None:
    # One sentence for one function: of the steps, which are of one class, the first leaves it.
    for kind in ("function, mean", "compute_loss", "step, mean"):
        # tf_keras takes the mean of what a loss function returns, and scales it.
        is_right_in_keras = keras == "legacy" and kind.startswith("function")
        notes = run(cluster, keras)[kind][0].values["notes"]
        told = any("loss_functions.py:" in note and "averaged over the 2 replicas" in note for note in notes)
        assert told is not is_right_in_keras, (kind, notes)


@pytest.mark.parametrize(("cluster", "keras"), CASES)
def test_loss_that_compares_examples_is_told(run: Run, cluster: str, keras: str) -> None:
    [note] = about_gradients(run(cluster, keras)[COMPARING][0])
    assert "OwnStep.train_step (" in note
    assert "compares the examples of a batch, each replica those of its own part alone" in note


@pytest.mark.parametrize(("cluster", "keras"), CASES)
def test_loss_that_draws_is_told_and_averaged_like_any_other(run: Run, cluster: str, keras: str) -> None:
    [drawn] = [note for note in run(cluster, keras)[DRAWING][0].values["notes"] if "draws random" in note]
    assert drawn.endswith("so results repeat only with the same number of replicas")


@pytest.mark.parametrize(("cluster", "keras"), CASES)
@pytest.mark.parametrize("model", MODELS)
def test_notes_name_their_cause_and_nothing_else(
    run_models: Run, model: str, cluster: str, keras: str
) -> None:
    if "Dice" in model and keras == "legacy":
        pytest.skip("tf_keras has no such loss")
    [task, *_] = run_models(cluster, keras)[model]
    notes = task.values["notes"]
    for piece in MODELS[model]:
        assert [note for note in notes if piece in note] != [], (piece, notes)
    assert [note for note in notes if not any(piece in note for piece in (*MODELS[model], AVERAGES))] == []
    assert task.values["checked"] is (model not in UNCHECKED)


@pytest.mark.parametrize(("cluster", "keras"), CASES)
def test_nothing_is_said_of_a_loop_without_updates(run: Run, cluster: str, keras: str) -> None:
    for task in run(cluster, keras)["loop_that_evaluates"]:
        assert task.values["notes"] == []


@pytest.mark.parametrize(("cluster", "keras"), CASES)
def test_model_made_outside_of_the_strategy_trains_as_in_keras(run: Run, cluster: str, keras: str) -> None:
    [expected] = run("one device", keras)["model_made_outside"]
    for task in run(cluster, keras)["model_made_outside"]:
        for name in ("weights", "predicted"):
            np.testing.assert_allclose(task.arrays[name], expected.arrays[name], atol=1e-6)
        assert task.values["values"] == pytest.approx(expected.values["values"])


@pytest.mark.parametrize(("cluster", "keras"), CASES)
def test_rule_is_found_anew_once_a_model_is_compiled_again(run: Run, cluster: str, keras: str) -> None:
    check_equal(run, "compiled_twice", cluster, keras, atol=1e-5)


@pytest.mark.parametrize("cluster", ["2 devices", pytest.param("2 workers", marks=ALIKE)])
def test_losses_of_layers_are_scaled_in_a_bare_loop(run: Run, cluster: str) -> None:
    check_equal(run, "layer_losses_in_a_loop", cluster, "3", atol=1e-5)


@pytest.mark.parametrize(("cluster", "keras"), CASES)
def test_step_is_skipped_where_only_the_sum_over_replicas_overflows(
    run: Run, cluster: str, keras: str
) -> None:
    [expected] = run("one device", keras)["float16_sum_overflows"]
    assert expected.values["scale"] < 256.0 * 2**3  # which it is after 12 steps if none is skipped
    for task in check_equal(run, "float16_sum_overflows", cluster, keras, atol=2e-3):
        assert task.values == expected.values


@pytest.mark.parametrize(("cluster", "keras"), CASES)
@pytest.mark.parametrize("step", THREE)
def test_workers_take_one_rule_where_one_has_too_few_rows_to_look(
    run: Run, step: str, cluster: str, keras: str
) -> None:
    check_equal(run, f"{step} of 3", cluster, keras, atol=1e-5)


@pytest.mark.parametrize(("cluster", "keras"), CASES)
def test_scaled_term_whose_weight_begins_at_zero_is_taken_as_scaled(
    run: Run, cluster: str, keras: str
) -> None:
    check_equal(run, "term_that_begins_at_zero", cluster, keras, atol=1e-5)


@pytest.mark.parametrize("cluster", ["2 devices", pytest.param("2 workers", marks=ALIKE)])
def test_gradients_that_overflow_in_the_first_step_are_told(run: Run, cluster: str) -> None:
    for task in check_equal(run, "first_step_overflows", cluster, "3", atol=2e-3):
        [note] = task.values["notes"]
        assert "its first gradients are zero or not finite" in note


@pytest.mark.parametrize(("cluster", "keras"), CASES)
def test_check_leaves_the_models_own_counters_alone(run: Run, cluster: str, keras: str) -> None:
    for task in run(cluster, keras)["step_that_counts_its_calls"]:
        assert task.values["calls"] == 10


@pytest.mark.parametrize(("cluster", "keras"), CASES)
@pytest.mark.parametrize("deed", NOTED)
def test_what_each_replica_does_by_itself_is_told(run: Run, deed: str, cluster: str, keras: str) -> None:
    if deed == "reduces" and keras == "legacy":
        pytest.skip("tf_keras has skip_gradients_aggregation, which another test is about")
    for task in run(cluster, keras)[deed]:
        notes, piece = task.values["notes"], NOTED[deed]
        if piece is None:
            assert [note for note in notes if "assigns to" in note] == []
        else:
            assert [note for note in notes if piece in note] != [], notes


def test_accumulating_optimizer_is_refused_where_it_is_an_attribute_too(run: Run) -> None:
    [task] = run("2 devices", "3")["optimizer_that_accumulates_as_an_attribute"]
    assert task.values["error"].startswith("UnsupportedError: optimizer")
    assert "gradient_accumulation_steps" in task.values["error"]


def test_every_layer_of_keras_that_draws_has_a_note(run: Run) -> None:
    [task] = run("2 devices", "3")["keras_layers_that_draw"]
    assert task.values["unnamed"] == []


def test_step_that_sums_its_gradients_itself_has_to_divide_its_losses() -> None:
    summing = f"{FUNCTIONS}:step_that_sums_its_gradients_itself"
    calls = {"divided": (summing, {"is_divided": True}), "not": (summing, {"is_divided": False})}
    one, two = (
        run_in_turn(calls, dataclasses.replace(CLUSTERS[name], keras="legacy"))
        for name in ("one device", "2 devices")
    )
    [expected], [divided], [not_divided] = one["divided"], two["divided"], two["not"]
    np.testing.assert_allclose(divided.arrays["weights"], expected.arrays["weights"], atol=1e-5, rtol=0)
    assert about_gradients(divided) == []
    [note] = about_gradients(not_divided)
    assert "adds them up over the 2 replicas by itself" in note


def about_gradients(task: TaskProcess) -> list[str]:
    """Returns a task's notes without those on what is shown: a loss that is scaled is returned as a part."""
    return [note for note in task.values["notes"] if "may differ from one device's" not in note]


def check_equal(run: Run, name: str, cluster: str, keras: str, *, atol: float) -> list[TaskProcess]:
    [expected] = run("one device", keras)[name]
    tasks = run(cluster, keras)[name]
    for task in tasks:
        np.testing.assert_allclose(task.arrays["weights"], expected.arrays["weights"], atol=atol, rtol=0)
    return tasks


def test_step_that_counts_replicas_alike_is_refused_where_their_shares_are_unequal(keras: str) -> None:
    cluster = dataclasses.replace(CLUSTERS["2 workers"], keras=keras, shares=(3, 1))
    mean, divides = "takes a mean over the replicas", "may divide its losses by the number of replicas"
    for task in run_in_turn({"refused": (f"{FUNCTIONS}:refused", {})}, cluster)["refused"]:
        causes = {
            kind: told.partition(") ")[2].partition(", and with --shares")[0]
            for kind, told in task.values.items()
        }
        assert causes == {
            "step, divided by replicas": divides,
            "step, average loss": divides,
            "assigns the mean": mean,
        }


def test_without_the_check_gradients_are_summed(run: Run, keras: str) -> None:
    function = f"{FUNCTIONS}:loss_written_as"
    calls = {"step": (function, {"kind": "step, mean"})}
    options = {"check_equality": False}
    cluster = Cluster(strategy="mirrored", devices=2, keras=keras)
    [task] = run_in_turn(calls, cluster, job_options=options)["step"]
    [expected] = run("one device", keras)["step, mean"]
    assert np.abs(task.arrays["weights"] - expected.arrays["weights"]).max() > 1e-2
    assert task.values["notes"] == []
