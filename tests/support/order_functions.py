"""Pipelines of `tf.data` that the workers read in one order, or not. Import TensorFlow inside only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.inside import progress_of
from tests.support.train_functions import examples


def _pipelines(index: int) -> dict[str, Callable[[], Any]]:
    """Returns what makes each pipeline in a worker, by what it shows."""
    import tensorflow as tf

    source = tf.data.Dataset.from_tensor_slices(examples(24))
    files = tf.constant(["a", "b", "c"])

    def drawn() -> Any:
        if index == 0:
            tf.random.normal([2])
        return source.shuffle(24).batch(8)

    def interleaved(deterministic: bool | None) -> Any:
        return (
            tf.data.Dataset.range(3)
            .interleave(
                lambda shard: source.shard(3, shard), num_parallel_calls=2, deterministic=deterministic
            )
            .batch(8)
        )

    def mapped(data: Any) -> Any:
        return data.map(lambda *one: one, num_parallel_calls=2, deterministic=False)

    def generated() -> Any:
        signature = tf.TensorSpec([6])
        rows = tf.data.Dataset.from_generator(lambda: iter(examples(24)[0]), output_signature=signature)
        return rows.interleave(tf.data.Dataset.from_tensors, num_parallel_calls=2).batch(8)

    return {
        "alike": lambda: source.shuffle(24).map(lambda *one: one, num_parallel_calls=2).batch(8),
        "interleaved in order": lambda: interleaved(None),
        "generated": generated,
        "drawn in one worker": drawn,
        "seed of the worker": lambda: source.shuffle(24, seed=index).batch(8),
        "names in other orders": lambda: tf.data.Dataset.from_tensor_slices(files[:: 1 - 2 * index]).batch(1),
        "values of the worker": lambda: tf.data.Dataset.from_tensor_slices(examples(24, seed=index)).batch(8),
        "interleaved in any order": lambda: interleaved(False),
        "mapped in any order": lambda: mapped(source).batch(8),
        "mapped in any order inside": lambda: source.flat_map(
            lambda *one: mapped(tf.data.Dataset.from_tensors(one))
        ).batch(8),
    }


def noted(ctx: Any) -> dict[str, Any]:
    """Returns what is noted of the order of each pipeline, and its fingerprint."""
    import tensorflow as tf

    from raydist.training.input import cut, worker_order

    told, fingerprints = {}, {}
    for name, make in _pipelines(ctx.task.index).items():
        tf.keras.utils.set_random_seed(5)
        progress = progress_of(ctx)
        before = len(progress.status().notes)
        dataset = make()
        fingerprints[name] = worker_order.fingerprint(dataset)
        cut.cut_for_replicas(dataset, ctx.strategy, endless=False)
        told[name] = [one for one in progress.status().notes[before:] if "trained on twice" in one]
    return {"told": told, "fingerprints": fingerprints}
