"""Batches of raydist.data under a strategy: each worker makes its own part of every global batch."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from raydist.data import pipeline
from raydist.data.batches import Batches
from raydist.errors import UnsupportedError
from raydist.strategies.global_batch import Slice


def distribute(recipe: Batches, strategy: tf.distribute.Strategy, *, start_step: int = 0) -> Any:
    """Returns the batches from a step of the run on, as a distributed data set.

    Elements are `Slice`s, or bare batches where every replica has as many examples in every step.
    """
    is_even = pipeline.has_equal_parts(recipe, strategy.num_replicas_in_sync)

    def own(input_context: tf.distribute.InputContext) -> tf.data.Dataset:
        part = pipeline.Part.of(input_context)
        read = pipeline.in_this_process(pipeline.BlockReader(recipe, part, stands_in=True))
        found = pipeline.elements(recipe, part, start_step=start_step, read=read)
        found = found.map((lambda batch, *counts: batch) if is_even else _as_slice)
        return pipeline.finished(recipe, found)

    return strategy.distribute_datasets_from_function(own)


def check_length(recipe: Batches, num_steps: int) -> None:
    """Raises UnsupportedError where a recipe ends before the training does."""
    if recipe.num_steps is not None and recipe.num_steps < num_steps:
        raise UnsupportedError(
            f"train_data are batches of {recipe.epochs} {'epoch' if recipe.epochs == 1 else 'epochs'}, "
            f"{recipe.num_steps} steps, and {num_steps} steps are to be trained; leave out "
            "batches(epochs=…), and they go on as long as needed"
        )


def _as_slice(batch: Any, num_examples: tf.Tensor, num_global: tf.Tensor) -> Slice:
    return Slice(batch=batch, num_examples=num_examples, num_global=num_global)
