"""What tasks need not import: it is there when somebody asks for it, and costs nothing before."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import inspect
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from raydist.training.lazy_imports import executed_on_first_use, left_out, uncollected

EXTRA = """
import time

import package_of_lazy_imports

package_of_lazy_imports.EXECUTED.append(1)
time.sleep(0.1)
VALUE = 41
"""
# Says what is imported once TensorFlow is, and once it has trained, then uses what was not.
IMPORTING = """
import importlib, json, sys
module, _, name = sys.argv[1].partition(":")
if name:
    getattr(importlib.import_module(module), name)(None, "host").warm_up()
else:
    importlib.import_module(module)
def imported():
    return [name for name in ("keras", "sklearn", "pandas") if name in sys.modules]
at_first = imported()
import keras, numpy
import tensorflow as tf
model = keras.Sequential([keras.layers.Dense(1)])
model.compile(loss="mse")
if "sklearn" not in at_first and "keras" in at_first:
    model.fit(tf.data.Dataset.from_tensors((tf.ones((8, 1)), tf.ones(8))), verbose=0)
    at_first = imported()
import pandas
frame = pandas.DataFrame({"a": numpy.arange(8.0)})
model.fit(frame, numpy.ones(8), validation_split=0.25, verbose=0)
base = keras.wrappers.SKLearnClassifier.__mro__[1].__module__
print(json.dumps({"imported": at_first, "base": base, "is_same": tf.keras.Model is keras.Model}))
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package whose module `extra` says when it is executed."""
    folder = tmp_path / "package_of_lazy_imports"
    folder.mkdir()
    (folder / "__init__.py").write_text("EXECUTED = []\n")
    (folder / "extra.py").write_text(EXTRA)
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == folder.name]:
        del sys.modules[name]


def test_module_is_executed_once_on_its_first_use(package: Path) -> None:
    with executed_on_first_use(f"{package.name}.extra"):
        extra = importlib.import_module(f"{package.name}.extra")
    executed = sys.modules[package.name].EXECUTED
    assert inspect.getmodule(type(extra)) is not None  # asks all modules for their files
    assert Path(extra.__file__) == package / "extra.py"
    assert not hasattr(extra, "__wrapped__")
    assert executed == []
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: extra.VALUE, range(8))) == {41}
    assert executed == [1]
    with pytest.raises(AttributeError, match="has no attribute 'NO_VALUE'"):
        extra.NO_VALUE  # noqa: B018
    assert importlib.import_module(f"{package.name}.extra") is extra


def test_names_of_a_lazy_module_can_be_imported_by_a_star(package: Path) -> None:
    with executed_on_first_use(f"{package.name}.extra"):
        importlib.import_module(f"{package.name}.extra")
    found: dict[str, object] = {}
    exec(f"from {package.name}.extra import *", found)
    assert found["VALUE"] == 41


def test_lazy_module_that_fails_does_so_at_each_use(package: Path) -> None:
    (package / "extra.py").write_text("EARLY = 1\nassert EARLY == 2\n")
    with executed_on_first_use(f"{package.name}.extra"):
        extra = importlib.import_module(f"{package.name}.extra")
    for _ in range(2):
        with pytest.raises(AssertionError):
            extra.VALUE  # noqa: B018


def test_package_that_is_left_out_can_be_found_but_not_imported(package: Path) -> None:
    with left_out(package.name):
        assert importlib.util.find_spec(package.name) is not None
        with pytest.raises(ImportError, match="package_of_lazy_imports is left out here"):
            importlib.import_module(f"{package.name}.extra")
    assert importlib.import_module(f"{package.name}.extra").VALUE == 41


@pytest.mark.parametrize("manager", [executed_on_first_use, left_out])
def test_other_modules_are_imported_as_ever_and_nothing_stays(
    package: Path, manager: Callable[..., AbstractContextManager[None]]
) -> None:
    def import_it() -> None:
        with manager("no_such_package"):
            importlib.import_module("no_such_package")

    finders = list(sys.meta_path)
    with manager("no_such_package"):
        assert importlib.import_module(f"{package.name}.extra").VALUE == 41
    with pytest.raises(ModuleNotFoundError):
        import_it()
    assert sys.meta_path == finders


@pytest.mark.parametrize("was_enabled", [True, False])
def test_nothing_is_collected_inside_and_what_stays_is_left_alone(was_enabled: bool) -> None:
    try:
        if not was_enabled:
            gc.disable()
        with uncollected():
            assert not gc.isenabled()
        assert gc.isenabled() == was_enabled
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
        gc.enable()


@pytest.mark.exhaustive("serves", "stock", covered_by="[trains], which imports most")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "imported"),
    [
        # The first row fails when raydist's part is no longer needed.
        pytest.param("tensorflow", ["keras", "sklearn", "pandas"], id="stock"),
        pytest.param("raydist.task:TrainingRunner", ["keras", "pandas"], id="trains"),
        pytest.param("raydist.task:ServerRunner", [], id="serves"),
        pytest.param("raydist.task:DataWorkerRunner", [], id="serves-data"),
    ],
)
def test_task_imports_no_more_than_it_needs_and_has_the_rest_on_demand(
    module: str, imported: list[str]
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", IMPORTING, module], capture_output=True, text=True, timeout=200
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout.splitlines()[-1]) == {
        "imported": imported,
        "base": "sklearn.base",
        "is_same": True,
    }
