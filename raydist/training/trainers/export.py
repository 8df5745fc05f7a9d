"""Writes the trained model to the run's export/: as .keras, and as a SavedModel for serving.

Both are made from a clean copy outside of every strategy, with the weights as whole arrays, because
what a strategy makes of variables (mirrored, on other hosts, in shards) loads nowhere else.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tensorflow as tf

from raydist.storage.run_storage import RunStorage
from raydist.training.checkpointing import variables
from raydist.training.checkpointing.checkpoints import TaskCheckpoints, non_finite_note
from raydist.training.keras_patches.adapters import adapter_of
from raydist.training.replicas import batch_slices
from raydist.training.reporting import reporter
from raydist.training.reporting.tf_messages import cause_of
from raydist.training.user_code import side_effects

logger = logging.getLogger(__name__)


def export(
    model: Any,
    storage: RunStorage,
    *,
    fit: int,
    element_spec: Any,
    checkpoints: TaskCheckpoints,
    is_chief: bool,
) -> None:
    """Exports the model, or with keep_best the best one of this `fit`. Every task calls it at its end.

    What keeps a model from being exported becomes a note: the training has succeeded, and its
    checkpoints are there. A model that its config cannot make again is exported as a SavedModel alone.

    Args:
      element_spec: The structure of a batch that it was trained on.
    """
    snapshot = variables.Snapshots().take(
        {"model": variables.variables_of("model", model)}, is_chief=is_chief
    )
    if snapshot is None:
        return
    try:
        files = checkpoints.best_files(fit=fit)
        if files is None:
            files = snapshot.files()
            if names := snapshot.non_finite():
                reporter.note(non_finite_note("the exported model", names))
        # In a thread of its own, because `fit` may have been called inside of the strategy's scope. A copy of
        # the model draws seeds, and the chief alone makes one.
        with (
            side_effects.undone(model),
            ThreadPoolExecutor(1, thread_name_prefix="raydist-export") as thread,
        ):
            written = thread.submit(_write, model, files, storage, _inputs_of(element_spec))
        uri = written.result()
    except Exception as error:  # the user's model and layers may raise anything
        reporter.note(
            f"the model is not exported: {cause_of(error)}; its checkpoints are whole. "
            "--no-export leaves it out"
        )
    else:
        logger.info("exported to %s", uri)


def _write(model: Any, files: dict[str, bytes], storage: RunStorage, inputs: Any) -> str:
    with tempfile.TemporaryDirectory(prefix="raydist-export-") as name:
        place = Path(name)
        # Keras prints a page about each export.
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                copy = _filled_copy(model, files, place / "assets", inputs)
                copy.save(place / "model.keras")
            except Exception as error:  # the user's model and layers may raise anything
                (place / "model.keras").unlink(missing_ok=True)
                _write_serving(model, files, place / "saved_model", _serving_inputs(model, inputs))
                reporter.note(
                    "the model is exported as a SavedModel alone, not as a .keras file: "
                    f"{cause_of(error)}; a get_config() that its class can be made from would give it one"
                )
            else:
                if adapter_of(copy).knows_inputs(copy) and _takes_any_batch(copy):
                    copy.export(str(place / "saved_model"))
                else:  # Keras would take all inputs for floats, or batches of one size only
                    _write_serving(copy, files, place / "saved_model", _serving_inputs(copy, inputs))
        return _replace(storage, place / "model.keras", place / "saved_model")


def _replace(storage: RunStorage, model: Path, saved_model: Path) -> str:
    """Stores a SavedModel's folder, and a .keras file if there is one, in place of the run's export/.

    Returns the URI.
    """
    storage.delete(storage.export)
    storage.upload_folder(saved_model, storage.exported_saved_model)
    if model.exists():
        storage.upload(model, storage.exported_model)
    return storage.uri(storage.export)


def _filled_copy(model: Any, files: dict[str, bytes], assets: Path, inputs: Any) -> Any:
    copy = _clean_copy(model, assets, inputs)
    num_saved = variables.count_in(files, "model")
    if len(copy.variables) != num_saved:
        raise ValueError(
            f"a copy made from its config has {len(copy.variables)} variables, it has {num_saved}; "
            "put those it was given from outside into layers of its own"
        )
    variables.write({"model": variables.variables_of("model", copy)}, files, checkpoint="of the export")
    return copy


def _clean_copy(model: Any, assets: Path, inputs: Any) -> Any:
    """Returns a model of the same layers with plain variables."""
    adapter = adapter_of(model)
    copy = _unbuilt_copy(model)
    if not adapter.knows_inputs(copy):
        try:
            copy(batch_slices.zeros_of(inputs))  # as the batches have built the model
        except Exception:  # the layers may raise anything
            # In a graph sizes that differ from batch to batch are not known: the length of lists, as of a
            # column of Ray Data, is then what the model makes of it.
            copy = _unbuilt_copy(model)
            with tf.__internal__.FuncGraph("build_graph").as_default():
                copy(batch_slices.zeros_of(inputs))
    elif not copy.built:
        copy.build_from_config(model.get_build_config())
    for number, (old, new) in enumerate(zip(model._flatten_layers(), copy._flatten_layers(), strict=True)):
        # Vocabularies and the like, which are not variables.
        if old is not model and hasattr(old, "save_assets"):
            place = assets / str(number)
            place.mkdir(parents=True)
            old.save_assets(place)
            new.load_assets(place)
    return copy


def _unbuilt_copy(model: Any) -> Any:
    try:
        return adapter_of(model).library.models.clone_model(model)
    except ValueError:  # a subclass of Model, which only its own config can make
        return type(model).from_config(model.get_config())


def _write_serving(model: Any, files: dict[str, bytes], folder: Path, inputs: Any) -> None:
    """Writes a SavedModel of the model itself, with plain variables in place of its own."""
    with adapter_of(model).serving(model) as (serve, values, beside):
        variables.write({"model": values}, files, checkpoint="of the export")
        _save(serve, [*values, *beside], _tables_of(model), folder, inputs)


def _serving_inputs(model: Any, inputs: Any) -> Any:
    """Returns the types of a model's inputs, each with the name that it has for serving.

    A model that knows its inputs gives names, types and structure; else the batches do, by the keys of their
    dicts.
    """
    adapter = adapter_of(model)
    if adapter.knows_inputs(model):
        inputs = model.inputs[0] if isinstance(model, adapter.library.Sequential) else model.input
        names = [one.name for one in tf.nest.flatten(inputs)]
    else:
        names = _names(inputs, "" if isinstance(inputs, Mapping) else "inputs")
    specs: dict[str, tf.TensorSpec] = {}
    for name, one in zip(names, tf.nest.flatten(inputs), strict=True):
        # TensorFlow allows no others in a signature, and each once.
        name = re.sub(r"[^A-Za-z0-9_.]", "_", name).lstrip("_") or "inputs"
        name = name if name not in specs else f"{name}_{len(specs)}"
        specs[name] = tf.TensorSpec([None, *one.shape[1:]], one.dtype, name=name)
    return tf.nest.pack_sequence_as(inputs, [*specs.values()])


def _takes_any_batch(model: Any) -> bool:
    """Whether its inputs have no fixed number of examples; a tf_keras Sequential without an Input has one."""
    return all(one.shape[0] is None for one in model.inputs)


def _names(structure: Any, path: str) -> list[str]:
    """Returns a name for each part of a structure: the keys and places on the way to it."""
    if not tf.nest.is_nested(structure):
        return [path]
    keys = sorted(structure) if isinstance(structure, Mapping) else range(len(structure))
    parts = [structure[key] for key in keys]
    return [
        name
        for key, part in zip(keys, parts, strict=True)
        for name in _names(part, f"{path}_{key}" if path else str(key))
    ]


def _save(serve: Callable[[Any], Any], held: Sequence[Any], tables: Any, folder: Path, inputs: Any) -> None:
    def named(given: Any) -> dict[str, Any]:
        outputs = serve(given)
        if isinstance(outputs, Mapping):
            names = _names(outputs, "")
        else:
            names = [f"output_{number}" for number in range(len(tf.nest.flatten(outputs)))]
        return dict(zip(names, tf.nest.flatten(outputs), strict=True))

    module = tf.Module()
    module.held, module.tables = list(held), list(tables)
    module.serve = tf.function(serve, input_signature=[inputs])
    signature = tf.function(named, input_signature=[inputs]).get_concrete_function()
    tf.saved_model.save(module, str(folder), signatures={"serving_default": signature, "serve": signature})


def _tables_of(model: Any) -> list[Any]:
    """Returns the lookup tables of a model's layers, which are not variables."""
    tables = (getattr(layer, "lookup_table", None) for layer in model._flatten_layers())
    return [table for table in tables if table is not None]


def _inputs_of(element_spec: Any) -> Any:
    """Returns the types of a model's inputs in any number of examples, from those of a batch."""
    inputs = element_spec[0] if isinstance(element_spec, tuple) else element_spec
    return tf.nest.map_structure(lambda spec: tf.TensorSpec([None, *spec.shape[1:]], spec.dtype), inputs)
