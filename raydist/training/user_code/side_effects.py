"""Undoes what rehearsals of the user's code change in Python: generators, numbers, and data in containers.

A rehearsal is a call that the user has not made, such as the trace by which a step is checked. What runs no
operation changes no variable and no table. What Python does while it traces is undone here.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import logging
import random
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from raydist import tf_private
from raydist.training.user_code import bytecode, code_names

logger = logging.getLogger(__name__)

# Each takes a state of Python, and returns what brings it back.
_takers: list[Callable[[], Callable[[], None]]] = [
    lambda: functools.partial(random.setstate, random.getstate()),
    lambda: functools.partial(np.random.set_state, np.random.get_state()),
    lambda: functools.partial(tf_private.set_eager_seeds, tf_private.eager_seeds()),
]
_CONTAINERS = tf_private.CONTAINERS
_NUMBERS = (int, float, complex, str)
# More is a program's data, which no step changes.
_MOST_OBJECTS, _MOST_ELEMENTS = 20_000, 1000
_LIBRARIES = {"keras", "tf_keras", "tensorflow", "numpy", "raydist", *sys.stdlib_module_names} - {"__main__"}


def keep_generator(take: Callable[[], Callable[[], None]]) -> None:
    """Adds a generator that `undone` brings back.

    Args:
      take: Takes its state, and returns a function that sets it to that.
    """
    _takers.append(take)


@contextlib.contextmanager
def undone(*roots: Any) -> Iterator[None]:
    """Undoes what the block does to generators, and to what can be reached from `roots`.

    Generators are Python's `random`, NumPy's, that of TensorFlow's eager operations, and tf_keras's. Of
    objects it undoes numbers and strings, tensors of graphs, and containers to which only such things were
    added. Flags and layers stay as they are set: what a step makes in its first call is still there. If a
    layer was built in the block, neither it nor the generators that have drawn its weights are set back.
    """
    generators, found = [take() for take in _takers], _Objects(roots)
    try:
        yield
    finally:
        if not found.was_built():
            for restore in generators:
                restore()
        found.restore()


class _Objects:
    """The user's objects that can be reached, and what they hold when this is made."""

    def __init__(self, roots: tuple[Any, ...]) -> None:
        self._layers: dict[int, tuple[Any, bool, int]] = {}  # whether it was built, and its own weights
        self._restores: list[tuple[Any, Callable[[], None]]] = []
        seen, ahead = set[int](), collections.deque((one, None) for one in roots)
        while ahead and len(seen) < _MOST_OBJECTS:
            one, owner = ahead.popleft()
            if id(one) not in seen:
                seen.add(id(one))
                ahead += self._taken(one, owner, is_root=any(one is root for root in roots))

    def was_built(self) -> bool:
        return any(_num_weights(layer) > num_weights for layer, _, num_weights in self._layers.values())

    def restore(self) -> None:
        """Undoes what has changed, see `undone`."""
        for owner, restore in self._restores:
            if owner is None or not self._is_new(id(owner)):
                try:
                    restore()
                except Exception as error:  # the user's class
                    logger.info("what a rehearsal changed is not undone: %s", error, exc_info=True)

    def _is_new(self, number: int) -> bool:
        layer, was_built, _ = self._layers.get(number, (None, True, 0))
        return not was_built and bool(getattr(layer, "built", False))

    def _taken(self, one: Any, owner: Any, *, is_root: bool) -> Iterator[tuple[Any, Any]]:
        """Takes what an object holds, and yields what can be reached from it with whose attribute it is."""
        if isinstance(one, _CONTAINERS):
            before = _content(one)
            self._restores.append((owner, lambda: _restore_content(one, before)))
            held = before.values() if isinstance(before, dict) else before
            yield from ((each, owner) for each in held) if len(before) <= _MOST_ELEMENTS else ()
        elif isinstance(one, tuple):
            yield from ((each, owner) for each in one)
        elif isinstance(one, types.MethodType):
            yield from ((one.__func__, None), (one.__self__, None))
        elif isinstance(one, types.FunctionType):
            yield from self._taken_of_function(one)
        elif (restore := _restored_generator(one)) is not None:
            self._restores.append((None, restore))
        elif isinstance(one, (type, tf.distribute.DistributedValues)):
            return  # any attribute of a variable that is synchronized on read reads it: a collective
        elif callable(function := getattr(one, "python_function", None)):  # of tf.function
            yield function, None
        elif is_root or _is_users(type(one)) or hasattr(one, "_flatten_layers"):
            yield from self._taken_of_object(one, is_root=is_root)

    def _taken_of_function(self, function: types.FunctionType) -> Iterator[tuple[Any, Any]]:
        is_users = _is_users(function)
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # an empty one
                value = cell.cell_contents
                if is_users:
                    self._restores.append((None, functools.partial(_restore_cell, cell, value)))
                yield value, None
        if not is_users:
            return
        names = {name: function.__globals__.get(name) for name in bytecode.names_in(function)}
        self._restores.append((None, lambda: _restore_numbers(function.__globals__, names)))
        yield from ((value, None) for value in names.values())

    def _taken_of_object(self, one: Any, *, is_root: bool) -> Iterator[tuple[Any, Any]]:
        if hasattr(one, "_flatten_layers"):
            # A model's first call builds it, and is no other than the next.
            was_built = hasattr(one, "train_step") or bool(getattr(one, "built", True))
            self._layers[id(one)] = one, was_built, _num_weights(one)
            yield from ((layer, None) for layer in one._flatten_layers(include_self=False))
            if is_root and hasattr(one, "compute_loss"):
                yield from ((source, None) for source in code_names.own_sources(one))
        if is_root or _is_users(type(one)):
            before = dict(getattr(one, "__dict__", {}))
            self._restores.append((one, lambda: _restore_attributes(one, before)))
            yield from ((value, one) for value in before.values())
            for kind in type(one).__mro__:
                if _is_users(kind):
                    yield from ((value, None) for value in vars(kind).values() if callable(value))


