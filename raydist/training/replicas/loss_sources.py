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


def are_losses_own(model: Any) -> bool:
    """Whether losses are the user's, and not only what a layer gives to a metric of its own."""
    return next(_own_losses(model), None) is not None


def own_sources(model: Any) -> Iterator[Any]:
    """Yields the functions and classes of the user's that make losses, or metrics of layers."""
    yield from _own_losses(model)
    # What a layer gives to a metric of its own may be a sum over the examples, as a loss may.
    layers = (one for one in model._flatten_layers() if not is_keras(type(one)))
    yield from (type(one) for one in layers if getattr(one, "_metrics", None))


def _own_losses(model: Any) -> Iterator[Any]:
    own = type(model).train_step, type(model).compute_loss
    yield from (function for function in own if not is_keras(function))
    yield from (loss for loss in _compiled_losses(model) if not is_keras(loss))
    yield from (type(layer) for layer in model._flatten_layers() if _adds_losses(type(layer)))


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
