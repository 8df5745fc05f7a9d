"""Cuts each global batch into one slice per replica, and weighs each slice by its number of examples.

In come whole batches, or rows of them: of pipelines (input/cut.py), of raydist.data (input/recipes.py), and
those that users pass to `train_on_batch`, `test_on_batch` and `predict_on_batch`. Out go `Slice`s, which
`run_slice` runs a step on. stepping/model_steps.py and trainers/custom_loop.py call that on each replica.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from raydist import tf_private
from raydist.errors import UnsupportedError
from raydist.training.cluster import worker_shares
from raydist.training.replicas.model_states import LossRule
from raydist.training.replicas.replica_share import SHARE_TYPE, use_share


class Slice(NamedTuple):
    """One replica's part of a global batch.

    Attributes:
      batch: The examples, in the structure of the dataset; a padding example where
        `num_examples` is 0.
      num_examples: Genuine examples in `batch`, scalar int32.
      num_global: Examples in the global batch, scalar int32.
    """

    batch: Any
    num_examples: tf.Tensor
    num_global: tf.Tensor

    @property
    def share(self) -> tf.Tensor:
        """This replica's part of the global batch, a scalar; sums to 1 over the replicas."""
        return tf.math.divide_no_nan(
            tf.cast(self.num_examples, SHARE_TYPE), tf.cast(self.num_global, SHARE_TYPE)
        )


class EvenSlice(NamedTuple):
    """One replica's part of a global batch of which every replica has as many examples."""

    batch: Any


class Shard(NamedTuple):
    """One replica's part of data that TensorFlow, or the user, has divided among the replicas."""

    batch: Any


# What each replica's step gets of its batch. The type says that the batch is cut, which its rows do not show.
PARTS = (Slice, EvenSlice, Shard)


def as_part(element: Any) -> Any:
    """Returns an element of distributed data as what it is: a part of a batch."""
    return element if isinstance(element, PARTS) else Shard(element)


def run_slice(
    step_fn: Callable[[Any], Any],
    element: Any,
    *,
    kept: Sequence[tf.Variable] = (),
    rule: LossRule = LossRule.SCALED,
    is_model_step: bool = False,
    is_evaluation: bool = False,
) -> Any:
    """Runs `step_fn` on one replica's batch, with its share known to the losses. Returns what it returns.

    Args:
      kept: Variables that a padding example must not change, see `keep_on_padding`.
    """
    share = element.share if isinstance(element, Slice) else None

    def run() -> Any:
        with use_share(share, rule, is_model_step=is_model_step, is_evaluation=is_evaluation):
            return step_fn(own_rows_of(element))

    return keep_on_padding(kept, element, run)


def doubled(batch: Any) -> Any:
    """Returns a structure of `[batch, ...]` components with all of its rows twice."""

    def twice(component: Any) -> Any:
        if isinstance(component, tf.SparseTensor):
            return tf.sparse.concat(0, [component, component])
        return tf.concat([component, component], axis=0)

    return tf.nest.map_structure(twice, batch)


def drop_padding(outputs: Any, element: Any) -> Any:
    """Cuts the rows that a padding example made off the outputs (a structure of tensors).

    All of them, as a model may make several rows of an example.
    """
    if not isinstance(element, Slice):
        return outputs
    is_given = element.num_examples > 0
    return tf.nest.map_structure(lambda one: rows(one, 0, tf.where(is_given, num_rows(one), 0)), outputs)


def keep_on_padding(variables: Sequence[tf.Variable], element: Any, run: Callable[[], Any]) -> Any:
    """Returns `run()`; after a padding example `variables` (metrics) get their old values back."""
    if not isinstance(element, Slice) or not variables:
        return run()
    before = [tf.identity(variable) for variable in variables]
    outputs = run()

    def put_back() -> tf.Tensor:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)
        return tf.constant(0)

    tf.cond(element.num_examples > 0, lambda: tf.constant(0), put_back)
    return outputs


def slice_of(batch: Any, replica: int, num_replicas: int, shares: Sequence[int] = ()) -> Slice:
    """Returns one replica's slice of a global batch.

    Args:
      shares: As `data.order.steps.cut` takes them.

    Raises:
      UnsupportedError: The components of the batch have not as many rows; TensorFlow's
        InvalidArgumentError where that is known only when it runs.
    """
    num_global = _common_rows(batch)
    start, size = bounds(num_global, replica, num_replicas, shares)
    # A padding example for an empty slice: the first example of the batch, which always exists.
    first = tf.where(size > 0, start, 0)
    return _cut(batch, first, size, num_global, lambda one: None if shares else one.shape[0], num_replicas)


def slice_of_part(
    part: Any,
    replica: int,
    num_replicas: int,
    shares: Sequence[int] = (),
    *,
    first: int,
    num_global: tf.Tensor,
) -> Slice:
    """Returns one replica's slice of a global batch of which only a part is there.

    Args:
      part: The rows of successive replicas, and after them the first row of the global batch if one of
        them has no rows.
      first: The first of these replicas.
      num_global: Rows in the global batch: an int where all have as many, else scalar int32.
    """
    start, size = bounds(num_global, replica, num_replicas, shares)
    begin, _ = bounds(num_global, first, num_replicas, shares)
    known = num_global if isinstance(num_global, int) and not shares else None
    padding = num_rows(part) - 1
    own = tf.where(size > 0, start - begin, padding)
    return _cut(part, own, size, num_global, lambda one: known, num_replicas)


