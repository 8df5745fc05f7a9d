"""Scripts that say nothing of tf.distribute: on several workers they print and leave what plain Python does.

Each file of tests/scripts/plain says, in one of its first lines, how it is compared:

    # check: workers=2,3,mirrored keras=3,legacy rtol=1e-4 plain=no

The values of `workers` and `keras` go by pairs, the shorter list over again; `mirrored` is one worker of two
devices. The first pair is run, most often 2 workers; the others, and those of 1, 2 and 3 workers, are
exhaustive. `rtol` is 1e-5 where it is left out. With
`plain=no` only the workers are compared with each other, as chance, or sums in another order, make it another
training than that of plain Python; with `plain=one` one worker is compared with it, too. With
`virtual_replicas=K` several workers then have the bits of one. One worker is killed after the steps of
`kill`, or the lines that it has printed (`kill=4lines`). Those with `libraries=yes` are run by
tests/libraries.
"""

from __future__ import annotations

import functools
import itertools
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from raydist.storage.layout import RunLayout
from tests.support.processes import Cluster, TaskProcess
from tests.support.same_results import lines_of, same_files, same_lines
from tests.support.scripts import PLAIN, QUIET, run_bare, run_killed_script, run_script, write_script

pytestmark = pytest.mark.slow


class Script(NamedTuple):
    """A script, and what the line at its top says of it."""

    name: str
    pairs: list[tuple[str, str]]
    flavours: list[str]
    rtol: float
    plain: str
    virtual_replicas: int | None
    killed_at: dict[str, int]
    has_libraries: bool


class Check(NamedTuple):
    """A script somewhere."""

    script: Script
    workers: str
    keras: str

    def __str__(self) -> str:
        return f"{self.script.name}-{self.workers}-keras{self.keras}"

    @property
    def cluster(self) -> Cluster:
        if self.workers == "mirrored":
            return Cluster(strategy="mirrored", devices=2, keras=self.keras)
        return Cluster(strategy="multi_worker_mirrored", workers=int(self.workers), keras=self.keras)


def scripts() -> Iterator[Script]:
    for path in sorted(PLAIN.glob("*.py")):
        if found := re.search("^# check: (.*)$", path.read_text(), re.MULTILINE):
            given = {"rtol": "1e-5", "plain": "yes", "libraries": "no", "virtual_replicas": "0", "kill": "12"}
            given |= dict(one.split("=") for one in found[1].split())
            workers, flavours = given["workers"].split(","), given["keras"].split(",")
            pairs = zip(itertools.cycle(workers), itertools.cycle(flavours), strict=False)
            yield Script(
                name=path.stem,
                pairs=[*itertools.islice(pairs, max(len(workers), len(flavours)))],
                flavours=sorted(set(flavours)),
                rtol=float(given["rtol"]),
                plain=given["plain"],
                virtual_replicas=int(given["virtual_replicas"]) or None,
                killed_at={
                    "lines" if "lines" in given["kill"] else "steps": int(given["kill"].removesuffix("lines"))
                },
                has_libraries=given["libraries"] == "yes",
            )


SCRIPTS = [one for one in scripts() if not one.has_libraries]
WITH_LIBRARIES = [Check(one, *pair) for one in scripts() if one.has_libraries for pair in one.pairs]
OTHER_PAIR = pytest.mark.exhaustive(covered_by="the first pair of its line, and those of the other scripts")
CHECKS = [
    pytest.param(
        check := Check(script, *pair), id=str(check), marks=() if pair == script.pairs[0] else OTHER_PAIR
    )
    for script in SCRIPTS
    for pair in dict.fromkeys([*script.pairs, *itertools.product("123", script.flavours)])
]


@functools.cache
def of_plain_python(script: str, keras: str, folder: Path) -> tuple[str, Path]:
    """Runs a script in plain Python; returns what it printed, and its working folder."""
    place = copied(folder / f"{script}-{keras}")
    with pytest.MonkeyPatch.context() as changes:
        changes.setenv("TMPDIR", str(place.with_name(f"{place.name}-tmp")))
        place.with_name(f"{place.name}-tmp").mkdir()
        [printed] = run_bare(place / f"{script}.py", workers=0, keras=keras)
    return printed, place


def copied(place: Path) -> Path:
    return Path(shutil.copytree(PLAIN, place, ignore=shutil.ignore_patterns("__pycache__")))


@pytest.fixture(scope="module")
def bare_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plain")


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("check", CHECKS)
def test_workers_print_and_leave_what_plain_python_does(
    check: Check, bare_folder: Path, tmp_path: Path
) -> None:
    compare(check, bare_folder, tmp_path)


