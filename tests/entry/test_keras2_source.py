"""Which sources are programs for Keras 2, and which are not."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from raydist.entry.definition import read_job
from raydist.entry.keras2_source import legacy_reason
from raydist.entry.own_source import Part, own_modules

JOBS = sorted(Path(__file__).parents[2].joinpath("jobs").glob("*.py"))
TF = "import tensorflow as tf\n"
MODEL = f"{TF}model = tf.keras.Sequential([tf.keras.layers.Dense(1)])\n"
NAMES = [
    ("tf.keras.metrics.Mean().reset_states()", "reset_states"),
    ("tf.keras.optimizers.legacy.SGD()", "tf.keras.optimizers.legacy.SGD"),
    ("loss = tf.keras.losses.MSE\nr = tf.keras.losses.Reduction.AUTO", "tf.keras.losses.Reduction.AUTO"),
    ("tf.keras.experimental.WideDeepModel", "tf.keras.experimental.WideDeepModel"),
    ("from tensorflow.keras.layers import DenseFeatures", "tf.keras.layers.DenseFeatures"),
    ("import tensorflow.keras.layers.experimental", "tf.keras.layers.experimental"),
    (
        "from tensorflow import keras as k\nf = k.layers.experimental.preprocessing",
        "tf.keras.layers.experimental",
    ),
    ("K = tf.keras.backend\nK.learning_phase()", "tf.keras.backend.learning_phase"),
    (
        "import tensorflow.compat.v2 as t\nt.keras.utils.experimental.DatasetCreator",
        "tf.keras.utils.experimental",
    ),
    ("tf.compat.v1.layers.dense(x, 3)", "tf.compat.v1.layers.dense"),
    ("tf.keras.callbacks.ModelCheckpoint('m.keras', period=3)", "ModelCheckpoint(period=…)"),
    ("tf.keras.optimizers.Adam(lr=0.1)", "Adam(lr=…)"),
    ("o = tf.keras.optimizers.Adam()\nprint(o.lr)", "optimizer.lr"),
    ("print(model.optimizer.lr.numpy())", "optimizer.lr"),
    ("o = tf.keras.optimizers.Adam()\no.minimize(f, v)", "optimizer.minimize"),
    ("model.fit(x, use_multiprocessing=True)", "fit(use_multiprocessing=…)"),
    ("model.fit_generator(x)", "fit_generator"),
    ("tf.keras.layers.LSTM(3, batch_input_shape=(1, 2, 3))", "LSTM(batch_input_shape=…)"),
    ("model.save('/tmp/model')", "save of '/tmp/model', a path without .keras or .h5"),
    ("model.save('m.h5', save_format='tf')", "save(save_format=…)"),
    (
        "path = '/tmp/m'\ndef here(p, i): return p\nto = here(path, 0)\nmodel.save(to)",
        "save of '/tmp/m', a path without .keras or .h5",
    ),
    ("tf.keras.models.load_model('/tmp/model')", "load_model of '/tmp/model', a path without .keras or .h5"),
    ("model.save_weights('w.h5')", "save_weights of 'w.h5', a path without .weights.h5"),
    (
        "import os\np = os.path.join('d', 'ckpt_{epoch}')\n"
        "tf.keras.callbacks.ModelCheckpoint(filepath=p, save_weights_only=True)",
        "ModelCheckpoint of 'ckpt_{epoch}', a path without .weights.h5",
    ),
    ("model.load_weights(tf.train.latest_checkpoint('dir'))", "load_weights of 'dir'"),
]
PS = "tf.distribute.experimental.ParameterServerStrategy"
NOT_NAMES = [
    f"{PS}(resolver)\n{PS}(resolver, variable_partitioner=None)",
    "tf.keras.metrics.Mean().reset_state()",
    "tf.keras.losses.MeanSquaredError(reduction=tf.keras.losses.Reduction.NONE)",
    "model.save('m.keras')\nmodel.save_weights('w.weights.h5')\nmodel.save(path)",
    "import os\nmodel.save(os.path.join('/tmp', name))\nmodel.save(f'{name}')\nmodel.save(os.getenv('OUT'))",
    "tf.saved_model.save(model, '/tmp/model')\ntf.train.Checkpoint().save('/tmp/ckpt')\nfigure.save('plot')",
    "tf.keras.callbacks.ModelCheckpoint('{epoch}.weights.h5', save_weights_only=True)",
    # Of other libraries, or the job's own.
    "solver.minimize(f)\nschedule.lr\nsearch.fit(x, n_jobs=3)",
    "class Meter:\n    def reset_states(self): ...\nMeter().reset_states()",
    # For either Keras.
    "m = tf.keras.metrics.Mean()\n(m.reset_state if hasattr(m, 'reset_state') else m.reset_states)()",
    "try:\n    o = tf.keras.optimizers.legacy.SGD()\nexcept ImportError:\n    o = tf.keras.optimizers.SGD()",
    "if tf.__version__ < '2.16':\n    tf.keras.backend.set_learning_phase(1)",
    "from tensorflow.keras.saving import register_keras_serializable",
    # Of a recurrent layer that keeps its state.
    "layer = tf.keras.layers.LSTM(3, stateful=True)\nlayer.reset_states()",
    # A program for Keras 3.
    "import keras\nmetric.reset_states()",
    "name = 'tf.keras.optimizers.legacy'  # tf.keras.experimental",
]


def reason(folder: Path, source: str) -> str | None:
    (folder / "main.py").write_text(source)
    return read_job("main.py", cwd=folder).source.legacy_keras_reason


@pytest.mark.parametrize(("source", "what"), NAMES, ids=[what for _, what in NAMES])
def test_name_that_only_keras_2_knows_is_told_with_its_line(source: str, what: str, tmp_path: Path) -> None:
    told = reason(tmp_path, f"{MODEL}{source}\n")
    line = 2 + len(source.splitlines())
    assert told.startswith(f"main.py, line {line}, uses {what}")
    assert told.endswith(", which only Keras 2 knows")


@pytest.mark.parametrize("given", ["variable_partitioner=one", "one"])
def test_partitioner_of_the_jobs_own_is_told_with_its_line(given: str, tmp_path: Path) -> None:
    source = (
        f"one = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)\n{PS}(resolver, {given})"
    )
    told = reason(tmp_path, f"{MODEL}{source}\n")
    assert told == "main.py, line 4, cuts variables into shards, which Keras 3 does not have"


@pytest.mark.parametrize("source", NOT_NAMES)
def test_what_keras_3_knows_or_is_not_of_keras_tells_nothing(source: str, tmp_path: Path) -> None:
    assert reason(tmp_path, f"{MODEL}{source}\n") is None


def test_program_without_keras_tells_nothing(tmp_path: Path) -> None:
    assert reason(tmp_path, f"{TF}meter.reset_states()\nmodel.save('x')\n") is None


@pytest.mark.parametrize(
    ("job", "files", "told"),
    [
        ("import setup", {"setup.py": "{bad}"}, "setup.py, line 3, uses reset_states"),
        ("from parts import a", {"parts/__init__.py": "", "parts/a.py": "{bad}"}, "parts/a.py, line 3"),
        ("import parts.a.b", {"parts/__init__.py": "{bad}", "parts/a/b.py": ""}, "parts/__init__.py, line 3"),
        (
            "from parts import a",
            {"parts/__init__.py": "", "parts/a.py": "from . import b", "parts/b.py": "{bad}"},
            "parts/b.py, line 3",
        ),
        (
            "def f():\n    from one import x",
            {"one.py": "from two import *", "two.py": "import one\n{bad}"},
            "two.py, line 4",
        ),
        ("import setup", {"setup.py": "import tf_keras"}, "setup.py imports tf_keras"),
        ("import setup", {"setup.py": "def broken(:\n"}, None),
        ("import setup", {"other.py": "{bad}"}, None),
    ],
)
def test_own_modules_are_read_as_well(
    job: str, files: dict[str, str], told: str | None, tmp_path: Path
) -> None:
    bad = f"{MODEL}tf.keras.metrics.Mean().reset_states()\n"
    for name, source in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(source.replace("{bad}", bad))
    found = reason(tmp_path, f"{MODEL}{job}\nmodel.fit(x)\n")
    assert (found is None) is (told is None)
    assert told is None or (found or "").startswith(told)


def test_cell_of_a_notebook_is_named(tmp_path: Path) -> None:
    cells = [TF, "mean = tf.keras.metrics.Mean()\n", "\nmean.reset_states()\n"]
    notebook = {"cells": [{"cell_type": "code", "source": cell} for cell in cells], "metadata": {}}
    (tmp_path / "guide.ipynb").write_text(json.dumps(notebook))
    told = read_job("guide.ipynb", cwd=tmp_path).source.legacy_keras_reason
    assert told == "guide.ipynb, cell 3, line 2, uses reset_states, which only Keras 2 knows"


@pytest.mark.parametrize("job", JOBS, ids=[job.stem for job in JOBS])
def test_jobs_of_the_gallery_are_programs_for_keras_3(job: Path) -> None:
    part = Part(job.name, ast.parse(job.read_text()))
    assert legacy_reason([part], [*own_modules([part], file=job, roots=[job.parent])]) is None
