"""What Keras 3 keeps for each thread, in the threads in which a strategy runs its replicas."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from keras.src.backend.common import global_state
from keras.src.random import seed_generator

# The state of the thread that has called `strategy.run`, as Keras 3 keeps it.
_caller = threading.local()
# What layers that a step makes depend on: their precision, and the numbers in their names.
_TAKEN_OVER = ("dtype_policy", "object_name_uids")


def prepare() -> Callable[[], None]:
    """Returns what each replica's thread calls first. Called where `strategy.run` is."""
    state = vars(global_state.GLOBAL_STATE_TRACKER)

    def enter() -> None:
        _caller.state = state
        vars(global_state.GLOBAL_STATE_TRACKER).update(
            {name: state[name] for name in _TAKEN_OVER if name in state}
        )

    return enter


def make_global_seed_generator(original: Callable[[], Any]) -> Callable[[], Any]:
    @functools.wraps(original)
    def global_seed_generator() -> Any:
        state = getattr(_caller, "state", None)
        if state is not None:  # a new thread each time, which would make another generator in each trace
            name = seed_generator.GLOBAL_SEED_GENERATOR
            global_state.set_global_attribute(name, state.get(name))
            state[name] = original()
        return original()

    return global_seed_generator
