"""Layers of tf_keras that may draw random numbers, such as Dropout and LSTM, draw from what can be saved.

By itself tf_keras gives them a stateful op, whose state nobody can read. A `tf.random.Generator` in its
place, as tf_keras makes after `enable_tf_random_generator`, takes a seed that the next weight would have had,
so a model begins with other weights than without raydist. The generators made here take none.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tf_keras.src import backend
from tf_keras.src.engine import base_layer

from raydist.training.keras_patches.replacement import replaces


def prepare_replica() -> Callable[[], None]:
    """Returns what each replica's thread calls first. Called where `strategy.run` is.

    A thread has no generator of seeds, and weights that it makes would have seeds of Python's `random`.
    """
    generator = getattr(backend._SEED_GENERATOR, "generator", None)

    def enter() -> None:
        backend._SEED_GENERATOR.generator = generator

    return enter


def take_seeds() -> Callable[[], None]:
    """Takes the state of tf_keras's generator of seeds; returns what brings it back."""
    generator = getattr(backend._SEED_GENERATOR, "generator", None)
    state = None if generator is None else generator.getstate()
    return lambda: None if generator is None else generator.setstate(state)


class _LastSeed:
    """What the seed before was drawn from, and how many were drawn from that."""

    state: Any = None
    count = 0


@replaces(
    backend.RandomGenerator,
    "_set_rng_type",
    "self rng_type ...",
    "ec212c57c9e6",
    because="the default generator of layers such as Dropout has a state that cannot be saved",
)
def _set_rng_type(original: Callable[..., None], self: Any, rng_type: Any, **kwargs: Any) -> None:
    original(self, rng_type, **kwargs)
    self._takes_no_seed = self._rng_type == self.RNG_LEGACY_STATEFUL and rng_type is None
    if self._takes_no_seed:
        self._rng_type = self.RNG_STATEFUL


@replaces(
    base_layer.BaseRandomLayer,
    "get_config",
    "self",
    because="copies of such a layer, as in Bidirectional, ask for the generator that it has got",
)
def _get_config(original: Callable[..., dict[str, Any]], self: Any) -> dict[str, Any]:
    config = original(self)
    if self._random_generator._takes_no_seed:
        config.pop("rng_type", None)
    return config


@replaces(
    backend.RandomGenerator,
    "_create_seed",
    "self user_specified_seed",
    *("48a5c76ead44", "5ea92dbdb167"),  # the latter in 2.18
    because="a generator that tf_keras would not have made takes the seed of the next weight",
)
def _create_seed(original: Callable[..., int], self: Any, user_specified_seed: int | None) -> int:
    if user_specified_seed is not None or not getattr(self, "_takes_no_seed", False):
        return original(self, user_specified_seed)
    # Initializers draw their seeds from this one: it stays as it is, for them to be those of tf_keras.
    source = getattr(backend._SEED_GENERATOR, "generator", None) or random
    state = source.getstate()
    _LastSeed.count = _LastSeed.count + 1 if state == _LastSeed.state else 1
    _LastSeed.state = state
    return random.Random(f"{state} {_LastSeed.count}").randint(1, 10**9)
