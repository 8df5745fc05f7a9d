"""Writes the trained model to the run's export/: as .keras, and as a SavedModel for serving.

Both are made from a clean copy outside of every strategy, with the weights as whole arrays, because
what a strategy makes of variables (mirrored, on other hosts, in shards) loads nowhere else.
"""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from raydist.storage.run_storage import RunStorage
from raydist.training.checkpointing import variables
from raydist.training.checkpointing.checkpoints import TaskCheckpoints
from raydist.training.keras_patches.adapters import adapter_of
from raydist.training.reporting.reporter import Reporter

logger = logging.getLogger(__name__)


class ExportFolder:
    """The run's export/ on storage."""

    def __init__(self, storage: RunStorage) -> None:
        self._storage = storage

    def replace(self, model: Path, saved_model: Path) -> str:
        """Stores a .keras file and a SavedModel's folder in place of what is there; returns the URI."""
        self._storage.delete(self._storage.export)
        for path in saved_model.rglob("*"):
            if path.is_file():
                name = path.relative_to(saved_model).as_posix()
                self._storage.upload(path, f"{self._storage.exported_saved_model}/{name}")
        self._storage.upload(model, self._storage.exported_model)
        return self._storage.uri(self._storage.export)


def export(
    model: Any,
    folder: ExportFolder,
    *,
    fit: int,
    checkpoints: TaskCheckpoints,
    is_chief: bool,
    reporter: Reporter,
) -> None:
    """Exports the model, or with keep_best the best one of this `fit`. Every task calls it at its end.

    What keeps a model from being exported becomes a note: the training has succeeded, and its
    checkpoints are there.
    """
    snapshot = variables.Snapshots().take(
        {"model": variables.variables_of("model", model)}, is_chief=is_chief
    )
    if snapshot is None:
        return
    try:
        files = checkpoints.best_files(fit=fit) or snapshot.files()
        # In a thread of its own, because `fit` may have been called inside of the strategy's scope.
        uri = _in_thread(lambda: _write(model, files, folder))
    except Exception as error:  # whatever the user's model and layers raise
        first_line = str(error).strip().partition("\n")[0]
        reporter.note(
            f"the model is not exported: {type(error).__name__}: {first_line}; its checkpoints are whole. "
            "--no-export leaves it out"
        )
    else:
        logger.info("exported to %s", uri)


def _write(model: Any, files: dict[str, bytes], folder: ExportFolder) -> str:
    with tempfile.TemporaryDirectory(prefix="raydist-export-") as name:
        place = Path(name)
        # Keras prints a page about each export.
        with contextlib.redirect_stdout(io.StringIO()):
            copy = _clean_copy(model, place / "assets")
            groups = {"model": variables.variables_of("model", copy)}
            num_saved = variables.count_in(files, "model")
            if len(copy.variables) != num_saved:
                raise ValueError(
                    f"a copy made from its config has {len(copy.variables)} variables, it has {num_saved}; "
                    "put those it was given from outside into layers of its own"
                )
            variables.write(groups, files, checkpoint="of the export")
            copy.save(place / "model.keras")
            copy.export(str(place / "saved_model"))
        return folder.replace(place / "model.keras", place / "saved_model")


def _clean_copy(model: Any, assets: Path) -> Any:
    """Returns a model of the same layers with plain variables."""
    library = adapter_of(model).library
    try:
        copy = library.models.clone_model(model)
    except ValueError:  # a subclass of Model, which only its own config can make
        copy = type(model).from_config(model.get_config())
    if not copy.built:
        copy.build_from_config(model.get_build_config())
    for number, (old, new) in enumerate(zip(model._flatten_layers(), copy._flatten_layers(), strict=True)):
        # Vocabularies and the like, which are no variables.
        if old is not model and hasattr(old, "save_assets"):
            place = assets / str(number)
            place.mkdir(parents=True)
            old.save_assets(place)
            new.load_assets(place)
    return copy


def _in_thread(function: Callable[[], str]) -> str:
    results: list[str] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(function())
        except Exception as error:  # a thread's border
            errors.append(error)

    thread = threading.Thread(target=run, name="raydist-export")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
