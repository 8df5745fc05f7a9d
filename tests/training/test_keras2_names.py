"""The names of Keras 2 that raydist knows are those that the installed Kerases differ in."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from raydist.entry.keras2_names import MISSING_METHODS, MISSING_NAMES, is_missing
from tests.support.keras2_functions import MISTAKES, OTHERS
from tests.support.processes import Cluster, TaskProcess, run_in_turn

pytestmark = pytest.mark.slow

FUNCTIONS = "tests.support.keras2_functions"
REMEDY = "; --keras legacy runs programs that were written for Keras 2"


@functools.cache
def run(keras: str, storage: str) -> dict[str, TaskProcess]:
    calls: dict[str, tuple[str, dict[str, object]]] = {"told": (f"{FUNCTIONS}:told", {"storage": storage})}
    if keras == "3":
        calls["differences"] = (f"{FUNCTIONS}:differences", {})
    else:
        calls["rates"] = (f"{FUNCTIONS}:notes_on_rates", {})
    return {name: task for name, [task] in run_in_turn(calls, Cluster(keras=keras)).items()}


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("storage"))


def test_errors_of_programs_for_keras_2_end_with_the_remedy(storage: str) -> None:
    told = run("3", storage)["told"].values
    for source in MISTAKES:
        last = told[source].splitlines()[-1]
        assert last.startswith("Keras 3 has no "), (source, told[source])
        assert last.endswith(REMEDY)
    for source in OTHERS:
        assert REMEDY not in told[source]
        assert told[source] != "runs"


def test_they_run_under_tf_keras(tmp_path: Path) -> None:
    told = run("legacy", str(tmp_path))["told"].values
    assert {source: told[source] for source in MISTAKES if told[source] != "runs"} == {}
    rates = run("legacy", str(tmp_path))["rates"].values
    assert rates["rate"] == pytest.approx(0.001)
    [note] = [note for note in rates["notes"] if "lr=0.1" in note]
    assert note.endswith("ignore lr; write Adam(learning_rate=0.1)")


def test_missing_names_are_those_of_the_installed_versions(storage: str) -> None:
    found = run("3", storage)["differences"].values
    # `from tensorflow.keras.saving import …` works in either.
    assert [name for name in found["missing"] if not is_missing(name) and name != "saving"] == []
    unknown = {name for name in MISSING_NAMES if name not in found["missing"]}
    assert unknown == {"losses.Reduction.AUTO", "optimizers.legacy"}
    assert set(found["old"]) >= MISSING_METHODS - {"get_updates"}
    # Of layers alone; and one that only raises.
    assert MISSING_METHODS & set(found["new"]) == {"reset_states", "add_metric"}
