"""export/: what is in it loads with plain TensorFlow and Keras, outside of every strategy."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.processes import Cluster, TaskProcess, run_function

# Two runs each, where others may use the machine too.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TARGET = "tests.support.checkpoint_functions:trained_for_export"
# A process that knows nothing of raydist.
LOAD = """
import sys, json, numpy as np
import tensorflow as tf
folder, package = sys.argv[1:]
keras = __import__(package)
model = keras.models.load_model(folder + "/model.keras")
loaded = tf.saved_model.load(folder + "/saved_model")
x = np.linspace(-1, 1, 24).reshape(4, 6).astype("float32")
seen = {"predicted": model(x).numpy(), "served": loaded.serve(x).numpy()}
np.savez(folder + "/seen.npz", *model.get_weights(), **seen)
"""


def exported(
    storage: Path,
    cluster: Cluster,
    arguments: dict[str, Any] | None = None,
    target: str = TARGET,
    **options: Any,
) -> list[TaskProcess]:
    given = {"storage": storage, "job_options": {"export": True, **options}, **(arguments or {})}
    return run_function(target, cluster, **given)


def load(storage: Path, *, keras: str, program: str = LOAD) -> dict[str, np.ndarray[Any, Any]]:
    folder = storage / "test/export"
    package = "tf_keras" if keras == "legacy" else "keras"
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "TF_USE_LEGACY_KERAS": str(int(keras == "legacy"))}
    command = [sys.executable, "-c", program, str(folder), package]
    subprocess.run(command, check=True, env=environ, timeout=200, cwd=storage)
    with np.load(io.BytesIO((folder / "seen.npz").read_bytes())) as seen:
        return dict(seen)


@pytest.mark.exhaustive("1+2", "keraslegacy", covered_by="the same with 2 workers")
@pytest.mark.parametrize(
    ("cluster", "options"),
    [
        (Cluster(strategy="multi_worker_mirrored", workers=2, keras="3"), {}),
        (Cluster(strategy="multi_worker_mirrored", workers=2, keras="legacy"), {}),
        (Cluster(strategy="parameter_server", workers=1, ps=2, keras="3"), {}),
        (
            Cluster(strategy="parameter_server", workers=1, ps=2, keras="legacy"),
            {"partitioner": "fixed_shards:2"},
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, Cluster) else "",
)
def test_export_has_the_final_weights(cluster: Cluster, options: dict[str, str], tmp_path: Path) -> None:
    [chief, *_] = exported(tmp_path, cluster, **options)
    assert [note for note in chief.values["notes"] if "export" in note] == []
    seen = load(tmp_path, keras=cluster.keras)
    np.testing.assert_allclose(seen["served"], seen["predicted"], atol=1e-6)
    if not options:  # shards are whole there
        weights = [one for name, one in sorted(chief.arrays.items()) if name.startswith("weight")]
        assert len(weights) == 8
        for number, weight in enumerate(weights):
            np.testing.assert_array_equal(seen[f"arr_{number}"], weight)


def test_best_model_of_the_last_fit_is_exported_with_keep_best(tmp_path: Path) -> None:
    options: dict[str, Any] = {"keep_best": "score:max", "keep": 1}  # falls with each epoch of both fits
    [task] = exported(tmp_path, Cluster(strategy="mirrored", devices=2), {"num_fits": 2}, **options)
    assert [note for note in task.values["notes"] if "export" in note] == []
    seen = load(tmp_path, keras="3")
    checkpoints = {path.name for path in (tmp_path / "test/checkpoints").iterdir()}
    # The best of each fit, the last of the first, which a resumed train function gets back, and the newest.
    assert checkpoints == {"step-6-a0", "step-18-a0", "step-24-a0", "step-36-a0"}
    best = tmp_path / "test/checkpoints/step-24-a0"
    index = json.loads((best / "variables.json").read_text())
    with np.load(best / "variables.npz") as arrays:
        weights = [arrays[entry["key"]] for entry in index if entry["key"].startswith("model/")]
    for number, weight in enumerate(weights):
        np.testing.assert_array_equal(seen[f"arr_{number}"], weight)


SUBCLASSED = """
import sys, json, numpy as np
import tensorflow as tf
folder, package = sys.argv[1:]
keras = __import__(package)
x = np.linspace(-1, 1, 24).reshape(4, 6).astype("float32")
loaded = tf.saved_model.load(folder + "/saved_model")
[by_name] = loaded.signatures["serving_default"](tf.constant(x)).values()
seen = {"served": loaded.serve(tf.constant(x)).numpy(), "by_name": by_name.numpy()}
if tf.io.gfile.exists(folder + "/model.keras"):
    class Configured(keras.Model):
        def __init__(self, middle):
            super().__init__()
            self.dense = keras.layers.Dense(8)
            self.layers_in_a_dict = {"middle": middle, "last": keras.layers.Dense(3)}
            self.normal = keras.layers.BatchNormalization()
            self.seen = keras.metrics.Mean(name="seen")
        def call(self, inputs, training=False):
            hidden = self.normal(self.dense(inputs), training=training)
            return self.layers_in_a_dict["last"](self.layers_in_a_dict["middle"](hidden))
        @classmethod
        def from_config(cls, config, custom_objects=None):
            return cls(keras.layers.Dense(config["units"]))
    model = keras.models.load_model(folder + "/model.keras", custom_objects={"Configured": Configured})
    seen["loaded"] = model(x).numpy()
