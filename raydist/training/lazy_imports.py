"""Imports without what they do needlessly, which is a third of the time that TensorFlow and Keras take."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_MakeLoader = Callable[[Loader], Loader]

# What `import keras` executes, and hardly any job uses: it imports scikit-learn, and that SciPy's statistics.
KERAS_EXTRAS = ("keras.wrappers",)
# What `import tensorflow` imports at its end, if it is installed.
KERAS = ("keras", "tf_keras")


def executed_on_first_use(*names: str) -> contextlib.AbstractContextManager[None]:
    """Modules of these names that are imported inside are executed when what they define is asked for."""
    return _loaded_by(_LazyLoader, names)


def left_out(*names: str) -> contextlib.AbstractContextManager[None]:
    """Inside, packages of these names cannot be imported, as if they were not installed."""
    return _loaded_by(_RefusingLoader, names)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Inside, Python looks for no garbage, nor later among the objects that stay, as those of modules do.

    An import makes hundreds of thousands of them, and each full collection goes over all; see `gc.freeze`,
    which hides from `gc.get_objects` what is alive by then.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def _loaded_by(make_loader: _MakeLoader, names: Sequence[str]) -> Iterator[None]:
    finder = _Finder(make_loader, names)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder(MetaPathFinder):
    """Finds modules where they are, and has them loaded by another loader around their own."""

    def __init__(self, make_loader: _MakeLoader, names: Sequence[str]) -> None:
        self._make_loader = make_loader
        self._names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in self._names else None
        if spec is not None and spec.loader is not None:
            spec.loader = self._make_loader(spec.loader)
        return spec


class _LazyModule(ModuleType):
    """Executed when a name that it lacks is first asked for.

    Not `importlib.util.LazyLoader`, whose modules are executed for any attribute: `inspect`, and so each
    function that TensorFlow traces, asks all modules for their `__file__`. Who asks all of them for another
    name, as pickle does for what does not say its module, executes it.
    """

    def __getattr__(self, name: str) -> Any:
        is_asked_of_all = name.startswith("__") and name != "__all__"
        if not is_asked_of_all:
            with _EXECUTION:
                if type(self) is _LazyModule and self not in _executing:
                    _execute(self)
                if type(self) is not _LazyModule:
                    return getattr(self, name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


# Held by the thread that executes a module; others wait until it is whole.
_EXECUTION = threading.RLock()
_executing: list[ModuleType] = []


def _execute(module: ModuleType) -> None:
    assert module.__spec__ is not None
    assert module.__spec__.loader is not None
    _executing.append(module)
    try:
        module.__spec__.loader.exec_module(module)
        module.__class__ = ModuleType
    finally:
        _executing.remove(module)


class _LazyLoader(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        module.__class__ = _LazyModule


class _RefusingLoader(Loader):
    def __init__(self, loader: Loader) -> None: ...

    def exec_module(self, module: ModuleType) -> None:
        raise ImportError(f"{module.__name__} is left out here", name=module.__name__)
