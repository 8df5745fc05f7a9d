"""Programs with other people's libraries: two workers train what one device trains.

Each follows its library's own documentation. Run them with `pytest -n 0 --libraries DIR tests/libraries`: the
packages come from the network, which workers of pytest-xdist do not have.
"""

from __future__ import annotations

import functools
import importlib
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.programs.in_turn import Done, cluster_of, killed, run_programs
from tests.programs.test_equality import FALSE_ALARMS, RANDOM

pytestmark = pytest.mark.timeout(1200)

PROGRAMS = {
    "3": (
        *("keras_hub_image", "keras_hub_text", "keras_rs_ranking", "keras_tcn_sequences"),
        *("keras_tuner_search", "scikeras_classifier"),
    ),
    # These import tf_keras, or what only Keras 2 has.
    "legacy": (
        *(
            "deepctr_deepfm",
            "gpflow_steps",
            "gpflow_svgp",
            "gpflux_hybrid",
            "larq_binarized",
            "orbit_trainer",
        ),
        *(
            "orbit_trainer",
            "segmentation_unet",
            "spektral_graphs",
            "tf_privacy_model",
            "tf_privacy_optimizer",
        ),
        *("tf_ranking_softmax", "tfmot_pruning", "tfp_regression", "tfrs_ranking", "transformers_bert"),
    ),
}
CASES = [
    pytest.param(program, keras, id=program) for keras, programs in PROGRAMS.items() for program in programs
]
REFUSED = {
    "gpflow_natural": "UnsupportedError: train.<locals>.step_fn",  # it assigns what each replica computes
    "tf_gnn_graphs": "UnsupportedError: the data have a GraphTensor, which raydist cannot cut",
}
# Arrays, a pipeline, and a callback that counts steps.
KILLED = (("deepctr_deepfm", "legacy"), ("keras_rs_ranking", "3"), ("tfmot_pruning", "legacy"))
# Words of the notes that are no false alarm.
TRUE_NOTES = {
    "gpflow_steps": "step_fn",  # the loss is multiplied by the rows of all data over those of the part
    "tf_privacy_optimizer": "DPOptimizerClass",  # it clips each example, and draws noise of size 0
    "tf_ranking_softmax": "SoftmaxLoss",  # it shuffles what is equal in a list
}
ATOL = 1e-5


@functools.cache
def run(keras: str, cluster: str, libraries: str) -> dict[str, list[Done]]:
    return run_programs(PROGRAMS[keras], cluster_of(cluster, keras), **_place(libraries))


def train_function(name: str) -> Any:
    return importlib.import_module(f"tests.libraries.{name}").train


def _place(libraries: str) -> dict[str, Any]:
    return {"find": "tests.libraries.test_libraries:train_function", "libraries": libraries}


@pytest.mark.parametrize(("program", "keras"), CASES)
def test_two_workers_train_what_one_device_trains(program: str, keras: str, libraries: str) -> None:
    [one] = run(keras, "one device", libraries)[program]
    for task in run(keras, "2 workers", libraries)[program]:
        task.trained.check_variables(one.trained, atol=ATOL)
        task.trained.check_history(one.trained, atol=ATOL)


@pytest.mark.parametrize(("program", "keras"), CASES)
def test_no_false_alarm(program: str, keras: str, libraries: str) -> None:
    notes = [note for task in run(keras, "2 workers", libraries)[program] for note in task.notes]
    alarms = (*FALSE_ALARMS, "may mix the examples")
    false = [note for note in notes if any(words in note for words in alarms)]
    assert [note for note in false if TRUE_NOTES.get(program, "none") not in note] == []


@pytest.mark.parametrize(("program", "refusal"), REFUSED.items(), ids=list(REFUSED))
def test_program_trains_on_one_device_and_is_refused_on_two_workers(
    program: str, refusal: str, libraries: str
) -> None:
    one, two = (
        run_programs([program], cluster_of(cluster, "legacy"), **_place(libraries))[program]
        for cluster in ("one device", "2 workers")
    )
    losses = one[0].trained.history["loss"]
    assert losses[-1] < losses[0]
    for task in two:
        assert refusal in str(task.error)


def test_only_the_layer_whose_samples_are_used_is_told_to_draw(libraries: str) -> None:
    # Each layer of this deep Gaussian process draws a sample; the loss takes the last one's distribution.
    tasks = run_programs(["gpflux_deep"], cluster_of("2 workers", "legacy"), **_place(libraries))
    for task in tasks["gpflux_deep"]:
        assert task.trained.history["loss"][-1] < task.trained.history["loss"][0]
        assert [note.partition(",")[0] for note in task.notes if RANDOM in note] == [
            "layers gp_0 draw random numbers"
        ]
        assert [note for note in task.notes if any(words in note for words in FALSE_ALARMS[1:])] == []


def test_loss_that_a_train_step_returns_is_in_the_history(libraries: str) -> None:
    [one] = run("legacy", "one device", libraries)["tfrs_ranking"]
    assert one.trained.history["loss"].tolist() == one.trained.history["total_loss"].tolist()
    assert all(one.trained.history["loss"] > 1)


@pytest.mark.parametrize(("program", "keras"), KILLED, ids=[program for program, _ in KILLED])
def test_killed_program_ends_as_the_undisturbed_one(
    program: str, keras: str, libraries: str, tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    cluster, options = cluster_of("2 workers", keras), {"checkpoint_every": "2"}
    with killed(
        program, cluster, after=5, storage=tmp_path, job_options=options, **_place(libraries)
    ) as task:
        wait_until(lambda: task.process.poll() is not None, timeout_s=300)
        assert task.process.poll() == -signal.SIGKILL, task.text()
    resumed = run_programs(
        [program], cluster, storage=tmp_path, attempt=1, job_options=options, **_place(libraries)
    )
    # Alone, as the killed one: the order of arrays is another one in each fit of a task.
    [undisturbed] = run_programs([program], cluster_of("one device", keras), **_place(libraries))[program]
    for done in resumed[program]:
        assert done.restored_step > 0
        done.trained.check_variables(undisturbed.trained, atol=ATOL)
        done.trained.check_history(undisturbed.trained, atol=ATOL)
