"""Turns a recipe of batches into a `tf.data.Dataset` of one input pipeline's part of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from raydist.data.order.steps import Steps, cut
from raydist.data.reader import ALIGNMENT
from raydist.data.recipe import Recipe

_LAST_BLOCK = 2**63 - 2
_BLOCK_BYTES = 4e6
_MAX_BLOCK_STEPS = 64
_IN_PARALLEL = {"num_parallel_calls": tf.data.AUTOTUNE, "deterministic": True}
# Takes a block (scalar int64) and the types of what it returns, and reads in a TensorFlow graph.
ReadOp = Callable[[tf.Tensor, Sequence[tf.DType]], Sequence[tf.Tensor]]


@dataclass(frozen=True)
class Part:
    """The replicas of one input pipeline: `num_local` of `num_replicas`, from `first` on.

    Attributes:
      shares: As `cut` takes them.
    """

    first: int = 0
    num_local: int = 1
    num_replicas: int = 1
    shares: tuple[int, ...] = ()

    @classmethod
    def of(cls, input_context: tf.distribute.InputContext | None, shares: tuple[int, ...] = ()) -> Part:
        if input_context is None:
            return cls()
        num_replicas = input_context.num_replicas_in_sync
        own = getattr(input_context, "own_replicas", None) or range(
            *cut(num_replicas, input_context.input_pipeline_id, input_context.num_input_pipelines)
        )
        return cls(own.start, len(own), num_replicas, shares)

    @property
    def replicas(self) -> range:
        return range(self.first, self.first + self.num_local)

    def spans(self, num_global: int) -> list[tuple[int, int]]:
        """Returns first row and end of each of its replicas in a batch; neighbours, in order."""
        return [cut(num_global, replica, self.num_replicas, self.shares) for replica in self.replicas]


@dataclass(frozen=True)
class Blocks:
    """Steps in blocks: a call into Python costs as much as many a batch.

    All batches of a block have one size, so an epoch's last batch, if it is not full, is a block of its own.

    Attributes:
      size: Steps in a block, at most.
    """

    steps: Steps
    size: int

    @classmethod
    def of(cls, recipe: Recipe, part: Part) -> Blocks:
        spans = part.spans(recipe.global_batch_size)
        rows = max(1, spans[-1][1] - spans[0][0])
        size = int(_BLOCK_BYTES // (rows * recipe.source.num_bytes))
        if recipe.source.most_at_once is not None:
            size = min(size, recipe.source.most_at_once // rows)
        return cls(recipe.steps, max(1, min(size, _MAX_BLOCK_STEPS, recipe.steps.num_full)))

    @property
    def _full_per_epoch(self) -> int:
        return -(-self.steps.num_full // self.size)

    @property
    def per_epoch(self) -> int:
        return self._full_per_epoch + (self.steps.last_size > 0)

    def locate(self, step: Any) -> tuple[Any, Any]:
        """Returns the block of a step, and the step's place in it; of an int, or a scalar int64 tensor."""
        epoch, step_in_epoch = step // self.steps.per_epoch, step % self.steps.per_epoch
        # A step beyond the full ones: 1, else 0.
        is_last = step_in_epoch // self.steps.num_full
        number = step_in_epoch // self.size * (1 - is_last) + self._full_per_epoch * is_last
        return epoch * self.per_epoch + number, step_in_epoch % self.size * (1 - is_last)

    def span(self, block: int) -> tuple[int, int]:
        """Returns a block's first step, of the run, and its number of steps."""
        epoch, number = divmod(block, self.per_epoch)
        first = min(number * self.size, self.steps.num_full)
        is_last = number == self._full_per_epoch
        count = 1 if is_last else min(self.size, self.steps.num_full - first)
        return epoch * self.steps.per_epoch + first, count


class BlockReader:
    """Reads one pipeline's part of a block of steps: what the graph calls back."""

    def __init__(self, recipe: Recipe, part: Part, *, pads: bool) -> None:
        """Takes what to read; with `pads`, a replica without examples gets the batch's first one."""
        self._recipe = recipe
        self._part = part
        self._pads = pads
        self._blocks = Blocks.of(recipe, part)
        self._reader = recipe.reader()

    def __call__(self, block: Any) -> list[np.ndarray]:
        """Returns, for each local replica, the fields of its examples, their number, and the global number.

        Each of them has the steps of the block as its first dimension.
        """
        steps, part = self._recipe.steps, self._part
        step, count = self._blocks.span(int(block))
        num_global = steps.size_of(steps.locate(step)[1])
        spans = part.spans(num_global)
        # Neighbours, so that one reading serves all.
        begin, end = spans[0][0], spans[-1][1]
        rows = self._reader.block(step, count, begin, end) if begin < end else []
        outputs: list[np.ndarray] = []
        for first, stop in spans:
            if first < stop:
                own = [array[:, first - begin : stop - begin] for array in rows]
            else:
                own = [array[:, : int(self._pads)] for array in self._reader.block(step, count, 0, 1)]
            outputs += [*own, np.full(count, stop - first, np.int32), np.full(count, num_global, np.int32)]
        return outputs


def dataset(recipe: Recipe, part: Part, *, start_step: int) -> tf.data.Dataset:
    """Returns the batches of a pipeline's replicas, in turn, from a step on."""
    read = in_this_process(BlockReader(recipe, part, pads=False))
    return elements(recipe, part, start_step=start_step, read=read, finish=without_counts)


