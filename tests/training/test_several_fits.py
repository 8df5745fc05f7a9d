"""After a kill a train function with several fits sees what it sees without one, also of ended fits."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import Cluster, run_function, started

pytestmark = pytest.mark.slow

FUNCTION = "tests.support.several_fits_functions:several_fits"
ONE = Cluster()
DEVICES = Cluster(strategy="mirrored", devices=2)
WORKERS = Cluster(strategy="multi_worker_mirrored", workers=2)
SERVERS = Cluster(strategy="parameter_server", workers=1, ps=1)
Seen = list[dict[str, Any]]


def run(where: Cluster, storage: Path | None = None, *, attempt: int = 0, **given: Any) -> Seen:
    [task, *_] = run_function(FUNCTION, where, storage=storage, attempt=attempt, **given)
    assert not [note for note in task.values["notes"] if "ended" in note]
    return list(task.values["seen"])


@functools.cache
def undisturbed(where: Cluster, **given: Any) -> Seen:
    return run(where, **given)


def killed(clusters: Sequence[Cluster], storage: Path, **given: Any) -> Seen:
    """Returns what the last attempt sees; each of the others ends in a fit of its own."""
    for attempt, where in enumerate(clusters[:-1]):
        with started(FUNCTION, where, storage=storage, attempt=attempt, **given) as tasks:
            for task in tasks[: where.finishing]:
                assert task.process.wait(timeout=120) != 0, task.text()
                assert "as asked" in task.text()
    return run(clusters[-1], storage, attempt=len(clusters) - 1, **given)


def test_fits_that_had_ended_give_what_they_have_given_before(tmp_path: Path) -> None:
    before = run(ONE, tmp_path)
    assert run(ONE, tmp_path, attempt=1) == before


@pytest.mark.exhaustive("1000", "keraslegacy", covered_by="[one_device-1-keras3-3]; the test of a script")
@pytest.mark.parametrize(
    ("where", "every"),
    [(ONE, "3"), (ONE, "1000"), (Cluster(keras="legacy"), "epoch"), (SERVERS, "epoch")],
    ids=str,
)
def test_run_that_is_killed_in_its_last_fit_sees_what_the_undisturbed_one_sees(
    where: Cluster, every: str, tmp_path: Path
) -> None:
    options = {"checkpoint_every": every}
    assert killed([where, where], tmp_path, dies=[3], job_options=options) == undisturbed(where)


SCRIPT = """
import json
import raydist
from tests.support.several_fits_functions import several_fits

print(json.dumps(several_fits(raydist.context(), dies=[3])["seen"]))
"""


def test_script_with_several_fits_sees_what_the_undisturbed_one_sees(tmp_path: Path) -> None:
    file = tmp_path / "several_fits.py"
    file.write_text(SCRIPT)
    given: dict[str, Any] = {"file": str(file), "storage": tmp_path / "runs"}
    [task] = run_function("script", ONE, **given)
    assert "as asked" in task.values["traceback"]
    [task] = run_function("script", ONE, attempt=1, **given)
    [line] = [one for one in task.printed.splitlines() if one.startswith("[{")]
    assert json.loads(line) == undisturbed(ONE)


def test_kill_in_each_fit_and_resume_on_other_numbers_of_workers(keras: str, tmp_path: Path) -> None:
    clusters = [
        Cluster(strategy=one.strategy, workers=one.workers, devices=one.devices, keras=keras)
        for one in (ONE, DEVICES, WORKERS, ONE, WORKERS)
    ]
    # Dropout draws other numbers on other numbers of replicas.
    options = {"keep": "1"}
    found = killed(clusters, tmp_path, dies=[0, 1, 2, 3], rate=0.0, job_options=options)
    for one, expected in zip(found, undisturbed(clusters[0], rate=0.0), strict=True):
        for name in ("epochs", "params", "stopped", "iterations", "step"):
            assert one[name] == expected[name]
        for name in ("history", "callback", "evaluated"):
            assert one[name].keys() == expected[name].keys()
            for key, value in expected[name].items():
                assert one[name][key] == pytest.approx(value, rel=1e-4), (name, key)
        for name in ("weights", "predicted"):
            assert one[name] == pytest.approx(expected[name], rel=1e-4)
