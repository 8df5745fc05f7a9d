"""Whether a function can reach a model: what its code names, holds and is bound to, one after another."""

from __future__ import annotations

import builtins
import functools
import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any

from raydist.training.user_code import bytecode

# More than this are not looked through.
_MOST = 1000
_PLAIN = (type(None), bool, int, float, complex, str, bytes, bytearray)
_HARMLESS_PACKAGES = frozenset({*sys.stdlib_module_names, "numpy"})


def may_reach_model(function: Any) -> bool:
    """Whether a function may use a model, variables, a strategy or the context.

    Anything that is not known to be harmless counts: objects of classes besides Python's own and NumPy's, and
    modules besides theirs.
    """
    pending, seen = [function], set[int]()
    while pending:
        value = pending.pop()
        if id(value) in seen or isinstance(value, _PLAIN):
            continue
        seen.add(id(value))
        held = _held_by(value)
        if held is None or len(seen) > _MOST:
            return True
        pending.extend(held)
    return False


def _held_by(value: Any) -> list[Any] | None:
    """Returns what a value gives access to; None where that is not known."""
    if isinstance(value, types.FunctionType):
        return _held_by_function(value)
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, types.ModuleType):
        return [] if _is_harmless(value.__name__) else None
    if isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
        return [value.__self__]
    if isinstance(value, type):
        return [] if _is_harmless(value.__module__) else None
    if isinstance(value, Mapping):
        return _some([*value.keys(), *value.values()])
    if isinstance(value, (list, tuple, set, frozenset)):
        return _some(value)
    return [] if _is_harmless(type(value).__module__) else None


def _held_by_function(function: types.FunctionType) -> list[Any]:
    names, known = bytecode.names_in(function), function.__globals__
    inside = names - known.keys() - vars(builtins).keys()
    imported = [sys.modules[one] for one in inside if one in sys.modules]
    every = [known] if names & {"globals", "eval", "exec"} else []
    return [*(value for _, _, value in bytecode.held_by(function)), *imported, *every]


def _some(values: Iterable[Any]) -> list[Any] | None:
    found = list(values)
    return found if len(found) <= _MOST else None


def _is_harmless(module: str) -> bool:
    return module.partition(".")[0] in _HARMLESS_PACKAGES
