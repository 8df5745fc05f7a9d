"""Programs in the style of keras-io's examples: several replicas train what one device trains.

No note claims otherwise.
"""

from __future__ import annotations

import functools

import pytest

from tests.programs.catalog import BATCHNORM, PROGRAMS, RANDOM, Expected, names
from tests.programs.in_turn import Done, cluster_of, run_programs
from tests.support.selected import selected

# All programs that are asked for, of a Keras and cluster, run for the first test that asks for one.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

# None of these notes may appear for a program that equals one device.
FALSE_ALARMS = (RANDOM, BATCHNORM, "could not be shown", "assigns to", "made outside of the strategy")
# The others are the layers of these in other models; tests/compat trains five of them with each Keras.
IN_CI = ("custom_loop", "masked_tagger", "own_fit", "returned_losses", "wgan_gp", "wide_deep")
REPEATED = pytest.mark.exhaustive(covered_by="programs with the same layers, tests/compat and tests/fuzz")
CLUSTERS = {"3": "2 workers", "legacy": "2 devices"}


@functools.cache
def run(programs: tuple[str, ...], cluster: str, keras: str) -> dict[str, list[Done]]:
    return run_programs(programs, cluster_of(cluster, keras))


@pytest.mark.parametrize(
    ("program", "keras"),
    [
        pytest.param(one, keras, marks=() if one in IN_CI and keras == "3" else REPEATED)
        for keras in CLUSTERS
        for one in names(keras, Expected.EQUAL)
    ],
)
def test_program_trains_and_shows_what_one_device_does_without_a_false_alarm(
    request: pytest.FixtureRequest, program: str, keras: str
) -> None:
    programs, atol = selected(request, "program", keras=keras), PROGRAMS[program].atol
    [expected] = run(programs, "one device", keras)[program]
    for task in run(programs, CLUSTERS[keras], keras)[program]:
        task.trained.check_variables(expected.trained, atol=atol)
        task.trained.check_history(expected.trained, atol=max(atol, 1e-4))
        assert [note for note in task.notes if any(words in note for words in FALSE_ALARMS)] == []
    if program == "returned_losses":
        history = expected.trained.history
        for name in ("loss", "val_loss", "loss of evaluate"):
            assert history[f"Ratings {name}"].tolist() == history[f"LossAlone {name}"].tolist()
            assert all(history[f"Ratings {name}"] > 1e-3)
        assert len(history["Ratings loss"]) == 3
        assert history["Ratings loss"].tolist() == history["Ratings total_loss"].tolist()
