"""What Keras 3 keeps for each thread, in the threads in which a strategy runs its replicas."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import keras
from keras.src.backend.common import global_state
from keras.src.random import seed_generator

from raydist.training.keras_patches.replacement import replaces

# The state of the thread that has called `strategy.run`, as Keras 3 keeps it.
_caller = threading.local()
# What layers that a step makes depend on: their precision, and the numbers in their names.
_TAKEN_OVER = ("dtype_policy", "object_name_uids")


class _Losses(threading.local):
    """What layers were given by `add_loss` in this replica's thread."""

    def __init__(self) -> None:
        self.of_layers: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()


_losses = _Losses()


def prepare() -> Callable[[], None]:
    """Returns what each replica's thread calls first. Called where `strategy.run` is."""
    state = vars(global_state.GLOBAL_STATE_TRACKER)

    def enter() -> None:
        _caller.state = state
        vars(global_state.GLOBAL_STATE_TRACKER).update(
            {name: state[name] for name in _TAKEN_OVER if name in state}
        )

    return enter


@replaces(
    seed_generator,
    "global_seed_generator",
    "...",
    *("4ec13060644e", "54e029e26c17"),  # the latter in 3.10
    because="each thread of a replica makes a generator of its own, in each trace",
)
def global_seed_generator(original: Callable[[], Any]) -> Any:
    state = getattr(_caller, "state", None)
    if state is not None:  # a new thread each time, which would make another generator in each trace
        name = seed_generator.GLOBAL_SEED_GENERATOR
        global_state.set_global_attribute(name, state.get(name))
        state[name] = original()
    return original()


def take_losses(layer: Any) -> None:
    """Takes what a layer was given by `add_loss`, in a replica's thread, out of the list that all share."""
    if _is_replica() and layer._losses:
        _losses.of_layers.setdefault(layer, []).extend(layer._losses)
        layer._losses.clear()


@replaces(
    keras.Layer,
    "_get_own_losses",
    "self",
    because="where a metric's update waits for the others, a replica finds their losses, not its own",
)
def get_own_losses(original: Callable[[Any], list[Any]], self: Any) -> list[Any]:
    return list(_losses.of_layers.get(self, ())) if _is_replica() else original(self)


@replaces(
    keras.Layer,
    "_clear_losses",
    "self",
    because="a replica that begins its step clears the losses of those that have begun before",
)
def clear_losses(original: Callable[[Any], None], self: Any) -> None:
    _losses.of_layers.pop(self, None)
    original(self)


def _is_replica() -> bool:
    return getattr(_caller, "state", None) is not None
