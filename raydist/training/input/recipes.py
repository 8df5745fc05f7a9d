"""Batches of raydist.data under a strategy: each worker makes its own part of every global batch."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from raydist.data import pipeline
from raydist.data.batches import Batches
from raydist.errors import UnsupportedError
from raydist.training.cluster import collectives
from raydist.training.replicas.slices import Slice


def parts_of_workers(recipe: Batches, strategy: tf.distribute.Strategy, *, start_step: int = 0) -> Any:
    """Returns the batches from a step of the run on, as a distributed dataset.

    Elements are `Slice`s, or bare batches where every replica has as many examples in every step. A
    collective.

    Raises:
      UnsupportedError: The workers have not the same batches; in each worker.
    """
    _check_same_batches(recipe, strategy, start_step)
    is_even = pipeline.has_equal_parts(recipe, strategy.num_replicas_in_sync)

    def own(input_context: tf.distribute.InputContext) -> tf.data.Dataset:
        part = pipeline.Part.of(input_context)
        read = pipeline.in_this_process(pipeline.BlockReader(recipe, part, pads=True))
        finish = pipeline.without_counts if is_even else _as_slice
        return pipeline.elements(recipe, part, start_step=start_step, read=read, finish=finish)

    return strategy.distribute_datasets_from_function(own)


def global_batches(recipe: Batches, strategy: tf.distribute.Strategy, *, start_step: int = 0) -> Any:
    """Returns the batches from a step of the run on, for a model whose own `fit` changes them first.

    Keras distributes them, and each worker reads all rows. A collective; raises as `parts_of_workers`.
    """
    _check_same_batches(recipe, strategy, start_step)
    return pipeline.dataset(recipe, pipeline.Part(), start_step=start_step)


def refuse_in_keras(*given: Any) -> None:
    """Raises UnsupportedError for batches of raydist.data among the data that Keras itself is given."""
    if any(isinstance(one, Batches) for one in given):
        raise UnsupportedError(
            "Keras's own fit, evaluate and predict do not take batches of raydist.data; call ctx.fit, "
            "ctx.evaluate or ctx.predict, or give batches.dataset(), which is a tf.data.Dataset"
        )


def check_length(data: Any, num_steps: int) -> None:
    """Raises UnsupportedError where batches of raydist.data end before the training does."""
    if isinstance(data, Batches) and data.num_steps is not None and data.num_steps < num_steps:
        raise UnsupportedError(
            f"train_data are batches of {data.epochs} {'epoch' if data.epochs == 1 else 'epochs'}, "
            f"{data.num_steps} steps, and {num_steps} steps are to be trained; leave out "
            "batches(epochs=…), and they go on as long as needed"
        )


def _check_same_batches(recipe: Batches, strategy: tf.distribute.Strategy, start_step: int) -> None:
    if collectives.is_alone(strategy):
        return
    rows = collectives.gather_over_workers(strategy, [recipe.fingerprint(), start_step])
    inconsistent = collectives.inconsistent_workers(rows)
    if inconsistent:
        named = ", ".join(f"worker/{index}" for index in inconsistent)
        raise UnsupportedError(
            f"{named} {'has' if len(inconsistent) == 1 else 'have'} other batches than the others: the "
            "examples, their order, the seed or the batch size differ; each worker has to make the same "
            "source, as it reads its own part of each batch (random arrays need a fixed seed)"
        )


def _as_slice(batch: Any, num_examples: tf.Tensor, num_global: tf.Tensor) -> Slice:
    return Slice(batch=batch, num_examples=num_examples, num_global=num_global)