def batches(recipe: Recipe) -> Iterator[Any]:
    """Yields the global batches of a recipe without maps or decoding, for a loop in Python.

    An iterator of tf.data takes longer for one batch than it takes to read it.
    """
    assert recipe.epochs is not None
    read, blocks = BlockReader(recipe, Part(), pads=False), Blocks.of(recipe, Part())
    for block in range(recipe.epochs * blocks.per_epoch):
        *fields, _, _ = read(block)
        with tf.init_scope(), tf.device("CPU:0"):  # where tf.data's tensors are
            parts = [tf.unstack(_tensor(field)) for field in fields]
        for values in zip(*parts, strict=True):
            yield recipe.source.decode(values)


def without_counts(batch: Any, num_examples: tf.Tensor, num_global: tf.Tensor) -> Any:
    """Returns the batch: a `finish` of `elements`."""
    return batch


def elements(
    recipe: Recipe,
    part: Part,
    *,
    start_step: Any,
    read: ReadOp,
    finish: Callable[[Any, tf.Tensor, tf.Tensor], Any],
    end_step: Any = None,
) -> tf.data.Dataset:
    """Returns an element for each replica of a part, in turn, from a step on, made ahead.

    Args:
      start_step, end_step: Ints or scalar int64 tensors; the recipe's end by default.
      finish: Makes the element of `(batch, num_examples, num_global)`.
    """
    if end_step is None:
        end_step = recipe.num_steps
    types = [*(_tf_type(field.dtype) for field in recipe.source.fields), tf.int32, tf.int32]
    shapes = [*_batch_shapes(recipe, part), [], []]

    @tf.autograph.experimental.do_not_convert
    def decode(*values: tf.Tensor) -> Any:
        *fields, num_examples, num_global = values
        decoded = recipe.source.decode(fields), num_examples, num_global
        return decoded if recipe.maps else finish(*decoded)

    @tf.autograph.experimental.do_not_convert
    def read_block(block: tf.Tensor) -> Any:
        outputs = read(block, types * part.num_local)
        replicas = []
        for local in range(part.num_local):
            own = outputs[local * len(types) : (local + 1) * len(types)]
            values = [tf.ensure_shape(one, [None, *shape]) for one, shape in zip(own, shapes, strict=True)]
            # A change of structure is done to the whole block, as a map costs as much as it does work.
            replicas.append(tuple(values) if recipe.source.decodes else decode(*values))
        return (replicas[0] if part.num_local == 1 else tuple(replicas),)

    all_blocks = Blocks.of(recipe, part)
    first_block, skipped = all_blocks.locate(start_step)
    last_block = _LAST_BLOCK if end_step is None else all_blocks.locate(end_step - 1)[0]
    # The next block is put together while the steps of this one are taken. Not `unbatch`, which ends
    # the process with a segmentation fault at a replica without examples.
    blocks = tf.data.Dataset.range(first_block, last_block + 1).map(read_block).prefetch(1)
    found = blocks.flat_map(tf.data.Dataset.from_tensor_slices).skip(skipped)
    found = found.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
    if end_step is not None:
        found = found.take(end_step - start_step)
    if part.num_local > 1:
        found = found.flat_map(in_turn)
    if recipe.source.decodes:
        found = found.map(decode, **_IN_PARALLEL)
    for number, function in enumerate(recipe.maps, start=1):
        apply = _on_batch(function, finish if number == len(recipe.maps) else _with_counts)
        found = found.map(apply, **_IN_PARALLEL)
    if recipe.num_prefetched is not None:
        found = found.prefetch(recipe.num_prefetched)
    return found.with_options(_options())


def _options() -> tf.data.Options:
    """Returns options without autotuning, which takes time for every element, and may hold up the end.

    The end of an iterator waits for autotuning's thread, which sleeps for twice as long each time, up to a
    minute, and can miss that it was woken. Without it AUTOTUNE is a call for each core (16 at most).
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return options


def _with_counts(*element: Any) -> tuple[Any, ...]:
    return element


def _on_batch(function: Callable[..., Any], finish: Callable[..., Any]) -> Callable[..., Any]:
    def apply(batch: Any, num_examples: tf.Tensor, num_global: tf.Tensor) -> Any:
        changed = function(*batch) if isinstance(batch, tuple) else function(batch)
        return finish(changed, num_examples, num_global)

    return apply


def in_this_process(reader: Callable[[Any], Sequence[np.ndarray]]) -> ReadOp:
    """Returns the op that calls `reader` in the process that made the dataset."""

    def read(step: tf.Tensor, types: Sequence[tf.DType]) -> Sequence[tf.Tensor]:
        return tf.numpy_function(reader, [step], types, stateful=True)

    return read


def has_equal_parts(recipe: Recipe, part: Part) -> bool:
    """Whether every replica has as many examples in every step."""
    is_even = recipe.steps.last_size == 0 and recipe.global_batch_size % part.num_replicas == 0
    return is_even and not part.shares


def _batch_shapes(recipe: Recipe, part: Part) -> list[list[int | None]]:
    is_fixed = has_equal_parts(recipe, part)
    rows = recipe.global_batch_size // part.num_replicas if is_fixed else None
    return [[rows, *field.shape] for field in recipe.source.fields]


def _tf_type(dtype: np.dtype[Any]) -> tf.DType:
    return tf.string if dtype.kind == "O" else tf.as_dtype(dtype)


def _tensor(array: np.ndarray) -> tf.Tensor:
    """Returns an eager tensor, in the memory of an array that nobody changes any more, where that can be."""
    # TensorFlow ends the process at a tensor that is not aligned.
    if array.dtype.kind in "iuf" and array.size and array.ctypes.data % ALIGNMENT == 0:
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    return tf.convert_to_tensor(array)


def in_turn(*replicas: Any) -> tf.data.Dataset:
    """Returns a dataset of the elements of replicas, one after the other."""
    found = tf.data.Dataset.from_tensors(replicas[0])
    for one in replicas[1:]:
        found = found.concatenate(tf.data.Dataset.from_tensors(one))
    return found