def compare(check: Check, bare_folder: Path, tmp_path: Path) -> None:
    tasks = run(check, tmp_path)
    for task in tasks[1:]:
        same_lines(lines_of(task.printed), lines_of(tasks[0].printed), rtol=0)
    if check.script.plain == "yes" or (check.script.plain, check.workers) == ("one", "1"):
        same_as_plain(check, tasks[0].printed, tasks[0].folder / "code", bare_folder)


def same_as_plain(check: Check, printed: str, left: Path, bare_folder: Path) -> None:
    """Compares what a worker has printed, and what it has left in a folder, with plain Python."""
    expected, place = of_plain_python(check.script.name, check.keras, bare_folder)
    same_lines(lines_of(printed), lines_of(expected), rtol=check.script.rtol)
    same_files(left, place, rtol=check.script.rtol)


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(
            check := Check(script, workers, keras),
            id=str(check),
            marks=() if (workers, keras) == ("2", script.pairs[0][1]) else OTHER_PAIR,
        )
        for script in SCRIPTS
        if script.virtual_replicas is not None
        for workers, keras in itertools.product("24", script.flavours)
    ],
)
def test_virtual_replicas_give_several_workers_the_bits_of_one(check: Check, tmp_path: Path) -> None:
    options = {"virtual_replicas": check.script.virtual_replicas}
    [alone] = run(check._replace(workers="1"), tmp_path / "alone", options)
    for task in run(check, tmp_path / "several", options):
        same_lines(lines_of(task.printed), lines_of(alone.printed), rtol=0)
        same_files(task.folder / "code", alone.folder / "code", rtol=0)


KILLED = ("saving_and_loading", "train_on_batch", "unseeded")
OTHER_KILL = pytest.mark.exhaustive(covered_by="a kill of three other scripts; tests/e2e/test_scripts.py")


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(
            # Of the same Keras as above, whose plain Python is run then.
            check := Check(script, "2", script.pairs[0][1]),
            id=str(check),
            marks=() if script.name in KILLED else OTHER_KILL,
        )
        for script in SCRIPTS
    ],
)
def test_script_of_a_killed_worker_prints_and_leaves_what_plain_python_does(
    check: Check, bare_folder: Path, tmp_path: Path
) -> None:
    """In its second attempt, and with what is kept of the working folders of both."""
    script = copied(tmp_path / "source") / f"{check.script.name}.py"
    killed_at = check.script.killed_at
    tasks = run_killed_script(script, check.cluster, tmp_path, killed_at=killed_at, environ=QUIET)
    for task in tasks:
        assert task.values["failure"] is None, task.values["traceback"]
    for task in tasks[1:]:
        same_lines(lines_of(task.printed), lines_of(tasks[0].printed), rtol=0)
    kept = tmp_path / "storage" / RunLayout(run="test").working_files
    if check.script.plain == "yes":
        same_as_plain(check, tasks[0].printed, kept, bare_folder)
        return
    [undisturbed, _] = run(check, tmp_path / "undisturbed")
    same_lines(lines_of(tasks[0].printed), lines_of(undisturbed.printed), rtol=0)
    same_files(kept, undisturbed.folder / "code", rtol=0)


def run(check: Check, folder: Path, options: Mapping[str, Any] | None = None) -> list[TaskProcess]:
    script = copied(folder / "source") / f"{check.script.name}.py"
    (folder / "tasks").mkdir()
    tasks = run_script(script, check.cluster, kept_in=folder / "tasks", environ=QUIET, job_options=options)
    for task in tasks:
        assert task.values["failure"] is None, task.values["traceback"]
    return tasks


ROWS = """
import numpy as np
import tensorflow as tf
from tensorflow import keras

class Counted(keras.layers.Layer):
    def call(self, x):
        tf.print("rows", tf.shape(x)[0])
        return x

model = keras.Sequential([keras.Input((4,)), Counted(), keras.layers.Dense(1)])
model.compile("sgd", "mse", jit_compile=False)
print("trains")
model.fit(np.zeros((90, 4)), np.zeros(90), batch_size=30, epochs=2, verbose=0)
"""


@pytest.mark.exhaustive("3-keraslegacy", covered_by="the same with 2 workers")
@pytest.mark.parametrize(
    "cluster",
    [
        Cluster(strategy="multi_worker_mirrored", workers=2),
        Cluster(strategy="multi_worker_mirrored", workers=3, keras="legacy"),
        Cluster(strategy="mirrored", devices=2, keras="legacy"),
    ],
    ids=str,
)
def test_each_worker_computes_its_share_of_each_batch(cluster: Cluster, tmp_path: Path) -> None:
    num_replicas = cluster.devices or cluster.workers
    for task in run_script(write_script(tmp_path, ROWS), cluster):
        rows = re.findall(r"^rows (\d+)$", task.printed.partition("trains")[2], re.MULTILINE)
        assert rows == [str(30 // num_replicas)] * 6 * (cluster.devices or 1)
