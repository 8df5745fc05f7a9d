"""A Keras that raydist does not know: with known functions it is patched, with others refused."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

# Each starts TensorFlow.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
_PATCH = """
import keras
from raydist.errors import UnsupportedError
from raydist.task import told_if_newer
try:
    with told_if_newer():
        from raydist.training.keras_patches.keras3 import patches
        print("NOTE", patches.patch(sync_batchnorm=False))
except UnsupportedError as error:
    print("REFUSED", error)
"""


@dataclass(frozen=True)
class Newer:
    """A copy of the installed Keras that says it is 3.99, in a folder that comes first in the path."""

    folder: Path

    def change(self, file: str, before: str, after: str) -> None:
        path = self.folder / "keras" / "src" / file
        text = path.read_text()
        assert before in text
        path.write_text(text.replace(before, after))

    def patch(self) -> str:
        """Returns what a process says that patches this Keras."""
        environ = {
            **os.environ,
            "PYTHONPATH": f"{self.folder}{os.pathsep}{ROOT}",
            "CUDA_VISIBLE_DEVICES": "-1",
            "KERAS_BACKEND": "tensorflow",
        }
        done = subprocess.run(
            [sys.executable, "-c", _PATCH], env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip().splitlines()[-1]


@pytest.fixture
def newer(tmp_path: Path) -> Newer:
    spec = find_spec("keras")
    assert spec.origin is not None
    ignored = shutil.ignore_patterns("__pycache__", "*_test.py")
    shutil.copytree(Path(spec.origin).parent, tmp_path / "keras", ignore=ignored)
    keras = Newer(tmp_path)
    found = re.search(r'__version__ = "(.*)"', (tmp_path / "keras/src/version.py").read_text())
    keras.change("version.py", found[0], '__version__ = "3.99.0"')
    return keras


def test_newer_keras_with_the_known_functions_is_patched(newer: Newer) -> None:
    assert newer.patch().startswith("NOTE keras 3.99.0 is newer than 3.15, the last version that raydist")


def test_newer_keras_with_another_function_is_refused(newer: Newer) -> None:
    newer.change("backend/tensorflow/trainer.py", "def _make_function(", "def _make_step_function(")
    said = newer.patch()
    assert "differs from the versions that raydist patches in TensorFlowTrainer._make_function" in said


def test_newer_keras_that_lacks_a_class_is_refused_in_one_sentence(newer: Newer) -> None:
    newer.change("backend/tensorflow/trainer.py", "class TFEpochIterator(", "class TFNewEpochIterator(")
    info = newer.folder / "keras-3.99.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: keras\nVersion: 3.99.0\n")
    said = newer.patch()
    assert said.startswith("REFUSED keras 3.99.0 is newer than what raydist knows"), said
    assert said.endswith('install "keras>=3.10,<3.16"')
