"""Exports a run's model in other formats, each checked in a process of its own before it is stored."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raydist.errors import StorageError, UnsupportedError
from raydist.inference import formats as converting
from raydist.inference.formats import NAMES, NEEDS, SAVED_MODEL
from raydist.inference.served_model import identity
from raydist.spec.job import KerasFlavour
from raydist.storage.failures import storage_errors
from raydist.storage.filesystem import Storage
from raydist.storage.run_record import read_record
from raydist.storage.run_storage import RunStorage


def export(
    run: RunStorage, formats: Sequence[str], out: Storage, *, is_trusted: bool = False
) -> list[dict[str, Any]]:
    """Writes the formats into a folder; returns format, URI and largest difference of outputs of each.

    The SavedModel is in a folder of the next number, where TensorFlow Serving finds it.

    Raises:
      MistakeError: The run has no exported model.
      UnsupportedError: A package is missing, and nothing is written; or a format cannot be written, which the
        others are.
    """
    check_packages(formats)
    identity(run)
    library = "tf_keras" if read_record(run).keras == KerasFlavour.LEGACY.value else "keras"
    with tempfile.TemporaryDirectory(prefix="raydist-export-") as name:
        folder = Path(name)
        run.download_folder(run.export, folder / "run")
        made = folder / "made"
        made.mkdir()
        told = _converted(folder, formats, made, library=library, is_trusted=is_trusted)
        rows = []
        for one in formats:
            if "error" not in told[one]:
                uri = _store_saved_model(made, out) if one == SAVED_MODEL else _store(made, one, out)
                rows.append({"format": one, "uri": uri, "difference": told[one]["difference"]})
    if failed := [f"as {one}: {told[one]['error']}" for one in formats if "error" in told[one]]:
        written = f"; written: {', '.join(row['uri'] for row in rows)}" if rows else ""
        raise UnsupportedError(f"the model of run {run.run} cannot be exported {'; '.join(failed)}{written}")
    return rows


def check_packages(formats: Sequence[str]) -> None:
    """Raises UnsupportedError where a format needs packages that are not installed."""
    for one in formats:
        missing = [name for name in NEEDS.get(one, ()) if importlib.util.find_spec(name) is None]
        if missing:
            raise UnsupportedError(
                f"{one} needs {', '.join(missing)}, not installed here; run pip install 'raydist[{one}]'"
            )


def _converted(folder: Path, formats: Sequence[str], made: Path, **facts: Any) -> dict[str, Any]:
    run, result = folder / "run", folder / "result.json"
    asked = {
        "model": str(run / "model.keras"),
        "saved_model": str(run / "saved_model"),
        "formats": list(formats),
        "out": str(made),
        "result": str(result),
        **facts,
    }
    done = subprocess.run(
        [sys.executable, "-m", converting.__name__],
        input=json.dumps(asked),
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
    )
    if done.returncode or not result.exists():
        lines = done.stderr.strip().splitlines() or ["it said nothing"]
        ended = f"the exporter's process ended with {done.returncode}: {lines[-1]}"
        return {one: {"error": ended} for one in formats}
    return json.loads(result.read_text())


def _store(made: Path, name: str, out: Storage) -> str:
    out.upload(made / NAMES[name], NAMES[name], is_durable=True)
    return out.uri(NAMES[name])


def _store_saved_model(made: Path, out: Storage) -> str:
    source, place = made / NAMES[SAVED_MODEL], out.local_path()
    # A server that watches the folder loads what has a number at once.
    key = _next_number(out) if place is None else f".{uuid.uuid4().hex}.tmp"
    files = [path for path in source.rglob("*") if path.is_file()]
    try:
        for path in sorted(files, key=lambda path: path.name == "saved_model.pb"):  # which comes last
            out.upload(path, f"{key}/{path.relative_to(source).as_posix()}")
        return out.uri(key if place is None else _numbered(place, key, out))
    finally:
        if place is not None:
            out.delete(key)  # what a failure has left


def _next_number(out: Storage) -> str:
    numbers = [int(name) for name in out.list_names("") if name.isascii() and name.isdigit()]
    return str(max(numbers, default=0) + 1)


def _numbered(place: Path, key: str, out: Storage) -> str:
    """Gives a folder of `place` the next number, which another export may take at the same time."""
    while True:
        number = _next_number(out)
        try:
            with storage_errors("write", out.uri(number)):
                (place / key).rename(place / number)
            return number
        except StorageError:
            if not out.exists(number):
                raise
