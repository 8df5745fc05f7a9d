"""What of a model is the user's and what Keras's, and what the user's layers and losses name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from raydist.training.user_code import bytecode

# raydist stands among the classes of each model.
_PACKAGES = ("keras", "tf_keras", "tensorflow", "raydist", "builtins")
# Keras's Distiller takes means of its own, and divides them by no number of replicas.
_WITH_OWN_LOSSES = "keras.src.distillation"
# What a layer has besides what it does to a batch.
_NOT_FORWARD = (
    *("__init__", "build", "from_config", "get_config", "compute_output_shape", "compute_output_spec"),
    *("compile", "compute_loss", "compute_metrics", "metrics", "train_step", "test_step", "predict_step"),
)
# Keras's losses that compare the examples of a batch, and their functions.
_OF_WHOLE_BATCH = frozenset(("Dice", "Tversky", "Circle", "dice", "tversky", "circle"))


def names_called(layer: Any) -> set[str]:
    """Returns the names that a class of the user's calls, or reads, in all that is not Keras's.

    Attributes of the layer are left out. Of a function that is one, there are the names that it uses itself.
    Subscripts are `[]`, and a matrix multiplication is `@`.
    """
    members = [
        inspect.unwrap(getattr(member, "fget", member))
        for base in type(layer).__mro__
        if not _is_of(base, *_PACKAGES)
        for name, member in vars(base).items()
        if name not in _NOT_FORWARD
    ]
    own, names = vars(layer), set[str]()
    ahead, seen = [one for one in members if callable(one)], set[int]()
    while ahead:
        function = ahead.pop()
        if id(function) in seen:
            continue
        seen.add(id(function))
        if not inspect.isfunction(function):
            # Of what has no code of Python's, such as a `tf.function`, nothing is known.
            names.add(type(function).__name__)
        elif _is_of(function, *_PACKAGES):
            names.add(function.__name__)
        else:
            found, attributes = bytecode.operations_of(function)
            names |= found
            names |= {one for one in attributes if one not in own and not hasattr(type(layer), one)}
            ahead += [own[one] for one in attributes if one in own and _is_function(own[one])]
    return names


def is_keras(thing: Any) -> bool:
    """Whether a function or class is Keras's own, of either Keras."""
    return _is_of(thing, "keras", "tf_keras")


def own_step_function(model: Any) -> Any:
    """Returns a method of the user's that makes a function of the model's steps without Keras's; or None."""
    for name in ("make_train_function", "make_test_function", "make_predict_function"):
        method = next((vars(base)[name] for base in type(model).__mro__ if name in vars(base)), None)
        if inspect.isfunction(method) and not is_keras(method) and name not in bytecode.names_in(method):
            return method
    return None


def takes_whole_batch(loss: Any) -> bool:
    """Whether a loss is one of Keras's that compare the examples of a batch: by name, or as an object."""
    if isinstance(loss, str):
        return loss in _OF_WHOLE_BATCH
    axes = getattr(loss, "axis", None)
    # Over axes of an example it is computed for each of them.
    is_of_batch = axes is None or 0 in (axes if isinstance(axes, (list, tuple)) else (axes,))
    return _name_of(loss) in _OF_WHOLE_BATCH and is_keras(loss) and is_of_batch


def losses_of_whole_batch(model: Any) -> list[str]:
    """Returns the names of the compiled losses that `takes_whole_batch` finds."""
    found = (loss for loss in _losses_as_given(model) if takes_whole_batch(loss))
    return sorted({loss if isinstance(loss, str) else _name_of(loss) for loss in found})


def has_sum_beside(model: Any) -> bool:
    """Whether a compiled loss is a sum over the examples, beside one that `takes_whole_batch` finds."""
    others = [loss for loss in _losses_as_given(model) if not takes_whole_batch(loss)]
    has_sum = any(getattr(loss, "reduction", None) == "sum" for loss in others)
    return has_sum and bool(losses_of_whole_batch(model))


def keras_kinds(thing: Any) -> list[str]:
    """Returns the names of the classes of either Keras that an object is of."""
    return [base.__name__ for base in type(thing).__mro__ if is_keras(base)]


def _name_of(thing: Any) -> str:
    """Returns the name of a function, or of an object's class."""
    return str(getattr(thing, "__name__", type(thing).__name__))


