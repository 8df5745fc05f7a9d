"""Numbers that a function has from outside, and the same function with another number in the place of one.

A loss that is divided by the number of replicas is right where gradients are summed. If that number was read
outside of the step, the step has it as a plain number. Whether it is divided by is found out by giving the
step another one.
"""

from __future__ import annotations

import functools
import sysconfig
import types
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from raydist.training.user_code import bytecode

# More values than this are not looked through, nor those that lie deeper.
_MOST = 2000
_DEEPEST = 6
# What a step may ask the run's context for.
_OF_CONTEXT = "num_workers"
_INSTALLED = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))


@dataclass(frozen=True)
class _Place:
    """Where a value is found in another one.

    Attributes:
      kind: `cell`, `global`, `default`, `keyword default`, `function`, `argument`, `keyword`, `self`,
        `attribute` or `item`.
      key: Which one.
    """

    kind: str
    key: Any = None


@dataclass(frozen=True)
class CapturedNumber:
    """A number that a function has from outside."""

    name: str
    value: Any
    _function: Any
    _path: tuple[_Place, ...]

    def replaced(self, factor: float, *, function: Any = None) -> Any:
        """Returns a copy of the function that has `factor` times the number. The function stays as it is.

        Args:
          function: Such a copy, with another number in the place of another one.
        """
        return _rebuilt(function or self._function, self._path, _times(self.value, factor))

    @property
    def is_of_context(self) -> bool:
        return self._path[-1] == _Place("attribute", _OF_CONTEXT)


def found_in(function: Any, values: Collection[float]) -> list[CapturedNumber]:
    """Returns the numbers that a function, and those that it calls, have from outside and that are one of
    `values`: in closures, globals, defaults, partials, objects, dicts and lists.
    """
    pending: list[tuple[Any, tuple[_Place, ...], frozenset[str]]] = [(function, (), frozenset())]
    seen, found = set[int](), list[CapturedNumber]()
    while pending and len(seen) < _MOST:
        value, path, names = pending.pop(0)
        number = _number_of(value)
        if number is not None:
            if any(np.isclose(number, one) for one in values):
                found.append(CapturedNumber(_name_of(path), value, function, path))
            continue
        if id(value) in seen or len(path) > _DEEPEST:
            continue
        seen.add(id(value))
        names = names | bytecode.names_in(value)
        pending += [(inner, (*path, place), names) for place, inner in _held_by(value, names)]
    return found


def _number_of(value: Any) -> float | None:
    """Returns a scalar as a float: a number of Python's or NumPy's, or an eager tensor; None for others."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return float(value)
    is_array = (
        isinstance(value, (np.number, np.ndarray)) and np.ndim(value) == 0 and value.dtype.kind in "iuf"
    )
    is_tensor = isinstance(value, tf.Tensor) and hasattr(value, "numpy") and value.shape.rank == 0
    if is_tensor and not (value.dtype.is_floating or value.dtype.is_integer):
        return None
    return float(value) if is_array or is_tensor else None


def _times(value: Any, factor: float) -> Any:
    other = (_number_of(value) or 0.0) * factor
    if isinstance(value, tf.Tensor):
        return tf.constant(other, value.dtype)
    if isinstance(value, (np.number, np.ndarray)):
        return np.asarray(other, value.dtype)[()]
    return type(value)(other) if type(value) in (int, float) else other


def _name_of(path: tuple[_Place, ...]) -> str:
    name = ""
    for place in path:
        if place.kind in ("cell", "global", "keyword", "keyword default", "default"):
            name = str(place.key)
        elif place.kind == "argument":
            name = f"argument {place.key} of functools.partial"
        elif place.kind == "attribute":
            name = f"{name or 'self'}.{place.key}"
        elif place.kind == "item":
            name = f"{name}[{place.key!r}]"
        elif place.kind in ("function", "self"):
            name = ""
    return name


def _held_by(value: Any, names: Collection[str]) -> Iterator[tuple[_Place, Any]]:
    """Yields what a value of the user's gives access to, with its place.

    Args:
      names: Those that code reads on the way. Other attributes of objects are none of its business.
    """
    if isinstance(value, types.FunctionType):
        if not value.__code__.co_filename.startswith(_INSTALLED):
            yield from ((_Place(kind, name), one) for kind, name, one in bytecode.held_by(value))
    elif isinstance(value, types.MethodType):
        yield _Place("function"), value.__func__
        yield _Place("self"), value.__self__
    elif isinstance(value, functools.partial):
        yield _Place("function"), value.func
        yield from ((_Place("argument", index), one) for index, one in enumerate(value.args))
        yield from ((_Place("keyword", name), one) for name, one in value.keywords.items())
    elif type(value) is dict:
        yield from ((_Place("item", key), one) for key, one in value.items())
    elif type(value) in (list, tuple):
        yield from ((_Place("item", index), one) for index, one in enumerate(value))
    elif _is_plain_object(value):
        own = {_OF_CONTEXT: vars(value).get(_OF_CONTEXT)} if _is_context(value) else vars(value)
        yield from ((_Place("attribute", name), one) for name, one in own.items() if name in names)


def _is_plain_object(value: Any) -> bool:
    """Whether it is an object of a class of the user's, of which a copy is as good, such as a model."""
    if isinstance(value, types.SimpleNamespace) or _is_context(value):
        return True
    is_type = isinstance(value, (type, types.ModuleType))
    installed = ("tensorflow", "keras", "tf_keras", "numpy", "raydist", "builtins", "ray", "functools")
    is_installed = type(value).__module__.partition(".")[0] in installed
    return not is_type and hasattr(value, "__dict__") and not is_installed


def _is_context(value: Any) -> bool:
    return any(base.__name__ == "TrainContext" for base in type(value).__mro__)


def _rebuilt(value: Any, path: tuple[_Place, ...], new: Any) -> Any:
    """Returns a copy of a value with another one at the end of a path in it."""
    if not path:
        return new
    place, rest = path[0], path[1:]

    def inner(held: Any) -> Any:
        return _rebuilt(held, rest, new)

    if isinstance(value, types.FunctionType):
        return bytecode.holding(value, place.kind, place.key, inner)
    if isinstance(value, types.MethodType):
        if place.kind == "function":
            return types.MethodType(inner(value.__func__), value.__self__)
        return types.MethodType(value.__func__, inner(value.__self__))
    if isinstance(value, functools.partial):
        function = inner(value.func) if place.kind == "function" else value.func
        arguments, keywords = list(value.args), dict(value.keywords)
        if place.kind == "argument":
            arguments[place.key] = inner(arguments[place.key])
        elif place.kind == "keyword":
            keywords[place.key] = inner(keywords[place.key])
        return functools.partial(function, *arguments, **keywords)
    if place.kind == "attribute":
        copied = object.__new__(type(value))
        copied.__dict__.update(vars(value))
        copied.__dict__[place.key] = inner(vars(value)[place.key])
        return copied
    if isinstance(value, dict):
        return {**value, place.key: inner(value[place.key])}
    return type(value)(inner(one) if index == place.key else one for index, one in enumerate(value))
