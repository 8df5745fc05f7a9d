"""The state of callbacks in a checkpoint: JSON, with arrays beside it. Nothing is pickled.

Of Keras's own callbacks (either Keras's) those that count epochs without progress and know the best
value are saved, in subclasses too; of a user's callback what its `get_state()` returns, which its
`set_state()` is given back, tuples as lists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from raydist.errors import UnsupportedError
from raydist.training.user_code.code_names import keras_kinds

# By class: those that a restore gives back. All else follows from how the callback was made.
_KERAS_ATTRIBUTES = {
    "EarlyStopping": ("wait", "best", "best_epoch", "stopped_epoch", "best_weights"),
    "ReduceLROnPlateau": ("wait", "best", "cooldown_counter"),
    "ModelCheckpoint": ("best", "epochs_since_last_save"),
}
_ARRAY = "raydist_array"


def states_of(callbacks: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """Returns the state of each callback that has one, by its class and its number among its like."""
    found = ((key, _state_of(callback)) for key, callback in _keyed(callbacks))
    return {key: state for key, state in found if state}


def restore(callbacks: Sequence[Any], states: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Gives callbacks their states back; returns a sentence for each one that the list no longer fits."""
    keyed = dict(_keyed(callbacks))
    for key, state in states.items():
        if key in keyed:
            _restore(keyed[key], state)
    gone = [key for key in states if key not in keyed]
    new = [key for key, callback in keyed.items() if key not in states and _state_of(callback)]
    notes = []
    if gone:
        notes.append(
            f"the checkpoint has a state of callback {', '.join(gone)}, which is not in the list any more"
        )
    if new:
        notes.append(f"callback {', '.join(new)} starts over: the checkpoint has no state of it")
    return notes


def pack(states: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns the states as JSON, and copies of their arrays.

    Raises:
      UnsupportedError: A state holds something else; names the callback.
    """
    arrays: dict[str, np.ndarray] = {}
    return {key: _packed(key, state, arrays) for key, state in states.items()}, arrays


def unpack(packed: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Returns what `pack` was given."""
    if isinstance(packed, list):
        return [unpack(one, arrays) for one in packed]
    if isinstance(packed, dict):
        if packed.keys() == {_ARRAY}:
            return arrays[packed[_ARRAY]]
        return {name: unpack(one, arrays) for name, one in packed.items()}
    return packed


def _packed(key: str, value: Any, arrays: dict[str, np.ndarray]) -> Any:
    value = value.numpy() if hasattr(value, "numpy") else value
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return {name: _packed(key, one, arrays) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_packed(key, one, arrays) for one in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        name = f"{len(arrays):05d}"
        arrays[name] = value.copy()
        return {_ARRAY: name}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise UnsupportedError(
        f"the state of callback {key} holds {type(value).__name__} {str(value)[:80]!r}; return numbers, "
        "strings, None, NumPy arrays, and lists and dicts of them from get_state()"
    )


def _keyed(callbacks: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    numbers: Counter[str] = Counter()
    for callback in callbacks:
        name = type(callback).__qualname__
        yield f"{name}/{numbers[name]}", callback
        numbers[name] += 1


def _state_of(callback: Any) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for kind in _kinds_of(callback):
        names = [name for name in _KERAS_ATTRIBUTES[kind] if hasattr(callback, name)]
        state["keras"] = {name: getattr(callback, name) for name in names}
    if _has_own_state(callback):
        state["own"] = callback.get_state()
    return state


def _restore(callback: Any, state: Mapping[str, Any]) -> None:
    for name, value in state.get("keras", {}).items():
        setattr(callback, name, value)
    if "own" in state and _has_own_state(callback):
        callback.set_state(state["own"])


def _has_own_state(callback: Any) -> bool:
    return all(callable(getattr(callback, name, None)) for name in ("get_state", "set_state"))


def _kinds_of(callback: Any) -> list[str]:
    return [kind for kind in keras_kinds(callback) if kind in _KERAS_ATTRIBUTES]