np.savez(folder + "/seen.npz", **seen)
"""
WORKERS = Cluster(strategy="multi_worker_mirrored", workers=2)
LEGACY = Cluster(strategy="multi_worker_mirrored", workers=2, keras="legacy")


@pytest.mark.exhaustive("keraslegacy", "no config", covered_by="[multi_worker_mirrored-2-keras3-config]")
@pytest.mark.parametrize(
    ("cluster", "kind"),
    [
        (WORKERS, "config"),
        (WORKERS, "no config"),
        (LEGACY, "no config"),
        (LEGACY, "config"),
        (Cluster(strategy="mirrored", devices=2), "no config"),
    ],
    ids=str,
)
def test_subclassed_model_predicts_the_same_outside_of_the_strategy(
    cluster: Cluster, kind: str, tmp_path: Path
) -> None:
    chief, *_ = exported(tmp_path, cluster, {"kind": kind})
    notes = [note for note in chief.values["notes"] if "export" in note]
    seen = load(tmp_path, keras=cluster.keras, program=SUBCLASSED)
    assert np.abs(chief.arrays["predicted"]).max() > 0.1
    for name in ("served", "by_name", *(["loaded"] if kind == "config" else [])):
        np.testing.assert_allclose(seen[name], chief.arrays["predicted"], atol=1e-5)
    if kind == "config":
        assert notes == []
    else:
        [note] = notes
        assert note.startswith("the model is exported as a SavedModel alone, not as a .keras file: ")
        assert not (tmp_path / "test/export/model.keras").exists()


def test_best_subclassed_model_without_config_is_exported(tmp_path: Path) -> None:
    # Falls with each epoch, and among scores the highest is best.
    [chief] = exported(tmp_path, Cluster(), {"kind": "no config"}, keep_best="score:max")
    seen = load(tmp_path, keras="3", program=SUBCLASSED)
    assert np.abs(seen["served"] - chief.arrays["predicted"]).max() > 1e-3
    np.testing.assert_array_equal(seen["served"], seen["by_name"])


def test_model_that_cannot_be_traced_is_noted_with_the_cause(tmp_path: Path) -> None:
    [chief] = exported(tmp_path, Cluster(), {"kind": "untraceable"})
    [note] = [note for note in chief.values["notes"] if "export" in note]
    assert note.startswith("the model is not exported: NotImplementedError: no lookups; its checkpoints")


@pytest.mark.slow
def test_model_of_lists_whose_length_only_it_knows_is_exported_whole(keras: str, tmp_path: Path) -> None:
    [task] = exported(tmp_path, Cluster(keras=keras), target="tests.support.export_functions:of_lists")
    assert [note for note in task.values["notes"] if "export" in note] == []
    assert sorted(os.listdir(tmp_path / "test/export")) == ["model.keras", "saved_model"]


# Tells for each kind the inputs' names, types and sizes, the outputs' names, and what `raydist export` does.
CONVERT = """
import json, os, sys
folder, library, kinds = sys.argv[1:]
import tensorflow as tf
from pathlib import Path
from raydist.inference import formats
told = {}
for kind, wanted in json.loads(kinds).items():
    place = Path(folder) / kind
    served = tf.saved_model.load(str(place / "saved_model")).signatures["serving_default"]
    inputs = served.structured_input_signature[1]
    (place / "out").mkdir()
    files = (place / "model.keras", place / "saved_model")
    done = formats.convert(*files, wanted, place / "out", library=library)
    told[kind] = {
        "inputs": {name: [one.dtype.name, *one.shape] for name, one in inputs.items()},
        "outputs": sorted(served.structured_outputs),
        "errors": {name: one["error"] for name, one in done.items() if "error" in one},
    }
(Path(folder) / "told.json").write_text(json.dumps(told))
"""
THREE = {"user": ["int32", None, 1], "item": ["int64", None, 1], "price": ["float32", None, 2]}
ONE = {"price": ["float32", None, 2]}


def test_export_keeps_names_types_and_structure_of_the_model(keras: str, tmp_path: Path) -> None:
    converted = ["keras", "saved_model", *(["litert"] if keras == "3" else [])]
    kinds = {
        "list": converted,
        "renamed": converted,
        "two outputs": ["keras"],
        "mixed_bfloat16": ["keras"],
        "subclassed": ["saved_model"],
        "no config": ["saved_model"],
        "unnamed": converted,
    }
    where = Cluster(strategy="mirrored", devices=2, keras=keras)
    exported(tmp_path, where, {"kinds": [*kinds]}, target="tests.support.export_functions:several_inputs")
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "TF_USE_LEGACY_KERAS": str(int(keras == "legacy"))}
    library = "tf_keras" if keras == "legacy" else "keras"
    command = [sys.executable, "-c", CONVERT, str(tmp_path / "test"), library, json.dumps(kinds)]
    subprocess.run(command, check=True, env=environ, timeout=300, cwd=Path(__file__).parents[2])
    told = json.loads((tmp_path / "test/told.json").read_text())
    assert {kind: found["errors"] for kind, found in told.items() if found["errors"]} == {}
    [[unnamed]] = [told.pop("unnamed")["inputs"].values()]
    assert unnamed == ["float32", None, 2]  # any number of examples, under a name of Keras's own
    assert {kind: found["inputs"] for kind, found in told.items()} == {
        **dict.fromkeys(("list", "renamed", "two outputs", "subclassed", "no config"), THREE),
        "mixed_bfloat16": ONE,
    }
    assert told["two outputs"]["outputs"] == ["first", "second"]
    assert told["subclassed"]["outputs"] == ["click"]
    assert told["list"]["outputs"] == ["output_0"]
