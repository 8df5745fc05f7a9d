"""A Keras that raydist does not know: what passes the self-check is patched, what does not is refused."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from raydist.training.self_check import verdicts

# Each starts TensorFlow twice, once to be patched and once to check.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
_PATCH = """
import functools, sys
import keras
from raydist.errors import UnsupportedError
from raydist.training import tf_private
from raydist.training.keras_patches.keras3 import patches
from raydist.training.self_check import verdicts
try:
    check = functools.partial(verdicts.problem_of, keras, timeout_s=3000)
    print("NOTE", patches.patch(sync_batchnorm=False, check=check, newer=tf_private.newer_than_known()))
except UnsupportedError as error:
    print("REFUSED", error)
"""


@dataclass(frozen=True, kw_only=True)
class Newer:
    """A copy of the installed Keras that says it is 3.99.

    Attributes:
      folder: Comes first in the path.
      cache: The user's cache folder.
    """

    folder: Path
    cache: Path

    def change(self, file: str, before: str, after: str) -> None:
        path = self.folder / "keras" / "src" / file
        text = path.read_text()
        assert before in text
        path.write_text(text.replace(before, after))

    def patch(self, code: str = _PATCH) -> str:
        """Returns what a process says that patches this Keras."""
        environ = {
            **os.environ,
            "PYTHONPATH": f"{self.folder}{os.pathsep}{ROOT}",
            "XDG_CACHE_HOME": str(self.cache),
            "CUDA_VISIBLE_DEVICES": "-1",
            "KERAS_BACKEND": "tensorflow",
        }
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip().splitlines()[-1]

    def verdicts(self) -> list[Path]:
        return sorted(self.cache.glob("raydist/self-check/keras-*.json"))


@pytest.fixture
def newer(tmp_path: Path) -> Newer:
    spec = find_spec("keras")
    assert spec is not None
    assert spec.origin is not None
    ignored = shutil.ignore_patterns("__pycache__", "*_test.py")
    shutil.copytree(Path(spec.origin).parent, tmp_path / "keras", ignore=ignored)
    keras = Newer(folder=tmp_path, cache=tmp_path / "cache")
    found = re.search(r'__version__ = "(.*)"', (tmp_path / "keras/src/version.py").read_text())
    assert found is not None
    keras.change("version.py", found[0], '__version__ = "3.99.0"')
    return keras


def test_newer_keras_that_behaves_is_checked_once_and_patched(newer: Newer) -> None:
    said = newer.patch()
    assert said.startswith("NOTE keras 3.99.0 is newer than 3.15"), said
    assert "self-check passed" in said
    [verdict] = newer.verdicts()
    assert json.loads(verdict.read_text()) == {}
    assert verdict.parent.stat().st_mode & 0o777 == 0o700
    # From now on it is only read: a verdict that somebody made up is believed.
    verdict.write_text(json.dumps({"uneven batches": "as written down"}))
    assert "uneven batches (as written down)" in newer.patch()


def test_newer_keras_in_which_a_patch_does_nothing_is_refused(newer: Newer) -> None:
    # As if Keras weighed replicas elsewhere: `scale_loss_for_distribution` is there, but nobody calls it.
    newer.change("losses/loss.py", "loss = scale_loss_for_distribution(loss)", "loss = _scale(loss)")
    path = newer.folder / "keras/src/losses/loss.py"
    path.write_text(f"{path.read_text()}\n\n_scale = scale_loss_for_distribution\n")
    said = newer.patch()
    assert said.startswith("REFUSED keras 3.99.0 is newer than 3.15"), said
    assert "its self-check failed: uneven batches (" in said
    assert 'install "keras>=3.10,<3.16", or go without the patches with --no-patch-keras' in said


def test_newer_keras_that_lacks_a_function_is_refused_without_a_check(newer: Newer) -> None:
    newer.change("backend/tensorflow/trainer.py", "def _make_function(", "def _make_step_function(")
    said = newer.patch()
    assert "differs from the versions that raydist patches in TensorFlowTrainer._make_function" in said
    assert newer.verdicts() == []


def test_newer_keras_that_lacks_a_class_is_refused_in_one_sentence(newer: Newer) -> None:
    newer.change("backend/tensorflow/trainer.py", "class TFEpochIterator(", "class TFNewEpochIterator(")
    info = newer.folder / "keras-3.99.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: keras\nVersion: 3.99.0\n")
    said = newer.patch(_IMPORT)
    assert said.startswith("REFUSED keras 3.99.0 is newer than what raydist knows"), said
    assert said.endswith('install "keras>=3.10,<3.16"')


_IMPORT = """
from raydist.errors import UnsupportedError
from raydist.task import told_if_newer
try:
    with told_if_newer():
        import raydist.training.keras_patches.keras3.patches as patches
        patches.replacements()
except UnsupportedError as error:
    print("REFUSED", error)
"""


def test_newer_tensorflow_is_checked_with_a_keras_that_is_known(newer: Newer) -> None:
    shutil.rmtree(newer.folder / "keras")
    said = newer.patch('import tensorflow as tf; tf.__version__ = "2.99.0"\n' + _PATCH)
    assert said.startswith("NOTE TensorFlow 2.99.0 is newer than 2.21"), said
    assert "self-check passed" in said


def test_cache_folder_of_somebody_else_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = verdicts.cache_folder()
    assert folder is not None
    folder.rmdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder.symlink_to(elsewhere)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    of_host = tmp_path / f"raydist-{os.geteuid()}-self-check"
    assert verdicts.cache_folder() == of_host
    of_host.rmdir()
    for taken in (of_host, tmp_path / "raydist" / f"on-{platform.node()}-self-check"):
        taken.symlink_to(elsewhere)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert verdicts.cache_folder() is None
