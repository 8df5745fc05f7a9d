"""Notes on the layers and losses whose results depend on how a global batch is split over replicas."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from raydist import tf_private
from raydist.errors import UnsupportedError
from raydist.spec.text import listed
from raydist.training.checks import dependence, rehearsal
from raydist.training.cluster.virtual_strategy import is_virtual
from raydist.training.replicas import compilation
from raydist.training.user_code import code_names

# What Keras's layers that draw random numbers begin with.
_RANDOM = ("Random", "Gaussian", "Alpha", "RandAugment", "AugMix", "CutMix", "MixUp", "Solarization")
# Functions that treat each value by itself, and what may stand beside them. As they are called, or, for what
# Keras makes of such a function in a functional model, as it is named.
_OF_EACH_VALUE = frozenset(
    "tf keras ops nn math layers activations backend K super __class__ self call float32 dtype range len "
    "enumerate zip "
    "abs add cast clip cos divide elu exp gelu identity leaky_relu log maximum minimum multiply negative pow "
    "power relu rsqrt sigmoid silu sin sqrt square stop_gradient subtract swish tanh truediv true_divide "
    "__operators__ float int bool training mask inputs".split()
)
# Of tf_keras, which calls functions by them.
_FUNCTION_LAYERS = ("Lambda", "TFOpLambda", "SlicingOpLambda", "ClassMethod", "InstanceMethod")


def refuse_stateful(model: Any, strategy: tf.distribute.Strategy) -> None:
    """Raises UnsupportedError, on several replicas, for recurrent layers that continue the batch before.

    A replica has some rows of a batch, and Keras makes as many states as the model's inputs have rows. With
    those of a replica it would run, but the states of replicas would be averaged.
    """
    for layer in model._flatten_layers():
        if getattr(layer, "stateful", False) and any(one.__name__ == "RNN" for one in type(layer).__mro__):
            raise _needs_all_rows(
                f"layer {layer.name} is stateful: its states are those of a whole batch's rows",
                strategy,
                "some",
                "use stateful=False",
            )


@contextmanager
def refusing_constant_rows(model: Any, strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Raises UnsupportedError for a step that fails because it wants as many rows as the whole batch has.

    Or a row that the whole batch has, and a replica's part may not.
    """
    try:
        yield
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        num_replicas, message = strategy.num_replicas_in_sync, str(error)
        node = re.search(r"node ([^ }]+)", message)
        parts = reversed(node[1].split("/") if node else ())
        known = {one.name for one in model._flatten_layers()}
        spelled = (name for part in parts for name in (part, re.sub(r"_\d+$", "", part)))
        layer = f"layer {next((one for one in spelled if one in known), model.name)}"
        if (found := _rows_wanted(message, num_replicas)) is not None:
            own, wanted, unit = found
            raise _needs_all_rows(
                f"{layer} has a constant batch size of {wanted} {unit}",
                strategy,
                str(own),
                "write -1 or tf.shape(x)[0] in its place",
            ) from error
        if num_replicas > 1 and (rows := _rows_beside_none(message)):
            raise UnsupportedError(
                f"{layer} combines {rows} rows of a tensor with 0 rows. If they are parts of a batch that is "
                f"cut at constant rows, such as x[:{rows}] and x[{rows}:], each of {num_replicas} replicas "
                "has fewer rows; put what belongs together into one row, or use one worker with one device"
            ) from error
        asked = re.search(_ROW_OUTSIDE, message)
        index, size = map(int, filter(None, asked.groups())) if asked else (0, 0)
        if not size <= index < num_replicas * size:
            raise
        raise UnsupportedError(
            f"{layer} takes row {index} of a tensor with {size} rows. If that is a batch, each of "
            f"{num_replicas} replicas has only its part; take rows that each part has, or use one worker "
            "with one device"
        ) from error


_SHAPE = r"\[(\d+)[^\]]*\]"
_COMBINED = (
    # A matrix's rows are the other one's columns.
    rf"= (?!MatMul)\w+\[.*input shapes: {_SHAPE}, {_SHAPE}",
    rf"Incompatible shapes: {_SHAPE} vs\. {_SHAPE}",
)
_UNLIKE_ROWS = (
    rf"= BroadcastTo\[.*input shapes: {_SHAPE}, .*input\[1\] = {_SHAPE}",
    *_COMBINED,
    r"Dimension must be (\d+) but is (\d+) for .* = Unpack\[.*axis=0",
    r"evenly divisible by (\d+) but is (\d+)\n.*(?s:.*)input\[0\] = <0>",
    r"params\.shape\[0\]: (\d+) should be equal to indices\.shape\[0\]: (\d+)",
    rf"Shape of tensor \S+ {_SHAPE} is not compatible with expected shape {_SHAPE}",
    r"Dimension 0 in both shapes must be equal, but are (\d+) and (\d+)",
    r"\[set_shape\](?s:.*) = \] \[(\d+)\](?s:.*) = \] \[(\d+)\]",
)


