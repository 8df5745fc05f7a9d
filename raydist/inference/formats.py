"""The exported model of a run in other formats, by Keras's own exporters; a process of its own.

`python -m raydist.inference.formats` reads what to do as JSON from stdin and writes what was done to a file.
A converter that crashes ends this process and not the command.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import json
import shutil
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from raydist.errors import UnsupportedError
from raydist.inference.served_model import ServedModel, in_order
from raydist.spec.quantities import size_text
from raydist.spec.text import listed
from raydist.storage.limits import parse_json

KERAS, SAVED_MODEL, ONNX, LITERT = FORMATS = ("keras", "saved_model", "onnx", "litert")
# The names of what is written.
NAMES = {KERAS: "model.keras", SAVED_MODEL: "saved_model", ONNX: "model.onnx", LITERT: "model.tflite"}
# The modules that each needs besides TensorFlow; raydist has an extra of that name.
NEEDS: Mapping[str, tuple[str, ...]] = {ONNX: ("tf2onnx", "onnx", "onnxruntime")}
_ROWS = 4
# A model of thousands of layers has a few MB. One with a matrix among its arguments has it as text, which is
# packed to a third or more.
_MAX_CONFIG_BYTES = 32 * 2**20
_MAX_CONFIG_RATIO = 4
# Sizes that are tried for those that may differ between batches.
_FREE_SIZES = (32, 1, 128)
# Converters may order sums in another way, and compute in another precision than a layer asks for.
_TOLERANCE = 1e-4
_TOLERANCES = {"bfloat16": 10 * 2**-7, "float16": 10 * 2**-10}

Values = dict[str, np.ndarray]


# Keras's layers that call a function, or load a program, of whoever wrote the model.
_RUN_CODE = ("Lambda", "TFSMLayer", "TorchModuleWrapper", "JaxLayer", "FlaxLayer")
# What Keras writes into a model's config besides its own classes.
_PLAIN = ("dict", "list", "tuple", "set", "slice", "str", "bytes")


def convert(
    model_file: Path,
    saved_model: Path,
    formats: list[str],
    out: Path,
    *,
    library: str,
    is_trusted: bool = False,
) -> dict[str, Any]:
    """Writes the formats below `out`, calls each, and returns by format `difference`, or `error`.

    Args:
      saved_model: What the run exported; its signature tells the model's inputs.
      library: The Keras of the run: keras or tf_keras.
      is_trusted: Whether the model may have code of its own, which loading it runs.
    """
    served = ServedModel(saved_model)
    try:
        batch, expected = _called(served)
    except Exception as error:  # the layers may raise anything
        reason = f"it cannot be called with a batch to compare: {_told(error)}"
        return {name: {"error": reason} for name in formats}
    try:
        model, reason = _loaded(model_file, library, is_trusted), ""
        _outputs(model, served, batch)  # Keras exports as ONNX only what was called
    except Exception as error:  # the layers may raise anything
        model, reason = None, _told(error)
    done: dict[str, Any] = {}
    for name in formats:
        target = out / NAMES[name]
        try:
            if model is not None:
                _write(model, name, target, served.structure)
            elif name == SAVED_MODEL:  # as the run has exported it
                shutil.copytree(saved_model, target)
            else:
                done[name] = {"error": reason}
                continue
            if name == KERAS:
                found = _outputs(_loaded(target, library, is_trusted), served, batch)
            else:
                found = _CALLS[name](target, batch)
        except Exception as error:  # the exporter and the layers may raise anything
            done[name] = {"error": _told(error)}
            continue
        done[name] = compared(found, expected, tolerance=_tolerance(model))
    return done


def _tolerance(model: Any) -> float:
    """Returns the difference that the least precise layer of a model allows."""
    layers = () if model is None else model._flatten_layers()
    return max([_TOLERANCE, *(_TOLERANCES.get(str(one.compute_dtype), 0.0) for one in layers)])


def _loaded(model_file: Path, library: str, is_trusted: bool) -> Any:
    if not model_file.exists():
        raise UnsupportedError("the run has exported a SavedModel alone; a note of the run has the reason")
    if not is_trusted and (found := code_in(model_file)):
        raise UnsupportedError(
            f"its model.keras has code of its own, which loading it would run: {listed(found)}; add --trust "
            "if you trust who wrote it"
        )
    models = importlib.import_module(library).models
    return models.load_model(model_file, compile=False, safe_mode=not is_trusted)


def code_in(model_file: Path) -> list[str]:
    """Returns what a .keras file has besides Keras's own classes, without loading it.

    Keras imports the modules that the config names, and tf_keras calls any function of them.
    """
    with zipfile.ZipFile(model_file) as archive, archive.open("config.json") as file:
        packed = min(archive.getinfo("config.json").compress_size, model_file.stat().st_size)
        most = max(_MAX_CONFIG_BYTES, _MAX_CONFIG_RATIO * packed)
        content = file.read(most + 1)
    if len(content) > most:
        raise UnsupportedError(
            f"the config.json of its model.keras unpacks to more than {size_text(most)}, which is too much "
            "to look through for code of its own; add --trust if you trust who wrote it"
        )
    root = parse_json(content)
    if isinstance(root, dict):
        root.pop("compile_config", None)  # is not loaded; that of a model inside is
    ahead = [root]
    found: dict[str, None] = {}
    while ahead:
        node = ahead.pop()
        if isinstance(node, dict):
            module, name = node.get("module"), node.get("class_name")
            if name == "__lambda__":
                found["a lambda"] = None
            elif names := {str(name), str(node.get("registered_name")).rpartition(">")[2]}.intersection(
                _RUN_CODE
            ):
                found[f"a {min(names)}"] = None
            elif module is not None:
                named = str(node.get("config") if name == "function" else name)
                if not _is_of_keras(str(module), named, is_function=name == "function"):
                    found[f"{module}.{named}"] = None
            ahead += node.values()
        elif isinstance(node, list):
            ahead += node
    return sorted(found)


def _is_of_keras(module: str, name: str, *, is_function: bool) -> bool:
    if module == "builtins":  # where Keras looks for a function among its own ones, and tf_keras then here
        return not hasattr(builtins, name) if is_function else name in _PLAIN
    return module.partition(".")[0] in ("keras", "tf_keras") and not is_function


def _write(model: Any, name: str, target: Path, inputs: Any) -> None:
    is_keras2 = any(base.__module__.startswith("tf_keras.") for base in type(model).__mro__)
    if name == KERAS:
        model.save(target)
    elif is_keras2 and name == SAVED_MODEL:
        model.export(str(target))
    elif is_keras2:
        raise UnsupportedError("it is a model of Keras 2, whose exporter writes a SavedModel only")
    else:  # with the names and types that the run's own export has, which a subclassed model does not know
        model.export(
            str(target), format="tf_saved_model" if name == SAVED_MODEL else name, input_signature=[inputs]
        )


def _called(served: ServedModel) -> tuple[Values, list[np.ndarray]]:
    """Returns a batch that the model takes, and its outputs; raises what the model does with the last one."""
    *others, last = (_batch(served, size) for size in _FREE_SIZES)
    for batch in others:
        with contextlib.suppress(Exception):  # the layers may raise anything
            return batch, list(served.predict(batch).values())
    return last, list(served.predict(last).values())


def _batch(served: ServedModel, free_size: int) -> Values:
    """Returns a few examples that most models take: small numbers, and 0 and 1 for whole ones."""
    draw = np.random.default_rng(0)
    values = {}
    for one in served.inputs:
        shape = (_ROWS, *(size or free_size for size in one.shape))
        if one.dtype.kind == "O":
            values[one.name] = np.full(shape, b"a", object)
        elif one.dtype.kind == "f":
            values[one.name] = draw.uniform(-1, 1, shape).astype(one.dtype)
        else:
            values[one.name] = draw.integers(0, 2, shape).astype(one.dtype)
    return values


def compared(
    found: list[np.ndarray], expected: list[np.ndarray], *, tolerance: float = _TOLERANCE
) -> dict[str, Any]:
    """Returns `difference`, the largest between two lists of outputs, or `error` where they are not the same.

    Where both have NaN, or the same infinity, they do not differ. Texts have to be equal.
    """
    if [one.shape for one in found] != [one.shape for one in expected]:
        shapes = [[list(one.shape) for one in each] for each in (found, expected)]
        return {"error": f"its outputs have the shapes {shapes[0]}, and those of the run's model {shapes[1]}"}
    pairs = list(zip(found, expected, strict=True))
    texts = [pair for pair in pairs if pair[1].dtype.kind in "OSU"]
    if any(_as_bytes(one) != _as_bytes(other) for one, other in texts):
        return {"error": "its texts differ from those of the run's model"}
    numbers = [pair for pair in pairs if pair[1].dtype.kind not in "OSU"]
    difference = max([_difference(one, other) for one, other in numbers], default=0.0)
    scale = max([1.0, *(_largest(other) for _, other in numbers)])
    if not difference <= tolerance * scale:  # NaN, too
        return {"error": f"its outputs differ from those of the run's model by up to {difference:.3g}"}
    return {"difference": difference}


def _as_bytes(texts: np.ndarray) -> list[bytes]:
    return [one.encode() if isinstance(one, str) else bytes(one) for one in texts.reshape(-1).tolist()]


def _difference(one: np.ndarray, other: np.ndarray) -> float:
    """Returns the largest difference; NaN where one alone has NaN."""
    left, right = one.astype(np.float64), other.astype(np.float64)
    is_same = (left == right) | (np.isnan(left) & np.isnan(right))
    with np.errstate(invalid="ignore"):  # infinities of the same sign, which are the same
        differences = np.where(is_same, 0.0, np.abs(left - right))
    return float(np.max(differences, initial=0.0))


def _largest(values: np.ndarray) -> float:
    finite = np.abs(values[np.isfinite(values)].astype(np.float64))
    return float(np.max(finite, initial=0.0))


def _call_saved_model(path: Path, batch: Values) -> list[np.ndarray]:
    return list(ServedModel(path).predict(batch).values())


def _outputs(model: Any, served: ServedModel, batch: Values) -> list[np.ndarray]:
    import tensorflow as tf

    given = tf.nest.map_structure(lambda one: tf.constant(batch[one.name]), served.structure)
    outputs = model(given, training=False)
    if isinstance(outputs, dict):
        outputs = [outputs[name] for name in in_order(outputs)]
    return [np.asarray(one) for one in tf.nest.flatten(outputs)]


def _call_onnx(path: Path, batch: Values) -> list[np.ndarray]:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    given = {one.name: batch[one.name] for one in session.get_inputs()}
    outputs = dict(zip([one.name for one in session.get_outputs()], session.run(None, given), strict=True))
    # Numbered ones are in the model's own order.
    is_numbered = all(name.startswith("Identity") for name in outputs)
    return [np.asarray(outputs[name]) for name in (outputs if is_numbered else in_order(outputs))]


def _call_litert(path: Path, batch: Values) -> list[np.ndarray]:
    import tensorflow as tf

    runner = tf.lite.Interpreter(model_path=str(path)).get_signature_runner()
    outputs = runner(**batch)
    return [np.asarray(outputs[name]) for name in in_order(outputs)]


_CALLS: Mapping[str, Callable[[Path, Values], list[np.ndarray]]] = {
    SAVED_MODEL: _call_saved_model,
    ONNX: _call_onnx,
    LITERT: _call_litert,
}


def _told(error: Exception) -> str:
    """Returns the first line of an error that says something."""
    if isinstance(error, UnsupportedError):
        return str(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def main() -> None:
    """Does what the JSON on stdin says; see the module."""
    asked = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):  # Keras prints a page about each export
        done = convert(
            *(Path(asked["model"]), Path(asked["saved_model"]), asked["formats"], Path(asked["out"])),
            library=asked["library"],
            is_trusted=asked["is_trusted"],
        )
    Path(asked["result"]).write_text(json.dumps(done))


if __name__ == "__main__":
    main()
