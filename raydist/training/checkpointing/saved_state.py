"""SavedState: what a checkpoint says beside its variables, with the state of callbacks and learning rates.

It is JSON, with arrays beside it. Nothing is pickled.
"""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from raydist.errors import UnsupportedError
from raydist.storage.checkpoint_marker import STATE_FILE, decode_state
from raydist.training.checkpointing import variables


def rate_of(optimizer: Any) -> float | None:
    """Returns the learning rate of an optimizer of either Keras; None where a schedule gives it."""
    # A schedule's rate is the optimizer's own affair; tf_keras shows it as a variable all the same.
    given = getattr(getattr(optimizer, "inner_optimizer", optimizer), "_learning_rate", None)
    if any(base.__name__ == "LearningRateSchedule" for base in type(given).__mro__):
        return None
    rate = getattr(optimizer, "learning_rate", None)
    variable = rate if isinstance(rate, tf.Variable) else getattr(rate, "value", None)
    return float(variable.numpy()) if isinstance(variable, tf.Variable) else None


@contextlib.contextmanager
def kept_rates(trackables: Iterable[Any], *, is_kept: bool) -> Iterator[None]:
    """Leaves the optimizers among `trackables` their rates, whatever their variables are assigned meanwhile.

    Args:
      is_kept: False does nothing.
    """
    rates = [(one, rate) for one in trackables if is_kept and (rate := rate_of(one)) is not None]
    yield
    for optimizer, rate in rates:
        optimizer.learning_rate = rate


# By class: those that a restore gives back. All else follows from how the callback was made.
_KERAS_ATTRIBUTES = {
    "EarlyStopping": ("wait", "best", "best_epoch", "stopped_epoch", "best_weights"),
    "ReduceLROnPlateau": ("wait", "best", "cooldown_counter"),
    "ModelCheckpoint": ("best", "epochs_since_last_save"),
}
_KERAS_PACKAGES = ("keras", "tf_keras")
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
        notes.append(f"callback {', '.join(new)} begins anew: the checkpoint has no state of it")
    return notes


def has_stopped(callbacks: Sequence[Any]) -> bool:
    """Whether an EarlyStopping has decided that training ends here."""
    return any(
        name == "EarlyStopping" and callback.stopped_epoch > 0
        for callback in callbacks
        for name in _kinds_of(callback)
    )


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
    return [
        base.__name__
        for base in type(callback).__mro__
        if base.__name__ in _KERAS_ATTRIBUTES and base.__module__.partition(".")[0] in _KERAS_PACKAGES
    ]


ARRAYS_FILE = "state.npz"  # what state.json has no form for


class FitLength(NamedTuple):
    """How long a `fit` was, or is so far.

    Attributes:
      epochs: Epochs that it had begun.
      steps: Steps of all of them; None if its checkpoint is of a raydist that did not count them.
    """

    epochs: int
    steps: int | None


@dataclass(frozen=True, kw_only=True)
class SavedState:
    """What a checkpoint says beside its variables.

    Attributes:
      step: Steps completed by the run. `epoch`: epochs completed.
      step_in_epoch: Steps completed in the epoch after that.
      history: Logs of each epoch so far, in order: floats, and arrays of metrics that return several numbers.
      fit: How many calls of `ctx.fit` had ended before.
      loop: How many calls of `ctx.train_steps` had ended before; None in a checkpoint of an older raydist.
        `loop_first_step`: the run's steps when the one began that it was written in; None outside of one.
      accumulate: Batches of each step of that `fit`.
      is_stopped: Whether a callback had ended that `fit` before its last epoch.
      callbacks: States of callbacks, packed.
      data: Fingerprint of the batches of raydist.data that were trained on; None for other data.
      fit_lengths: Number, epochs and steps of each `fit` so far; see FitLength.
      is_inherited: Whether the run has it from another one, whose params were other ones.
      eager_seeds: Where TensorFlow's seeds for ops stood; None in a loop of the user's own.
      files: The checkpoint's files.
      uri: Where it is, for messages.
    """

    step: int
    epoch: int = 0
    step_in_epoch: int = 0
    history: tuple[Mapping[str, Any], ...] = ()
    fit: int = 0
    loop: int | None = None
    loop_first_step: int | None = None
    accumulate: int = 1
    is_stopped: bool = False
    callbacks: Mapping[str, Any] = field(default_factory=dict)
    data: int | None = None
    fit_lengths: Sequence[tuple[int, int, int | None]] = ()
    is_inherited: bool = False
    eager_seeds: Sequence[Any] | None = None
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    uri: str = ""

    @classmethod
    def read(cls, files: Mapping[str, bytes], *, uri: str) -> SavedState:
        """Returns what a checkpoint's files say; `state.json` has the fields by their names."""
        state = decode_state(files[STATE_FILE])
        history = tuple({name: _unpacked(value) for name, value in logs.items()} for logs in state["history"])
        return cls(**{**state, "history": history}, files=files, uri=uri)

    @property
    def name(self) -> str:
        """The name of the checkpoint's folder."""
        return self.uri.rpartition("/")[2]

    def fit_length(self, number: int) -> FitLength | None:
        """Returns how long a `fit` was; None if the checkpoint does not say."""
        lengths = (FitLength(epochs, steps) for fit, epochs, steps in self.fit_lengths if fit == number)
        return next(lengths, None)

    def groups(self) -> set[str]:
        """Returns the names of the trackables that were saved."""
        return variables.groups_in(self.files)

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the arrays that the state names."""
        if ARRAYS_FILE not in self.files:
            return {}
        with np.load(io.BytesIO(self.files[ARRAYS_FILE]), allow_pickle=False) as arrays:
            return dict(arrays)


def packed_history(history: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the logs of each epoch as JSON."""
    return [{name: np.asarray(value).tolist() for name, value in logs.items()} for logs in history]


def _unpacked(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, list) else value


def encode_arrays(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Returns the content of ARRAYS_FILE."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]  # numpy's stub takes the keywords for flags
    return buffer.getvalue()
