"""Imports without what they do needlessly: half of the time that TensorFlow and Keras take."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_MakeLoader = Callable[[Loader], Loader]

# What `import keras` executes, and hardly any job uses. Where a later Keras has no such module, or takes
# names from it at once, nothing is gained and nothing breaks.
KERAS_EXTRAS = (
    "keras.wrappers",  # imports scikit-learn, and that SciPy's statistics
    "keras.src.trainers.data_adapters.array_slicing",  # imports pandas
)
# What `import tensorflow` imports at its end, and goes on without where it is not installed.
KERAS = ("keras", "tf_keras")


def executed_on_first_use(*names: str) -> contextlib.AbstractContextManager[None]:
    """Modules of these names that are imported inside are executed when an attribute is first asked for.

    See `importlib.util.LazyLoader`; only the time of the execution changes.
    """
    return _loaded_by(importlib.util.LazyLoader, names)


def left_out(*names: str) -> contextlib.AbstractContextManager[None]:
    """Inside, packages of these names cannot be imported, as if they were not installed."""
    return _loaded_by(_RefusingLoader, names)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Inside, Python looks for no garbage, nor later among the objects that stay, as those of modules do.

    An import makes hundreds of thousands of them, and each full collection goes over all; see `gc.freeze`.
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


class _RefusingLoader(Loader):
    def __init__(self, loader: Loader) -> None: ...

    def exec_module(self, module: ModuleType) -> None:
        raise ImportError(f"{module.__name__} is left out here", name=module.__name__)