# `x[8]`, and `tf.gather(x, 12)`; one of several indices is rather that of a table.
_ROW_OUTSIDE = (
    r"slice index (\d+) of dimension 0 out of bounds.*input shapes: \[(\d+)"
    r"|indices = (\d+) is not in \[0, (\d+)\)"
)


def _rows_wanted(message: str, num_replicas: int) -> tuple[int, int, str] | None:
    """Returns a replica's rows, the whole batch's, and `rows`; or None.

    Where only the numbers of values are known, these and `values`.
    """
    unit = "rows"
    if split := re.search(r"axis of size (\d+) into pieces of size \[([\d,]+)\](?s:.*) = <0>", message):
        message = f"Incompatible shapes: [{split[1]}] vs. [{sum(map(int, split[2].split(',')))}]"
    if sizes := re.search(rf"a tensor with (\d+) elements to shape {_SHAPE} \((\d+) elements\)", message):
        values, wanted, all_values = map(int, sizes.groups())
        own = values * wanted / max(all_values, 1)
    elif sizes := re.search(r"a tensor with (\d+) values, but the requested shape has (\d+)", message):
        own, wanted = map(int, sizes.groups())
        unit = "values"
    else:
        found = (re.search(one, message) for one in _UNLIKE_ROWS)
        if (sizes := next(filter(None, found), None)) is None:
            return None
        own, wanted = sorted(map(int, sizes.groups()))
    is_part = (
        num_replicas > 1 and own in (wanted // num_replicas, -(-wanted // num_replicas)) and own < wanted
    )
    return (int(own), wanted, unit) if is_part else None


def _rows_beside_none(message: str) -> int | None:
    """Returns the rows of a tensor that is combined with one of no rows; None for another message."""
    found = (re.search(one, message) for one in _COMBINED)
    sizes = sorted(map(int, next((one.groups() for one in found if one), (0, 0))))
    return sizes[1] if sizes[0] == 0 and sizes[1] > 1 else None


def _needs_all_rows(cause: str, strategy: tf.distribute.Strategy, own: str, remedy: str) -> UnsupportedError:
    return UnsupportedError(
        f"{cause}, and each of {strategy.num_replicas_in_sync} replicas has {own} of them; {remedy}, or use "
        "one worker with one device"
    )


def notes_on(model: Any, strategy: tf.distribute.Strategy, *, is_grouped: bool = False) -> Iterator[str]:
    """Yields a sentence for each kind of layer that keeps raydist's first promise from holding.

    Where no step is rehearsed, those that `with_own_state` returns may hold anything.
    """
    if is_grouped:
        yield from _notes_on_groups(list(model._flatten_layers(include_self=False)))
    if strategy.num_replicas_in_sync == 1 or is_virtual(strategy):
        return  # the number of virtual replicas belongs to the run
    layers = list(model._flatten_layers(include_self=False))
    if per_replica := normed_by_replica(layers, strategy):
        yield describe_norms(per_replica)
    stateful = with_own_state(model)
    if stateful and not rehearsal.is_enabled():
        yield describe_state(stateful, is_sure=False)
    random = [one for one in layers if is_known_to_draw(one)]
    if random:
        yield f"{describe_draws(random)}; --virtual-replicas K gives the same on any number of workers"
    for name in code_names.losses_of_whole_batch(model):
        has_axis = name.lower() in ("dice", "tversky")
        yield (
            f"Keras's loss {name} compares the examples of a batch; each replica compares only its own "
            "examples, and gradients are averaged over the replicas, so results depend on their number"
            + ("; with an axis such as (1, 2, 3), it is computed per image" if has_axis else "")
        )
    if code_names.has_sum_beside(model):
        yield (
            "the loss with reduction='sum' is averaged over the replicas as well, because another loss "
            "compares examples, so it is too small by their number; give it the mean, and a loss weight"
        )


def note_on_length(model: Any, params: Mapping[str, Any], *, initial_epoch: int) -> str | None:
    """Returns a sentence for a `fit` of Keras 3 that counts steps otherwise than plain Keras 3; else None.

    Keras 3 counts the step that finds the data ended, in `optimizer.iterations`, where a step is a graph.
    """
    is_keras_3 = any(base.__module__.partition(".")[0] == "keras" for base in type(model).__mro__)
    if not is_keras_3 or model.steps_per_execution != 1 or model.run_eagerly:
        return None
    if params.get("steps") or params["epochs"] - initial_epoch < 2:
        return None
    return (
        "the length of the data is not known: Keras 3 by itself counts one step too many in "
        "optimizer.iterations at the end of each epoch, and raydist counts the steps that were trained, so "
        "Adam and learning rate schedules differ from a plain Keras 3 run, also on one device; apply "
        "tf.data.experimental.assert_cardinality to the dataset, and both count the same"
    )


def with_own_state(model: Any) -> list[Any]:
    """Returns the layers of the user's that have variables that no optimizer trains."""
    return [one for one in model._flatten_layers(include_self=False) if _keeps_own_state(one)]


def own_state(layer: Any) -> list[Any]:
    """Returns the variables of a layer that no optimizer trains."""
    name = (
        "_non_trainable_variables" if hasattr(layer, "_non_trainable_variables") else "_non_trainable_weights"
    )
    return list(getattr(layer, name, ()))


def normed_by_replica(layers: Sequence[Any], strategy: tf.distribute.Strategy) -> list[Any]:
    """Returns the layers that normalise each replica's part of the batch by itself; not of virtual ones."""
    return [] if is_virtual(strategy) else [one for one in layers if _is_per_replica_norm(one)]


def describe_norms(layers: Sequence[Any]) -> str:
    return (
        f"{_names(layers)} normalise each replica's part of the batch by itself, so results depend "
        "on the number of replicas; --sync-batchnorm takes the statistics of the whole batch"
    )


def may_compare(model: Any, *, is_training: bool = True) -> list[Any]:
    """Returns the layers that are not known to treat each example of a batch by itself.

    Of the user's, and with functions of the user's, the model itself too. Not where in training each replica
    normalises its own part, which has a note already.
    """
    layers = list(model._flatten_layers())
    if is_training and any(map(_is_per_replica_norm, layers)):
        return []
    known = {id(one) for one in layers}
    functions = [one for one in getattr(model, "operations", ()) if id(one) not in known]
    return [one for one in (*functions, *layers) if _may_compare(one)]


def describe_comparing(layers: Sequence[Any]) -> str:
    pads = any(_pads_text(one) for one in layers)
    return (
        f"{_names(layers)} make what they give an example depend on the others of the batch, of which each "
        "replica has its own part, so results depend on the number of replicas; one worker with one device "
        "has whole batches"
    ) + ("; set output_sequence_length, so that all batches are padded alike" if pads else "")


def describe_not_compared(layers: Sequence[Any]) -> str:
    return (
        f"whether {_names(layers)} make what they give an example depend on the others of the batch could "
        "not be shown, because they could not be run on a part of a batch"
    )


def describe_state(layers: Sequence[Any], *, is_sure: bool) -> str:
    return (
        f"{_names(layers)} {'' if is_sure else 'may '}update their own state from each replica's part of the "
        "batch, so results depend on the number of replicas"
    )


def describe_draws(layers: Sequence[Any]) -> str:
    return f"{_names(layers)} draw random numbers, so results repeat only with the same number of replicas"


def note_on_step(model: Any, strategy: tf.distribute.Strategy, graph: tf.Graph) -> str | None:
    """Returns a sentence for a traced step that draws random numbers in code of the user's.

    Layers of Keras that draw have their own sentence, and are known by their classes.
    """
    layers = list(model._flatten_layers())
    may_draw = [one for one in layers if not code_names.is_keras(type(one)) or type(one).__name__ == "Lambda"]
    if (
        strategy.num_replicas_in_sync == 1
        or not may_draw
        or any(map(is_known_to_draw, layers))
        or not dependence.draws(graph.as_graph_def())
    ):
        return None
    return (
        f"a training step of {_names(may_draw)} draws random numbers, so results repeat only with the same "
        "number of replicas"
    )


def notes_on_workers(strategy: tf.distribute.Strategy, graph: tf.Graph) -> Iterator[str]:
    """Yields a sentence for what makes the results of a step depend on the replicas that a worker computes.

    TensorFlow gives an operation that draws by a seed of its own that seed by its place in the graph.
    """
    if (sentence := note_on_turns(strategy, graph)) is not None:
        yield sentence
    if not is_virtual(strategy):
        return
    if compilation.is_clustering(jit=tf.config.optimizer.get_jit(), flags=os.environ.get("TF_XLA_FLAGS", "")):
        yield (
            "XLA chooses the parts of the steps that it compiles, which may be others where a worker "
            "computes more replicas, so results may depend on the number of workers; leave set_jit and "
            "--tf_xla_auto_jit out"
        )
    nodes = dependence.nodes_of(graph.as_graph_def())
    if any(one.attr["_XlaMustCompile"].b for one in nodes if "_XlaMustCompile" in one.attr):
        yield (
            "a training step calls a function that XLA compiles (jit_compile=True), and raydist has not "
            "compared such steps on several numbers of workers; raydist reproduce --verify does"
        )
    found = sorted(one for one in {node.op for node in nodes} if tf_private.draws_by_own_seed(one))
    if not found:
        return
    yield (
        f"a training step draws random numbers by TensorFlow's {', '.join(found)}, whose seed depends on how "
        "many replicas a worker computes, so results depend on the number of workers; draw by keras.random "
        "with a SeedGenerator, or by a tf.random.Generator that is made in the strategy's scope"
    )


def note_on_turns(strategy: tf.distribute.Strategy, graph: tf.Graph) -> str | None:
    """Returns a sentence for a step whose replicas change a variable one after another; else None."""
    changed = (one for one in tf_private.changed_variables(graph) if not one.name.startswith("raydist_"))
    outside = [one for one in changed if _changes_in_turn(one, strategy, graph)]
    if not outside:
        return None
    names = (one.name.partition(":")[0] for one in outside)
    return (
        f"a step changes {listed(names, most=5)}, made outside of the strategy's scope, in each replica of "
        "a worker in turn, so results depend on how many a worker computes; make it in the scope"
    )


def _changes_in_turn(variable: Any, strategy: tf.distribute.Strategy, graph: tf.Graph) -> bool:
    """Whether each replica of a worker changes what the one before it has made of a variable.

    A metric that was made outside of the scope adds up its replicas' values, as it does in it.
    """
    if is_virtual(strategy):
        return not tf_private.is_of_strategy(variable)
    return (
        len(strategy.extended.worker_devices) > 1
        and not tf_private.is_of_strategy(variable)
        and variable.aggregation != tf.VariableAggregation.SUM
        and dependence.builds_on_itself(variable, graph)
    )


def _notes_on_groups(layers: list[Any]) -> Iterator[str]:
    norms = [one for one in layers if _is_batchnorm(one) and one.trainable]
    if norms:
        yield (
            f"{_names(norms)} normalise each of the batches that accumulate makes an update of by itself, so "
            "results are not those of one larger batch"
        )
    random = [one for one in layers if is_known_to_draw(one)]
    if random:
        yield (
            f"{_names(random)} draw random numbers for each of the batches that accumulate makes an update "
            "of, so results are not those of one larger batch"
        )


def _is_batchnorm(layer: Any) -> bool:
    return any(base.__name__ == "BatchNormalization" for base in type(layer).__mro__)


def _is_per_replica_norm(layer: Any) -> bool:
    # A frozen one normalises by its moving statistics.
    return _is_batchnorm(layer) and layer.trainable and not getattr(layer, "synchronized", False)


def _may_compare(layer: Any) -> bool:
    name = type(layer).__name__
    if _pads_text(layer):
        return True
    axes = (getattr(layer, one, None) for one in ("axis", "axes"))  # such as of Softmax and Dot
    if any(axis == 0 for one in axes for axis in (one if isinstance(one, list | tuple) else (one,))):
        return True
    if not code_names.is_keras(type(layer)):
        return not code_names.names_called(layer) <= _OF_EACH_VALUE
    if hasattr(layer, "_flatten_layers") and name not in _FUNCTION_LAYERS:
        return False
    symbol = getattr(layer, "symbol", None) or name
    return name == "Lambda" or symbol.rpartition(".")[-1].lower() not in _OF_EACH_VALUE


def _pads_text(layer: Any) -> bool:
    """Whether a layer makes all texts of a batch as long as its longest one."""
    is_dense = getattr(layer, "_output_mode", None) == "int" and not getattr(layer, "_ragged", False)
    is_text = any(base.__name__ == "TextVectorization" for base in type(layer).__mro__)
    return is_text and is_dense and layer._output_sequence_length is None


def is_known_to_draw(layer: Any) -> bool:
    """Whether a layer draws random numbers, as far as it shows without a step."""
    has_rate = bool(getattr(layer, "rate", None)) and "Dropout" in type(layer).__name__
    # A recurrent layer's; others have a layer of that name.
    rates = (getattr(layer, name, None) for name in ("dropout", "recurrent_dropout"))
    drops = any(isinstance(rate, (int, float)) and rate > 0 for rate in rates)
    draws = not code_names.is_keras(type(layer)) and bool(getattr(layer, "_seed_generators", ()))
    return has_rate or drops or draws or type(layer).__name__.startswith(_RANDOM)


def _keeps_own_state(layer: Any) -> bool:
    """Whether a layer of the user's has variables that no optimizer trains, such as moving averages."""
    if code_names.is_keras(type(layer)) or not layer.trainable:
        return False
    return any("float" in str(variable.dtype) for variable in own_state(layer))


def _names(layers: Sequence[Any]) -> str:
    return f"layers {listed((one.name for one in layers), most=5)}"
