"""Programs in the style of keras-io's examples: several replicas train what one device trains.

No note claims otherwise.
"""

from __future__ import annotations

import functools

import pytest

from tests.programs.catalog import BATCHNORM, PROGRAMS, RANDOM, Expected, names
from tests.programs.in_turn import CLUSTERS, Done, cluster_of, run_programs
from tests.support.selected import selected

# All programs that are asked for, of a Keras and cluster, run for the first test that asks for one.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

# None of these notes may appear for a program that equals one device.
FALSE_ALARMS = (RANDOM, BATCHNORM, "could not be shown", "assigns to", "made outside of the strategy")

REPEATED = pytest.mark.exhaustive(
    *("keras legacy", "2 devices", "3 workers"),
    # convnet, text_transformer, miniature_gpt, recommender and wide_deep have the same layers.
    *("autoencoder", "bilstm", "captcha_ctc", "efficient_embeddings", "issue_tickets"),
    *("timeseries_transformer", "vision_transformer", "vision_transformer_ops"),
    # Each has tests of its own in tests/training, and tests/fuzz draws them.
    *("clipping", "schedules", "weight_decay", "distillation", "endpoint_layer", "train_step_compiled"),
    *("imbalanced", "mixed_bfloat16"),
    covered_by="2 workers with Keras 3; other programs of the same layers; tests/compat for tf_keras",
)


def clusters(program: str, keras: str) -> tuple[str, str]:
    """Returns where a program runs: on 2 workers, and in turn on 3 workers or 2 devices."""
    place = list(PROGRAMS).index(program) + (keras == "3")
    return ("2 workers", "3 workers" if place % 2 else "2 devices")


def cases() -> list[object]:
    """Returns a case for each program, Keras and cluster; some of Keras 3 on 2 workers are not slow."""
    return [
        pytest.param(
            program,
            keras,
            cluster,
            marks=()
            if (keras, cluster) == ("3", "2 workers") and not PROGRAMS[program].is_slow
            else pytest.mark.slow,
            id=f"{program}-keras {keras}-{cluster}",
        )
        for keras in ("3", "legacy")
        for cluster in CLUSTERS
        for program in names(keras, Expected.EQUAL)
        if cluster in clusters(program, keras)
    ]


@functools.cache
def run(programs: tuple[str, ...], cluster: str, keras: str) -> dict[str, list[Done]]:
    return run_programs(programs, cluster_of(cluster, keras))


@pytest.fixture
def one_device(request: pytest.FixtureRequest, program: str, keras: str) -> Done:
    """What one device makes of the program."""
    [done] = run(selected(request, "program", keras=keras), "one device", keras)[program]
    return done


@pytest.fixture
def tasks(request: pytest.FixtureRequest, program: str, keras: str, cluster: str) -> list[Done]:
    """What each task of the cluster makes of it."""
    return run(selected(request, "program", keras=keras, cluster=cluster), cluster, keras)[program]


@REPEATED
@pytest.mark.parametrize(("program", "keras", "cluster"), cases())
def test_variables_equal_those_of_one_device(one_device: Done, tasks: list[Done], program: str) -> None:
    for task in tasks:
        task.trained.check_variables(one_device.trained, atol=PROGRAMS[program].atol)


@REPEATED
@pytest.mark.parametrize(("program", "keras", "cluster"), cases())
def test_history_equals_that_of_one_device(one_device: Done, tasks: list[Done], program: str) -> None:
    for task in tasks:
        task.trained.check_history(one_device.trained, atol=max(PROGRAMS[program].atol, 1e-4))


@REPEATED
@pytest.mark.parametrize(("program", "keras", "cluster"), cases())
def test_no_false_alarm(tasks: list[Done]) -> None:
    notes = [note for task in tasks for note in task.notes]
    found = [note for note in notes if any(words in note for words in FALSE_ALARMS)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("program", "keras"),
    [("returned_losses", "3"), pytest.param("returned_losses", "legacy", marks=pytest.mark.slow)],
)
def test_loss_that_a_step_returns_is_that_of_the_history(one_device: Done) -> None:
    history = one_device.trained.history
    for name in ("loss", "val_loss", "loss of evaluate"):
        assert history[f"Ratings {name}"].tolist() == history[f"LossAlone {name}"].tolist()
        assert all(history[f"Ratings {name}"] > 1e-3)
    assert len(history["Ratings loss"]) == 3
    assert history["Ratings loss"].tolist() == history["Ratings total_loss"].tolist()
