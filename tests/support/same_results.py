"""Compares what scripts have printed and left, as values, without what differs from run to run."""

from __future__ import annotations

import itertools
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from tests.support.event_files import make_ndarray
from tests.support.scripts import PLAIN

# What differs from run to run, in lines and in names of files.
_TIMES = re.compile(
    r"\b\d+(\.\d+)?(it/s|s/it|([mµun]?s|min)(/(step|epoch))?)(?!\w)|\b\d+:\d\d\b|\d{8}-\d{6}|(?<![\w.])\d{14,}\b"
)
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf)(?!\w)")
# Logs, raydist's notes, and bars that a log has cut: no part of what a script says.
_OF_ABSEIL = re.compile(r"[WIE]\d{4} \d\d:\d\d:[\d.]+ +\d+ \w+\.\w+:\d+\] .*\n(\s*\[\[{{node .*\n)?")
_LOG = re.compile(
    r"^(\d{4}-\d\d-\d\d |INFO(:| tensorflow:)|raydist: |To enable )|WARNING:|Warning: |ETA: |{{node "
)

_BAR, _MESSAGE = re.compile(r"\d+/\d+ "), re.compile(r"Epoch \d+: ")
_TQDM = re.compile(r"(.*?)\d+%\|")


def lines_of(printed: str) -> list[str]:
    """Returns the lines as a terminal shows them in the end, without the blanks that align columns."""
    found = [re.split(r"\r|\x08+", line.rstrip())[-1] for line in _OF_ABSEIL.sub("", printed).split("\n")]
    kept = [re.sub(r"\x1b\[\d*m", "", one) for one in found if not _LOG.search(one)]
    shown = [
        re.sub(r" ?([][]) ?", r"\1", " ".join(_TIMES.sub("TIME", one).split())) for one in kept if one.strip()
    ]
    # A bar that a callback's message cuts shows what it had by then, and is shown once more.
    pairs = zip(shown, [*shown[1:], ""], strict=True)
    last = [(one, after) for one, after in pairs if not (_BAR.match(one) and _MESSAGE.match(after))]
    return [one for one, after in last if not _is_drawn_again(one, after)]


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
    found: dict[str, Path] = {}
    for path, name in names.items():
        if "__pycache__" not in name and ".data-0000" not in name:
            name = re.sub(r"events\.out\.tfevents\..*", "events", _TIMES.sub("TIME", name))
            copies = (f"{name} ({number})" for number in itertools.count(2))
            found[next(one for one in (name, *itertools.islice(copies, 99)) if one not in found)] = path
    return found


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
        case ".png":
            import tensorflow as tf

            # A rounded value moves a line by a part of a pixel: 5 of 255 levels are within 1e-4 of that.
            return 100 + tf.io.decode_png(path.read_bytes()).numpy() / 255
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
        case ".pb" | ".index" | ".gz" | ".zip":
            return None  # of which the script tells, by calling the model
        case _:
            return re.sub(rb"/CreationDate \(.*?\)", b"", path.read_bytes())  # of a PDF


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
