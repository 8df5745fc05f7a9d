"""Random state that a resumed run takes up, so that it draws what the undisturbed run would have drawn.

Layers of Keras 3 list their generators among the model's variables. Beside them a checkpoint has the
global generators of Keras and TensorFlow, the generators of tf_keras's layers, and the state from
which TensorFlow seeds its ops outside of functions. Python's and NumPy's generators are not in it: what
draws from them is most often the input, which is read again up to its position and draws anew, and a
restored state would be one too far. Who draws from them in training saves them in a callback's
`get_state()`. Generators inside a `tf.function` that come from an op's seed alone cannot be saved.
"""

from __future__ import annotations

from typing import Any

from raydist.training import tf_private
from raydist.training.keras_patches.adapters import adapter_of
from raydist.training.keras_patches.keras3 import adapter

_KERAS, _TENSORFLOW, _LAYERS = "random-keras", "random-tensorflow", "random-layers"
GROUPS: tuple[str, ...] = (_KERAS, _TENSORFLOW, _LAYERS)


def groups_of(model: Any) -> dict[str, list[Any]]:
    """Returns the variables that hold random state beside the model's own, in groups of a checkpoint."""
    found = {
        _KERAS: adapter.global_random_variables(),
        _TENSORFLOW: tf_private.global_random_variables(),
        **groups_of_layers(model),
    }
    return {name: variables for name, variables in found.items() if variables}


def groups_of_layers(model: Any) -> dict[str, list[Any]]:
    """Returns what of `groups_of` belongs to this model alone: none or one group."""
    variables = adapter_of(model).random_variables(model)
    return {_LAYERS: variables} if variables else {}


def make_global_generators(names: set[str]) -> None:
    """Makes the global generators that a checkpoint has, if nothing has been drawn from them yet."""
    if _KERAS in names:
        adapter.make_global_generator()
    if _TENSORFLOW in names:
        tf_private.make_global_generator()
