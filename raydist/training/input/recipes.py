"""Batches of raydist.data under a strategy: each worker makes its own part of every global batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from isal import isal_zlib

from raydist.data import pipeline
from raydist.data.batches import Batches
from raydist.data.examples import Files
from raydist.errors import UnsupportedError
from raydist.training.cluster import collectives
from raydist.training.replicas.slices import Slice

_MOST_NAMED, _MOST_NAMED_WORKERS = 3, 8
_FILES_AT_ONCE = 4096


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
    files = recipe.source.files
    contents = [] if files is None else files.contents()
    whole = isal_zlib.crc32(np.asarray(contents, "int64").tobytes())
    rows = collectives.gather_over_workers(strategy, [recipe.fingerprint(), start_step, len(contents), whole])
    inconsistent = collectives.inconsistent_workers(rows)
    if not inconsistent:
        return
    if files is not None and any(row[2:] != rows[0][2:] for row in rows):
        raise UnsupportedError(_other_files(files, contents, strategy, counts=[row[2] for row in rows]))
    named = ", ".join(f"worker/{index}" for index in inconsistent)
    raise UnsupportedError(
        f"{named} {'has' if len(inconsistent) == 1 else 'have'} other batches than the others: the "
        "examples, their order, the seed or the batch size differ; each worker has to make the same "
        "source, as it reads its own part of each batch (random arrays need a fixed seed)"
    )


def _other_files(
    files: Files, contents: Sequence[int], strategy: tf.distribute.Strategy, *, counts: Sequence[int]
) -> str:
    """Returns which files the workers do not have alike, with a remedy. A collective."""
    remedy = "give each worker the same files: copy them to its host again, or read them from shared storage"
    if len(set(counts)) > 1:
        told = ", ".join(
            f"worker/{index} {count}" for index, count in enumerate(counts[:_MOST_NAMED_WORKERS])
        )
        more = " and so on" if len(counts) > _MOST_NAMED_WORKERS else ""
        return f"the workers have not as many files of the source: {told}{more}; {remedy}"
    differing: dict[int, list[int]] = {}
    for first in range(0, len(contents), _FILES_AT_ONCE):
        rows = collectives.gather_over_workers(strategy, contents[first : first + _FILES_AT_ONCE])
        for number, column in enumerate(zip(*rows, strict=True), start=first):
            if others := collectives.inconsistent_workers([[one] for one in column]):
                differing[number] = others
        if differing:
            break
    workers = ", ".join(f"worker/{index}" for index in sorted(set().union(*differing.values())))
    names = ", ".join(files.uri(number) for number in list(differing)[:_MOST_NAMED])
    more = " and more" if len(differing) > _MOST_NAMED else ""
    verb = "differs" if len(differing) == 1 else "differ"
    return f"{names}{more} of {workers} {verb} from the other workers' in name, size or content; {remedy}"


def _as_slice(batch: Any, num_examples: tf.Tensor, num_global: tf.Tensor) -> Slice:
    return Slice(batch=batch, num_examples=num_examples, num_global=num_global)