def _is_of(thing: Any, *packages: str) -> bool:
    """Whether a class or a function is defined in one of these packages."""
    return (getattr(thing, "__module__", None) or "").partition(".")[0] in packages


def _is_function(attribute: Any) -> bool:
    # A layer inside is looked at by itself.
    return callable(attribute) and not hasattr(attribute, "_flatten_layers")


def has_own_losses(model: Any) -> bool:
    """Whether some of the arithmetic of a model's loss, or of its gradients, is the user's, not Keras's."""
    return next(own_sources(model), None) is not None


def are_losses_own(model: Any) -> bool:
    """Whether losses are the user's, and not only what a layer gives to a metric of its own."""
    return next(_own_losses(model), None) is not None


def own_sources(model: Any) -> Iterator[Any]:
    """Yields the functions and classes of the user's that make losses, gradients, or metrics of layers."""
    yield from _own_losses(model)
    # What a layer gives to a metric of its own may be a sum over the examples, as a loss may.
    layers = (one for one in model._flatten_layers() if not is_keras(type(one)))
    yield from (type(one) for one in layers if getattr(one, "_metrics", None))


def _own_losses(model: Any) -> Iterator[Any]:
    own = type(model).train_step, type(model).compute_loss
    yield from (one for one in own if not is_keras(one) or one.__module__.startswith(_WITH_OWN_LOSSES))
    yield from (loss for loss in _compiled_losses(model) if not is_keras(loss))
    yield from (type(layer) for layer in model._flatten_layers() if _adds_losses(type(layer)))
    yield from _own_optimizers(getattr(model, "optimizer", None))


# What an optimizer of either Keras does to losses and gradients before those of the replicas are summed.
_GRADIENT_METHODS = (
    *("minimize", "compute_gradients", "_compute_gradients", "get_gradients", "_get_gradients"),
    *("apply_gradients", "apply", "_transform_loss", "_transform_unaggregated_gradients"),
)
_AGGREGATIONS = ("aggregate_gradients", "_aggregate_gradients", "gradient_aggregator")


def _own_optimizers(optimizer: Any) -> Iterator[Any]:
    """Yields an optimizer's class, and that of one that it wraps, if it makes its gradients by itself."""
    if optimizer is None:
        return
    methods = (getattr(type(optimizer), name, None) for name in _GRADIENT_METHODS)
    if any(one is not None and not is_keras(one) for one in methods) or sums_by_itself(optimizer):
        yield type(optimizer)
    yield from _own_optimizers(vars(optimizer).get("inner_optimizer"))


def sums_by_itself(optimizer: Any) -> bool:
    """Whether a function of the user's adds up an optimizer's gradients over replicas."""
    given = (getattr(optimizer, name, None) for name in _AGGREGATIONS)
    return any(one is not None and not is_keras(one) for one in given)


def _losses_as_given(model: Any) -> Iterator[Any]:
    loss = getattr(model, "loss", None)  # tf_keras's models have none before they are compiled
    yield from _ends(None if inspect.ismethod(loss) else loss)


def _compiled_losses(model: Any) -> Iterator[Any]:
    for loss in _losses_as_given(model):
        if loss is None or isinstance(loss, str):
            continue
        yield loss if inspect.isroutine(loss) else type(loss)


def _ends(losses: Any) -> Iterator[Any]:
    """Yields what `compile(loss=)` has for each output: of a list or dict, nested or not, or of the one."""
    if isinstance(losses, Mapping):
        losses = list(losses.values())
    if isinstance(losses, (list, tuple)):
        for one in losses:
            yield from _ends(one)
    else:
        yield losses


def _adds_losses(cls: type) -> bool:
    """Whether a layer's class that is not Keras's calls `add_loss`."""
    return any(
        "add_loss" in bytecode.names_in(member)
        for base in cls.__mro__
        if not is_keras(base)
        for member in vars(base).values()
    )


def described(function: Any) -> str:
    """Returns the name of a function or class, or of an object's class, and where it is."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__qualname__} ({location_of(named)})"


def location_of(thing: Any) -> str:
    """Returns `file:line` of a function or class; the file alone where there is no source to look into."""
    try:
        return f"{inspect.getsourcefile(thing)}:{inspect.getsourcelines(thing)[1]}"
    except (OSError, TypeError):
        return str(getattr(thing, "__module__", "unknown file"))
