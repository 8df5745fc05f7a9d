"""A stand-in for the estimator API, which TensorFlow removed in 2.16.

TensorFlow Privacy and TensorFlow Ranking import it for parts that the programs do not use, and no release of
tensorflow-estimator works with a TensorFlow of today. Import this module before either of them.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any

import tensorflow as tf


class _Class(type):
    """Has a class for each name: the libraries subclass them, and read constants of them."""

    def __getattr__(cls, name: str) -> Any:
        return _class(name)


class _Module(types.ModuleType):
    __path__: Sequence[str] = ()

    def __getattr__(self, name: str) -> Any:
        return _class(name)


def _class(name: str) -> Any:
    if name.startswith("__"):  # what Python and TensorFlow look for at any module or class
        raise AttributeError(name)
    return _Class(name, (), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] != "tensorflow_estimator":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


sys.meta_path.append(_Finder())
tf.estimator = tf.compat.v1.estimator = _Module("tensorflow.estimator")
