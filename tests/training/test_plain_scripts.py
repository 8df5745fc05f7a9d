"""Scripts that say nothing of tf.distribute: on several workers they print and leave what plain Python does.

Each file of tests/scripts/plain says, in one of its first lines, how it is compared:

    # check: workers=2,3,mirrored keras=3,legacy rtol=1e-4 plain=no

The values of `workers` and `keras` go by pairs, the shorter list over again; `mirrored` is one worker of two
devices. `rtol` is 1e-5 where it is left out. With `plain=no` only the workers are compared with each other,
as chance, or sums in another order, make it another training than that of plain Python. With
`virtual_replicas=K` they have the bits of one worker. With `libraries=yes` it is run by tests/libraries.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest

from tests.support.event_files import make_ndarray
from tests.support.processes import Cluster, TaskProcess
from tests.support.scripts import FOLDER, run_bare, run_script, write_script

pytestmark = pytest.mark.slow

PLAIN = FOLDER / "plain"
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"}


class Check(NamedTuple):
    """One run of a script, as the line at its top says."""

    script: str
    workers: str
    keras: str
    rtol: float
    is_as_plain: bool
    virtual_replicas: int | None

    def __str__(self) -> str:
        return f"{self.script}-{self.workers}-keras{self.keras}"

    @property
    def cluster(self) -> Cluster:
        if self.workers == "mirrored":
            return Cluster(strategy="mirrored", devices=2, keras=self.keras)
        return Cluster(strategy="multi_worker_mirrored", workers=int(self.workers), keras=self.keras)


def checks(*, libraries: str = "no") -> Iterator[Check]:
    for path in sorted(PLAIN.glob("*.py")):
        if found := re.search("^# check: (.*)$", path.read_text(), re.MULTILINE):
            settings = dict(one.split("=") for one in found[1].split())
            given = {"rtol": "1e-5", "plain": "yes", "libraries": "no", **settings}
            virtual = given.get("virtual_replicas")
            others = (float(given["rtol"]), given["plain"] == "yes", virtual and int(virtual))
            if given["libraries"] != libraries:
                continue
            workers, flavours = given["workers"].split(","), given["keras"].split(",")
            pairs = zip(itertools.cycle(workers), itertools.cycle(flavours), strict=False)
            for pair in itertools.islice(pairs, max(len(workers), len(flavours))):
                yield Check(path.stem, *pair, *others)


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


@pytest.mark.parametrize("check", [*checks()], ids=str)
def test_workers_print_and_leave_what_plain_python_does(
    check: Check, bare_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    compare(check, bare_folder, tmp_path)


def compare(check: Check, bare_folder: Path, tmp_path: Path) -> None:
    tasks = run(check, tmp_path)
    for task in tasks[1:]:
        same_lines(lines_of(task.printed), lines_of(tasks[0].printed), rtol=0)
    if check.virtual_replicas is not None:
        [alone] = run(check._replace(workers="1"), tmp_path / "alone")
        same_lines(lines_of(tasks[0].printed), lines_of(alone.printed), rtol=0)
        same_files(tasks[0].folder / "code", alone.folder / "code", rtol=0)
    if check.is_as_plain:
        printed, place = of_plain_python(check.script, check.keras, bare_folder)
        same_lines(lines_of(tasks[0].printed), lines_of(printed), rtol=check.rtol)
        same_files(tasks[0].folder / "code", place, rtol=check.rtol)


def run(check: Check, folder: Path) -> list[TaskProcess]:
    script = copied(folder / "source") / f"{check.script}.py"
    (folder / "tasks").mkdir()
    options = {} if check.virtual_replicas is None else {"virtual_replicas": check.virtual_replicas}
    tasks = run_script(script, check.cluster, kept_in=folder / "tasks", environ=QUIET, job_options=options)
    for task in tasks:
        assert task.values["failure"] is None, task.values["traceback"]
    return tasks


# What differs from run to run, in lines and in names of files.
_TIMES = re.compile(
    r"\b\d+(\.\d+)?(it/s|s/it)"
    r"|\b\d+(\.\d+)?([mµun]?s|min)(/(step|epoch))?(?!\w)|\b\d+:\d\d\b|\d{8}-\d{6}|(?<![\w.])\d{14,}\b"
)
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf)(?!\w)")
# Logs, raydist's notes, and bars that a log has cut: no part of what a script says.
_LOG = re.compile(
    r"^(\d{4}-\d\d-\d\d |[WIE]\d{4} |INFO(:| tensorflow:)|raydist: |To enable )"
    r"|WARNING:|Warning: |ETA: |{{node "
)

_BAR, _MESSAGE = re.compile(r"\d+/\d+ "), re.compile(r"Epoch \d+: ")
_TQDM = re.compile(r"(.*?)\d+%\|")


def lines_of(printed: str) -> list[str]:
    """Returns the lines as a terminal shows them in the end, without the blanks that align columns."""
    found = [re.split(r"\r|\x08+", line.rstrip())[-1] for line in printed.split("\n")]
    pairs = zip(found, ["", *found], strict=False)  # a warning of Python's has a line of source below it
    said = [one for one, before in pairs if not (one.startswith("  ") and "Warning: " in before)]
    kept = [re.sub(r"\x1b\[\d*m", "", one) for one in said if not _LOG.search(one)]
    shown = [
        re.sub(r" ?([][]) ?", r"\1", " ".join(_TIMES.sub("TIME", one).split())) for one in kept if one.strip()
    ]
    # A bar that a callback's message cuts shows what it had by then, and is shown once more.
    pairs = zip(shown, [*shown[1:], ""], strict=True)
    kept = [(one, after) for one, after in pairs if not (_BAR.match(one) and _MESSAGE.match(after))]
    return [one for one, after in kept if not _is_drawn_again(one, after)]


def _is_drawn_again(line: str, after: str) -> bool:
    """Whether both are a bar of tqdm, which draws it as often as time allows."""
    bar, next_bar = _TQDM.match(line), _TQDM.match(after)
    return bar is not None and next_bar is not None and bar[1] == next_bar[1]


def same_lines(found: list[str], expected: list[str], *, rtol: float) -> None:
    for line, other in itertools.zip_longest(found, expected, fillvalue="(no line)"):
        assert _NUMBER.sub("#", line) == _NUMBER.sub("#", other), (line, other)
        numbers, others = ([float(one) for one in _NUMBER.findall(text)] for text in (line, other))
        # What is printed is rounded: a unit of its last digit may differ. A sum has the noise of its terms.
        scale = min(1.0, max(map(abs, others), default=0.0))
        for number, expects, text in zip(numbers, others, _NUMBER.findall(other), strict=True):
            noise = rtol * scale + 1.01 * _unit(text) if rtol else 0
            assert number == pytest.approx(expects, rel=rtol, abs=noise, nan_ok=True), (line, other)


def _unit(number: str) -> float:
    digits, _, exponent = number.lower().partition("e")
    decimals = digits.partition(".")[2]
    return 10.0 ** (int(exponent or 0) - len(decimals)) if decimals else 0.0


def same_files(found: Path, expected: Path, *, rtol: float) -> None:
    files, others = files_of(found), files_of(expected)
    assert sorted(files) == sorted(others)
    for name, path in others.items():
        same_values(contents(files[name]), contents(path), rtol=rtol, where=name)


def files_of(folder: Path) -> dict[str, Path]:
    """Returns what a script has left, by names without what differs from run to run."""
    sources = {one.relative_to(PLAIN) for one in PLAIN.rglob("*")}
    left = [one for one in sorted(folder.rglob("*")) if one.relative_to(folder) not in sources]
    names = {one: one.relative_to(folder).as_posix() for one in left if one.is_file()}
    return {
        re.sub(r"events\.out\.tfevents\..*", "events", _TIMES.sub("TIME", name)): path
        for path, name in names.items()
        if "__pycache__" not in name and ".data-0000" not in name
    }


class Lines(list[str]):
    """The lines of a file."""


def contents(path: Path) -> Any:
    """Returns what a file holds, as values that can be compared."""
    match path.suffix:
        case ".csv" | ".tsv" | ".txt" | ".log" | ".jsonl":
            return Lines(lines_of(path.read_text()))
        case ".json":
            return of_json(path.read_text())
        case ".npy":
            return np.load(path)
        case ".npz":
            return dict(np.load(path))
        case ".h5" | ".hdf5":
            return weights_of(path)
        case ".keras":
            with zipfile.ZipFile(path) as archive:
                config = of_json(archive.read("config.json"))
                with archive.open("model.weights.h5") as weights:
                    return {"config": config, **weights_of(weights)}
        case ".index" if "variables" not in path.parts:  # a checkpoint
            import tensorflow as tf

            reader = tf.train.load_checkpoint(str(path).removesuffix(".index"))
            names = (one for one in reader.get_variable_to_dtype_map() if "GRAPH" not in one)
            return {name: reader.get_tensor(name) for name in names}
        case _ if ".tfevents." in path.name:
            from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

            events = EventAccumulator(str(path), size_guidance={"tensors": 0}).Reload()
            tags = [one for one in events.Tags()["tensors"] if one.startswith(("epoch_", "evaluation_"))]
            return {
                tag: [(one.step, make_ndarray(one.tensor_proto)) for one in events.Tensors(tag)]
                for tag in tags
            }
        case "" if path.name == "checkpoint":  # TensorFlow's list of them, with times
            return re.findall("_path.*", path.read_text())
        case ".pdf":
            return re.sub(rb"/CreationDate \([^)]*\)", b"", path.read_bytes())
        case ".pb" | ".index" | ".gz" | ".zip":
            return None  # of which the script tells, by calling the model
        case _:
            return path.read_bytes()


def of_json(text: str | bytes) -> Any:
    """Parses JSON; of a model's config without its objects' addresses."""
    return json.loads(text, object_hook=lambda found: {**found, "shared_object_id": None})


def weights_of(file: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with h5py.File(file) as opened:
        opened.visititems(
            # tf_keras names the optimizer's by the graph that made them.
            lambda name, one: (
                found.update({name.replace("/while/", "/"): one[()]})
                if isinstance(one, h5py.Dataset)
                else None
            )
        )
    return found


def same_values(found: Any, expected: Any, *, rtol: float, where: str) -> None:
    match expected:
        case dict():
            assert sorted(found) == sorted(expected), where
            for key in expected:
                same_values(found[key], expected[key], rtol=rtol, where=f"{where}/{key}")
        case Lines():
            same_lines(found, expected, rtol=rtol)
        case list() | tuple():
            assert len(found) == len(expected), where
            for index, (one, other) in enumerate(zip(found, expected, strict=True)):
                same_values(one, other, rtol=rtol, where=f"{where}/{index}")
        case bool() | str() | bytes() | None:
            assert found == expected, where
        case _ if np.asarray(expected).dtype.kind not in "fiu":
            assert np.array_equal(found, expected), where
        case _:
            scale = np.abs(expected).max() if np.size(expected) else 0
            np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol * scale, err_msg=where)


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