def _num_weights(layer: Any) -> int:
    kinds = (
        "_trainable_variables",
        "_non_trainable_variables",
        "_trainable_weights",
        "_non_trainable_weights",
    )
    return sum(len(vars(layer).get(kind, ())) for kind in kinds)


def _restored_generator(one: Any) -> Callable[[], None] | None:
    """Returns what brings a generator of Python's or NumPy's back to its state now; None for all else."""
    if isinstance(one, random.Random):
        return functools.partial(one.setstate, one.getstate())
    if isinstance(one, np.random.RandomState):
        return functools.partial(one.set_state, one.get_state())
    if isinstance(one, np.random.Generator):
        return functools.partial(setattr, one.bit_generator, "state", one.bit_generator.state)
    return None


def _is_users(thing: Any) -> bool:
    """Whether a class or a function is neither Python's nor of a library that keeps state in order itself."""
    return (getattr(thing, "__module__", None) or "").partition(".")[0] not in _LIBRARIES


def _content(container: Any) -> Any:
    return dict(container) if isinstance(container, dict) else list(container)


def _restore_attributes(owner: Any, before: dict[str, Any]) -> None:
    for name, value in list(getattr(owner, "__dict__", {}).items()):
        if name in before and (_is_other_number(before[name], value) or _is_other_graph(before[name], value)):
            setattr(owner, name, before[name])
        elif name not in before and (
            type(getattr(type(owner), name, None)) in _NUMBERS or _is_other_graph(None, value)
        ):
            delattr(owner, name)  # it was the class's, or is a tensor of the rehearsal's


def _restore_numbers(names: dict[str, Any], before: dict[str, Any]) -> None:
    names.update({name: value for name, value in before.items() if _is_other_number(value, names.get(name))})


def _restore_cell(cell: types.CellType, before: Any) -> None:
    if _is_other_number(before, cell.cell_contents) or _is_other_graph(before, cell.cell_contents):
        cell.cell_contents = before


def _restore_content(container: Any, before: Any) -> None:
    """Brings a container's content back, unless more than data has come into it: a layer, or a variable."""
    content = _content(container)
    if len(content) > len(before) + _MOST_ELEMENTS or _is_same(content, before):
        return
    known = {id(one) for one in (before.values() if isinstance(before, dict) else before)}
    held = content.values() if isinstance(content, dict) else content
    if not all(id(one) in known or _is_data(one) for one in held):
        return
    tf_private.set_content(container, before)


def _is_same(content: Any, before: Any) -> bool:
    if len(content) != len(before):
        return False
    if isinstance(content, dict):
        return all(key in before and before[key] is value for key, value in content.items())
    return all(one is other for one, other in zip(content, before, strict=True))


def _is_data(value: Any) -> bool:
    if isinstance(value, _CONTAINERS):
        return all(map(_is_data, value.values() if isinstance(value, dict) else value))
    if isinstance(value, tuple):
        return all(map(_is_data, value))
    if isinstance(value, tf.Variable):  # made once: what made it does not make it again
        return False
    return value is None or isinstance(value, (*_NUMBERS, np.ndarray, np.generic)) or tf.is_tensor(value)


def _is_other_number(before: Any, value: Any) -> bool:
    return type(before) in _NUMBERS and type(value) in _NUMBERS and before != value


def _is_other_graph(before: Any, value: Any) -> bool:
    """Whether a value holds a tensor of a graph, and is another than before."""
    return value is not before and isinstance(value, tf.Tensor) and not hasattr(value, "numpy")
