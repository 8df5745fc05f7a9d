"""ServedModel: a run's exported SavedModel, called as TF Serving calls it."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raydist.errors import MistakeError, StorageError, UnsupportedError
from raydist.inference.signature import PREDICTION, SERVING, ModelInput, Signature, read_signature
from raydist.outcome.status import RunState
from raydist.storage.limits import max_bytes
from raydist.storage.run_record import read_record
from raydist.storage.run_storage import RunStorage

# What TensorFlow writes about the graph, and the checksums of all variables.
_IDENTITY = ("fingerprint.pb", "variables/variables.index")


class ServedModel:
    """A SavedModel in this process.

    Attributes:
      inputs: In the order of their names.
      structure: What the model itself takes, in which the inputs are by their names: a tensor, a list or a
        dict of them.
    """

    def __init__(self, folder: Path) -> None:
        """Loads a SavedModel.

        Raises:
          UnsupportedError: It has no signature for serving, or one of its inputs is not a dense tensor.
        """
        import tensorflow as tf

        for gpu in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(gpu, True)  # several workers may share it
        # Kept, because the signature refers to the variables weakly.
        self._loaded = tf.saved_model.load(str(folder))
        if SERVING not in self._loaded.signatures:
            raise UnsupportedError(
                f"the exported model has no signature {SERVING}; train and export it again"
            )
        self._call = self._loaded.signatures[SERVING]
        specs = self._call.structured_input_signature[1]
        if strange := [name for name, spec in specs.items() if not isinstance(spec, tf.TensorSpec)]:
            raise UnsupportedError(f"input {strange[0]} of the exported model is not a dense tensor")
        self.inputs = tuple(
            ModelInput(
                name=name,
                shape=tuple(specs[name].shape[1:]),
                dtype=np.dtype(
                    object if specs[name].dtype == tf.string else specs[name].dtype.as_numpy_dtype
                ),
            )
            for name in sorted(specs)
        )

    @property
    def structure(self) -> Any:
        [function] = self._loaded.serve.concrete_functions
        [inputs], _ = function.structured_input_signature
        return inputs

    def predict(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the outputs for a batch of `[n, ...]` by input: `prediction`, or one for each name."""
        import tensorflow as tf

        outputs = self._call(**{name: tf.constant(value) for name, value in values.items()})
        arrays = {name: outputs[name].numpy() for name in in_order(outputs)}
        return {PREDICTION: next(iter(arrays.values()))} if len(arrays) == 1 else arrays


def in_order(names: Iterable[str]) -> list[str]:
    """Returns the names of outputs, `output_2` before `output_10`."""
    return sorted(names, key=lambda name: (len(name), name))


def load_model(run: RunStorage) -> ServedModel:
    """Loads a run's exported model, from a copy on this host where storage is not a file system."""
    folder = run.local_path(run.exported_saved_model)
    if folder is not None:
        return ServedModel(folder)
    with tempfile.TemporaryDirectory(prefix="raydist-model-") as name:
        run.download_folder(run.exported_saved_model, Path(name))
        return ServedModel(Path(name))


def _why_none(run: RunStorage) -> str:
    how = "ctx.fit exports it at its end, unless --no-export is given"
    try:
        state = read_record(run).state
    except StorageError:  # run.json is damaged, which matters little here
        return how
    if not state.is_terminal:
        return f"{how}, and the run is still {state.value}"
    return how if state is RunState.SUCCEEDED else f"{how}; the run is {state.value}: {run.command('resume')}"


def identity(run: RunStorage) -> str:
    """Returns a digest that differs where the exported graph or weights do.

    Raises MistakeError where the run has no exported model.
    """
    if not run.exists(f"{run.exported_saved_model}/saved_model.pb"):
        raise MistakeError(f"run {run.run} has no exported model; {_why_none(run)}")
    digest = hashlib.sha256()
    for name in _IDENTITY:
        key = f"{run.exported_saved_model}/{name}"
        digest.update(run.read_bytes(key) if run.exists(key) else b"")  # a model may have no variables
    return digest.hexdigest()[:32]


def signature_of(run: RunStorage) -> Signature | None:
    """Returns what a run's exported model takes and returns; None where only TensorFlow can tell."""
    key = f"{run.exported_saved_model}/saved_model.pb"
    # A large one holds arrays of the user's, up to 2 GB.
    return read_signature(run.read_bytes(key)) if run.size(key) <= max_bytes(key) else None


def as_column(values: np.ndarray) -> pa.Array:
    """Returns `[n]` or `[n, 1]` as a column of scalars, and `[n, ...]` as one of lists of fixed lengths."""
    if values.dtype.kind == "V" or values.dtype.name == "bfloat16":  # which Arrow lacks
        values = values.astype(np.float32)
    sizes = values.shape[1:] if values.shape[1:] != (1,) else ()
    column = pa.array(values.reshape(-1))
    for size in reversed(sizes):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return column
