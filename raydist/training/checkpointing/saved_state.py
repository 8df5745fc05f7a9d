"""SavedState: what a checkpoint says besides its variables, and learning rates across a restore.

It is JSON, with arrays beside it. Nothing is pickled.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

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
    """Leaves the optimizers among `trackables` their rates, even if their variables are assigned in between.

    Args:
      is_kept: False does nothing.
    """
    rates = [(one, rate) for one in trackables if is_kept and (rate := rate_of(one)) is not None]
    yield
    for optimizer, rate in rates:
        optimizer.learning_rate = rate


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
    """What a checkpoint says besides its variables.

    Attributes:
      step: Steps completed by the run. `epoch`: epochs completed.
      step_in_epoch: Steps completed in the epoch after that.
      history: Logs of each epoch so far, in order: floats, and arrays of metrics that return several numbers.
      fit: How many calls of `ctx.fit` had ended before.
      loop: How many calls of `ctx.train_steps` had ended before; None in a checkpoint of an older raydist.
        `loop_first_step`: the run's steps when the one began that it was written in; None outside of one.
      known_step: What is known of the step that was under way, see `known_steps`; only in a state that is
        kept in memory.
      accumulate: Batches of each step of that `fit`.
      is_stopped: Whether a callback had ended that `fit` at the end of an epoch.
      has_ended: Whether callbacks had been told that the `fit` had ended.
      callbacks: States of callbacks, packed.
      data: Fingerprint of the batches of raydist.data that were trained on; None for other data.
      fit_lengths: Number, epochs and steps of each `fit` so far; see FitLength.
      ended_fits: Number of each `fit` that had ended before, and step and attempt of the checkpoint with its
        end. None in a checkpoint of an older raydist.
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
    known_step: Mapping[str, Any] | None = None
    accumulate: int = 1
    is_stopped: bool = False
    has_ended: bool = False
    callbacks: Mapping[str, Any] = field(default_factory=dict)
    data: int | None = None
    fit_lengths: Sequence[tuple[int, int, int | None]] = ()
    ended_fits: Sequence[tuple[int, int, int]] | None = None
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
        return self.uri.rpartition("/")[2]

    @property
    def is_of_fit(self) -> bool:
        """Whether a `fit` has written it, and not a loop of the user's own or `ctx.save`."""
        return self.eager_seeds is not None

    def fit_length(self, number: int) -> FitLength | None:
        """Returns how long a `fit` was; None if the checkpoint does not say."""
        lengths = (FitLength(epochs, steps) for fit, epochs, steps in self.fit_lengths if fit == number)
        return next(lengths, None)

    def groups(self) -> set[str]:
        """Returns the names of the trackables that were saved."""
        return variables.groups_in(self.files)

    def arrays(self) -> dict[str, np.ndarray]:
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
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]  # numpy's stub takes the keywords for flags
    return buffer.getvalue()
