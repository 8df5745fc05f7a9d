"""Where the arithmetic of a model's loss is the user's and not Keras's."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from raydist.training.replicas.code_names import is_keras


def has_own_losses(model: Any) -> bool:
    """Whether some of the arithmetic of a model's loss is the user's and not Keras's."""
    return next(own_sources(model), None) is not None


def own_sources(model: Any) -> Iterator[Any]:
    """Yields the functions and classes of the user's that a model's loss comes from."""
    own = type(model).train_step, type(model).compute_loss
    yield from (function for function in own if not is_keras(function))
    yield from (loss for loss in _compiled_losses(model) if not is_keras(loss))
    layers = list(model._flatten_layers())
    yield from (type(layer) for layer in layers if _adds_losses(type(layer)))
    # What a layer gives to a metric of its own may be a sum over the examples, as a loss may.
    yield from (type(one) for one in layers if not is_keras(type(one)) and getattr(one, "_metrics", None))


def _compiled_losses(model: Any) -> Iterator[Any]:
    for loss in tf.nest.flatten(model.loss if not inspect.ismethod(model.loss) else None):
        if loss is None or isinstance(loss, str):
            continue
        yield loss if inspect.isroutine(loss) else type(loss)


def _adds_losses(cls: type) -> bool:
    """Whether a layer's class that is not Keras's calls `add_loss`."""
    return any(
        "add_loss" in code.co_names
        for base in cls.__mro__
        if not is_keras(base)
        for member in vars(base).values()
        if (code := getattr(member, "__code__", None)) is not None
    )
