"""What tf_keras knows as `tf.keras` and Keras 3 does not: names, arguments, and the errors about them.

Found by comparing tf_keras 2.21 with Keras 3.15; a test compares what is installed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType


def _words(**folders: str) -> frozenset[str]:
    return frozenset(f"{folder}.{name}" for folder, names in folders.items() for name in names.split())


_METRIC_FUNCTIONS = """kl_divergence log_cosh mean_absolute_error mean_absolute_percentage_error
    mean_squared_error mean_squared_logarithmic_error"""
_REGNET_SIZES = "002 004 006 008 016 032 040 064 080 120 160 320".split()

# Below tf.keras. What stands below one of them is missing as well.
MISSING_NAMES = frozenset(("dtensor", "estimator", "experimental")) | _words(
    applications=" ".join(
        (
            *("regnet", "resnet_rs"),
            *(f"RegNet{kind}{size}" for kind in "XY" for size in _REGNET_SIZES),
            *(f"ResNetRS{depth}" for depth in (50, 101, 152, 200, 270, 350, 420)),
        )
    ),
    backend="""experimental function in_test_phase in_train_phase learning_phase learning_phase_scope
        local_conv1d local_conv2d manual_variable_initialization normalize_batch_in_training placeholder
        print_tensor random_binomial reset_uids set_learning_phase""",
    callbacks="BaseLogger SidecarEvaluatorModelExport experimental",
    constraints="RadialConstraint radial_constraint",
    layers="AbstractRNNCell DenseFeatures LocallyConnected1D LocallyConnected2D experimental",
    losses=f"{_METRIC_FUNCTIONS} Reduction.AUTO",
    metrics=f"{_METRIC_FUNCTIONS} MeanRelativeError MeanTensor experimental",
    models="experimental model_from_config model_from_yaml",
    optimizers="experimental legacy",
    utils="""GeneratorEnqueuer OrderedEnqueuer SequenceEnqueuer SidecarEvaluator StepsPerExecutionTuner
        TimedThread experimental to_ordinal warmstart_embedding_matrix""",
)

# Methods of models, layers, metrics and optimizers, whose names nothing else is likely to have.
MISSING_METHODS = frozenset(
    """reset_states fit_generator evaluate_generator predict_generator get_scaled_loss get_unscaled_gradients
    get_updates get_input_at get_output_at get_input_shape_at get_output_shape_at get_input_mask_at
    get_output_mask_at compute_output_signature aggregate_gradients make_adapt_function add_metric add_update
    autotune_steps_per_execution""".split()
)
# And those whose names others have too: they count where it is known that the object is of Keras.
MISSING_ATTRIBUTES = MISSING_METHODS | frozenset(
    """lr minimize get_gradients get_slot get_slot_names merge_state state_updates updates to_yaml save_spec
    inbound_nodes outbound_nodes input_mask output_mask dynamic loss_scale get_weight_paths
    normalize_weights steps_per_execution""".split()
)

_OF_GENERATORS = frozenset(("workers", "use_multiprocessing", "max_queue_size"))
# Arguments of methods, by the method's name.
METHOD_ARGUMENTS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        **dict.fromkeys(("fit", "evaluate", "predict"), _OF_GENERATORS),
        **dict.fromkeys(("train_on_batch", "test_on_batch"), frozenset(("reset_metrics",))),
        "add_weight": frozenset(("use_resource", "synchronization")),
        "apply_gradients": frozenset(
            ("skip_gradients_aggregation", "experimental_aggregate_gradients", "name")
        ),
        "compile": frozenset(("pss_evaluation_shards",)),
        "save": frozenset(("save_format",)),
        "save_weights": frozenset(("save_format", "options")),
    }
)
# Arguments of classes and functions, by their name below tf.keras; "layers." stands for all in it.
CALL_ARGUMENTS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "activations.relu": frozenset(("alpha",)),
        "callbacks.BackupAndRestore": frozenset(("save_before_preemption",)),
        "callbacks.ModelCheckpoint": frozenset(("period", "options")),
        "layers.": frozenset(("batch_input_shape", "dynamic", "time_major")),
        "mixed_precision.LossScaleOptimizer": frozenset(("dynamic",)),
        "models.save_model": frozenset(("save_format",)),
        "optimizers.": frozenset(("jit_compile", "lr")),
    }
)

# What Keras 3 writes in errors about the rest, and what it then has not.
_MESSAGES = MappingProxyType(
    {
        "`keras.optimizers.legacy` is not supported in Keras 3": "tf.keras.optimizers.legacy",
        "A KerasTensor cannot be used as input to a TensorFlow function": (
            "TensorFlow functions of a model's symbolic inputs"
        ),
        "Invalid filepath extension for saving": "model.save to a path without .keras or .h5",
        "The filename must end in `.weights.h5`": "save_weights to a path without .weights.h5",
        "`ModelCheckpoint`, the filepath provided must end in": "ModelCheckpoint without .weights.h5",
        "The filepath provided must end in `.keras`": "ModelCheckpoint without .keras",
        "File format not supported: filepath=": "reader of SavedModels and of TensorFlow's checkpoints",
        "The `save_format` argument is deprecated in Keras 3": "argument save_format",
        "LossScaleOptimizer no longer supports `dynamic=False`": "argument dynamic of LossScaleOptimizer",
        "Layer `add_metric()` method is deprecated": "add_metric",
        "`name` must be passed as a keyword argument. Received: add_weight(": "add_weight with a name first",
        "Received: aggregation=VariableAggregation": "aggregation of type tf.VariableAggregation",
        "Received: reduction=auto": "tf.keras.losses.Reduction.AUTO",
    }
)
_NO_ATTRIBUTE = re.compile(r"'(\w+)' object has no attribute '(\w+)'")
_NOT_IN_MODULE = re.compile(
    r"module '([\w.]+)' has no attribute '(\w+)'"
    r"|cannot import name '(?P<name>\w+)' from '(?P<module>[\w.]+)'"
    r"|No module named '(?P<whole>[\w.]+)'"
)
_NO_ARGUMENT = re.compile(r"([\w.]+)\(\) got an unexpected keyword argument '(\w+)'")
_NO_ARGUMENTS = re.compile(r"(?:Argument(?:\(s\)|s) not recognized|passed to (\w+)): (\{.*\})", re.DOTALL)
_OF_V1 = re.compile(r"`(\w+)` is not available with Keras 3")


def is_missing(name: str) -> bool:
    """Whether Keras 3 has no such name below `tf.keras`, such as `layers.experimental.preprocessing`."""
    parts = name.split(".")
    return any(".".join(parts[:end]) in MISSING_NAMES for end in range(1, len(parts) + 1))


def advice_on(error: BaseException) -> str | None:
    """Returns what to do about an error of a program that was written for Keras 2; None for another one."""
    what = next(_missing_in(error), None)
    if what is None:
        return None
    return f"Keras 3 has no {what}; --keras legacy runs programs that were written for Keras 2"


def _missing_in(error: BaseException) -> Iterator[str]:
    message = str(error)
    if isinstance(error, AttributeError):
        yield from _missing_attribute(error, message)
    if isinstance(error, AttributeError | ImportError):
        yield from _missing_name(message)
    if isinstance(error, TypeError):
        for function, argument in _NO_ARGUMENT.findall(message):
            owner, _, name = function.rpartition(".")
            called = owner.rpartition(".")[2] if name == "__init__" else name
            if argument in _arguments_of(called):
                yield f"argument {argument} of {called}"
    if isinstance(error, ValueError):
        for called, arguments in _NO_ARGUMENTS.findall(message):
            known = _arguments_of(called) if called else frozenset[str]().union(*_all_arguments())
            yield from (f"argument {one}" for one in re.findall(r"'(\w+)':", arguments) if one in known)
    if isinstance(error, ValueError | ImportError | NotImplementedError):
        yield from (what for text, what in _MESSAGES.items() if text in message)


def _missing_attribute(error: AttributeError, message: str) -> Iterator[str]:
    owner = getattr(error, "obj", None)
    is_keras = any(one.__module__.partition(".")[0] == "keras" for one in type(owner).__mro__)
    # AutoGraph raises the error again, without the object.
    known = MISSING_ATTRIBUTES if is_keras else MISSING_METHODS if owner is None else ()
    yield from (name for _, name in _NO_ATTRIBUTE.findall(message) if name in known)
    yield from (f"tf.compat.v1.layers.{name}" for name in _OF_V1.findall(message))


def _missing_name(message: str) -> Iterator[str]:
    for match in _NOT_IN_MODULE.finditer(message):
        module, name = match["module"] or match[1], match["name"] or match[2]
        whole = match["whole"] or f"{module}.{name}"
        below = re.sub(r"^(keras\._tf_keras\.|tensorflow\.)?keras\.", "", whole)
        # `tf.keras.saving` is there once something has imported it.
        if below != whole and (is_missing(below) or below == "saving"):
            yield f"tf.keras.{below}"


def _arguments_of(called: str) -> frozenset[str]:
    """Returns the arguments that only Keras 2 takes, of a method or class by its last name."""
    known = METHOD_ARGUMENTS.get(called, frozenset())
    for name, arguments in CALL_ARGUMENTS.items():
        if name.endswith((f".{called}", ".")):
            known |= arguments
    return known | (frozenset(("weights",)) if called[:1].isupper() else frozenset())


def _all_arguments() -> Iterator[frozenset[str]]:
    yield from METHOD_ARGUMENTS.values()
    yield from CALL_ARGUMENTS.values()
