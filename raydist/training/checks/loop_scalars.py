"""What the step of a loop returns: numbers by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from raydist.errors import UnsupportedError
from raydist.training.user_code.code_names import described


def scalars_of(returned: Any, *, step_fn: Any) -> dict[str, tf.Tensor]:
    """Returns the numbers that a step returned, by name and in the order of names.

    Those of a dict in the dict are named `outer/inner`, bools are 0 or 1, and of an array it is the mean.

    Raises:
      UnsupportedError: It is not a dict of numbers.
    """
    if not isinstance(returned, Mapping):
        raise UnsupportedError(
            f"step_fn {described(step_fn)} returned {type(returned).__name__}; return a dict of scalars, "
            "such as {'loss': loss}"
        )
    found = {name: _number(name, value, step_fn) for name, value in _leaves(returned)}
    if not found:
        raise UnsupportedError(
            f"step_fn {described(step_fn)} returned an empty dict; return at least one scalar, such as "
            "{'loss': loss}"
        )
    return dict(sorted(found.items()))


def _leaves(returned: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in returned.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value


def _number(name: str, value: Any, step_fn: Any) -> tf.Tensor:
    try:
        tensor = tf.convert_to_tensor(value.flat_values if isinstance(value, tf.RaggedTensor) else value)
    except (TypeError, ValueError):
        kind = type(value).__name__
    else:
        if tensor.dtype.is_floating:
            return tf.reduce_mean(tensor)
        if tensor.dtype.is_bool or tensor.dtype.is_integer:
            return tf.reduce_mean(tf.cast(tensor, tf.float64))
        kind = f"a tensor of type {tensor.dtype.name}"
    raise UnsupportedError(
        f"step_fn {described(step_fn)} returned {kind} as {name!r}; return a number, or leave it out"
    )