def bounds(num_global: Any, replica: int, num_replicas: int, shares: Sequence[int] = ()) -> tuple[Any, Any]:
    """Returns the first row of a replica's slice of a global batch and how many there are, which may be 0.

    For an int, or an integer tensor.
    """
    if shares:
        own_worker, local = divmod(replica, num_replicas // len(shares))
        before, size_of_worker = worker_shares.rows_of(num_global, own_worker, shares)
        first, size = bounds(size_of_worker, local, num_replicas // len(shares))
        return before + first, size
    base, extra = num_global // num_replicas, num_global % num_replicas
    if isinstance(num_global, int):
        return replica * base + min(replica, extra), base + (replica < extra)
    return replica * base + tf.minimum(extra, replica), base + tf.cast(replica < extra, num_global.dtype)


def _cut(
    there: Any,
    first: Any,
    size: Any,
    num_global: Any,
    rows_in: Callable[[Any], int | None],
    num_replicas: int,
) -> Slice:
    """Returns the slice of `size` rows from `first` on, or of the one row there if `size` is 0.

    Args:
      rows_in: How many rows all global batches have of a component; None where that is not known.
    """
    taken = tf.maximum(size, 1)

    def part(component: Any) -> Any:
        cut = rows(component, first, taken)
        known = rows_in(component) if isinstance(component, tf.Tensor) else None
        if known is None:
            return cut
        size_of_all = known // num_replicas if known % num_replicas == 0 else None
        return tf.ensure_shape(cut, [size_of_all, *component.shape[1:]])

    return Slice(
        batch=tf.nest.map_structure(part, there),
        num_examples=tf.convert_to_tensor(size, tf.int32),
        num_global=num_global,
    )


def _common_rows(batch: Any) -> Any:
    """Returns the examples of a batch, all of whose components have that many rows."""
    counts = [num_rows(component) for component in tf.nest.flatten(batch, expand_composites=False)]
    known = {count for count in counts if isinstance(count, int)}
    if len(known) > 1:
        raise UnsupportedError(f"{UNLIKE_ROWS}: {sorted(known)}")
    checks = [
        tf.debugging.assert_equal(count, counts[0], message=UNLIKE_ROWS)
        for count in counts[1:]
        if not (isinstance(count, int) and isinstance(counts[0], int))
    ]
    if not checks:
        return counts[0]
    with tf.control_dependencies(checks):
        return tf.identity(counts[0])


UNLIKE_ROWS = (
    "the components of a batch have different numbers of rows, so raydist cannot cut it for several replicas "
    "(of a graph, for example, nodes and edges); use ragged tensors with a row for each example, or give "
    "train_data as a function of a tf.distribute.InputContext that makes the batches of each replica"
)


def check_has_rows(element_spec: Any) -> None:
    """Raises UnsupportedError for what has no row for each example.

    Those are composite tensors that are not TensorFlow's, such as those of graphs, and data without batches.
    """
    for name in foreign_types(element_spec):
        raise UnsupportedError(
            f"the data have a {name}, which raydist cannot cut by rows for several replicas; build it inside "
            "the model from tensors with a row for each example, or use one worker with one device"
        )
    for spec in tf.nest.flatten(element_spec, expand_composites=False):
        if getattr(spec, "shape", tf.TensorShape(None)).rank == 0:
            raise UnsupportedError(
                "an element of the dataset has a scalar where a batch has a row for each example; add "
                ".batch(GLOBAL_BATCH_SIZE) to the dataset"
            )


def foreign_types(element_spec: Any) -> list[str]:
    """Returns the names of the types of composite tensors that are not TensorFlow's, such as of graphs."""
    specs = tf.nest.flatten(element_spec, expand_composites=False)
    return [one.value_type.__name__ for one in specs if not type(one).__module__.startswith("tensorflow.")]


def is_even(element_spec: Any, num_replicas: int) -> bool:
    """Whether the replicas have as many rows as one another in every batch, as its shapes show."""
    sizes = {spec.shape[0] for spec in tf.nest.flatten(element_spec)}
    return len(sizes) == 1 and None not in sizes and sizes.pop() % num_replicas == 0


def num_rows(batch: Any) -> Any:
    """Returns the examples of a batch, by its first component: an int if known, else scalar int32."""
    component = tf.nest.flatten(batch, expand_composites=False)[0]
    if isinstance(component, tf.SparseTensor):
        return tf.cast(component.dense_shape[0], tf.int32)
    if isinstance(component, tf.RaggedTensor):
        return tf.cast(component.nrows(), tf.int32)
    return component.shape[0] if component.shape[0] is not None else tf.shape(component)[0]


def rows(batch: Any, start: Any, size: Any) -> Any:
    """Returns `size` rows from `start` on of each tensor of a batch, dense, sparse or ragged."""

    def cut(component: Any) -> Any:
        if isinstance(component, tf.SparseTensor):
            rank = tf.shape(component.dense_shape)[0]
            begin = tf.concat([[tf.cast(start, tf.int64)], tf.zeros([rank - 1], tf.int64)], axis=0)
            extent = tf.concat([[tf.cast(size, tf.int64)], component.dense_shape[1:]], axis=0)
            return tf.sparse.slice(component, begin, extent)
        if component.dtype.is_quantized:  # TensorFlow slices few such types
            plain = tf.bitcast(component, component.dtype.name[1:])
            return tf.bitcast(plain[start : start + size], component.dtype)
        return component[start : start + size]

    return tf.nest.map_structure(cut, batch)


def zeros_of(specs: Any) -> Any:
    """Returns zeros of a structure of specs, or of a model's symbolic inputs; a size that is unknown is 1.

    A graph does not know it either: layers that want a certain one can be traced.
    """

    def zeros(spec: Any) -> Any:
        if not hasattr(spec, "dtype"):  # a composite tensor that is not TensorFlow's
            return tf.nest.map_structure(zeros, spec, expand_composites=True)
        of_one = tf.zeros([size or 1 for size in spec.shape], spec.dtype)
        return tf.compat.v1.placeholder_with_default(of_one, spec.shape)

    return tf.nest.map_structure(zeros, specs)


def own_rows_of(element: Any) -> Any:
    """Returns a replica's batch. A padding example has something to compute on, too."""
    return element.batch if isinstance(element, PARTS) else element


def has_known_rows(iterator: Any) -> bool:
    """Whether each batch that a replica gets has as many rows, which a step can read from its shape."""
    own = own_rows_of(tf_private.spec_of_replica(getattr(iterator, "element_spec", None)))
    shapes = [getattr(one, "shape", tf.TensorShape(None)) for one in tf.nest.flatten(own)]
    return all(one.rank is not None and one[:1].is_fully_defined() for one in shapes)


def on_own_rows(
    strategy: tf.distribute.Strategy, step: Callable[[Any], Any], element: Any
) -> tuple[Callable[[Any], Any], Any]:
    """Returns the batch of this worker's first replica, and `step` for what of it is there."""
    return _without_none(step, own_rows_of(strategy.experimental_local_results(element)[0]))


def _without_none(step: Callable[[Any], Any], batch: Any) -> tuple[Callable[[Any], Any], Any]:
    """Returns a step on the components that are there, and these; `train_on_batch` has None for weights."""
    components = tf.nest.flatten(batch)
    given = [tf.convert_to_tensor(one) if isinstance(one, np.ndarray) else one for one in components]

    def on_given(present: Any) -> Any:
        left = iter(present)
        return step(
            tf.nest.pack_sequence_as(batch, [None if one is None else next(left) for one in components])
        )

    return on_given, [one for one in given if one is not None]


def relaxed_spec(component: Any, num_rows: int | None = None) -> Any:
    """Returns the type of a component, which may be a type already, with that many rows; None for any."""
    spec = component if isinstance(component, tf.TypeSpec) else tf.type_spec_from_value(component)
    if getattr(spec, "shape", tf.TensorShape(None)).rank is None:
        return spec
    shape = tf.TensorShape([num_rows, *spec.shape[1:]])
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
    known = (tf.TensorSpec, tf.SparseTensorSpec)
    return type(spec)(shape, spec.dtype) if type(spec) in known else spec


def for_replicas(batch: Any, strategy: tf.distribute.Strategy) -> Any:
    """Returns a global batch as a `Slice` of each local replica; as it is where there is one replica.

    What is cut already stays as it is; so does what has no rows, such as a list of Python numbers, which each
    replica then takes whole.
    """
    if isinstance(batch, PARTS):
        return batch
    num_replicas, shares = strategy.num_replicas_in_sync, worker_shares.of(strategy)
    components = tf.nest.flatten(batch)
    given = [one for one in components if one is not None]  # such as no weights
    is_tpu = isinstance(strategy, tf.distribute.TPUStrategy)  # needs static shapes
    if num_replicas == 1 or is_tpu or not all(map(_has_rows, given)):
        return batch
    tensors = [tf.convert_to_tensor(one) if isinstance(one, np.ndarray) else one for one in given]
    cut = strategy.experimental_distribute_values_from_function(
        lambda context: slice_of(tensors, context.replica_id_in_sync_group, num_replicas, shares)
    )
    present = iter(cut.batch)
    parts = [None if one is None else next(present) for one in components]
    return cut._replace(batch=tf.nest.pack_sequence_as(batch, parts))


def _has_rows(component: Any) -> bool:
    if isinstance(component, np.ndarray):
        return component.ndim > 0
    is_tensor = isinstance(component, (tf.Tensor, tf.SparseTensor, tf.RaggedTensor))
    return is_tensor and component.shape.rank not in (None, 0)
