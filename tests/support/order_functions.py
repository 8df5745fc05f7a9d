"""Pipelines of `tf.data` that the workers read in one order, or not. Import TensorFlow inside only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.inside import forget_notes, progress_of
from tests.support.train_functions import dense_model, examples


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


def noted_of_python(ctx: Any) -> dict[str, Any]:
    """Returns what is noted of generators and PyDatasets that each worker seeds by itself, or all alike."""
    import tensorflow as tf

    keras = tf.keras
    with ctx.strategy.scope():
        model = dense_model(keras, "sgd")

    def batches(seed: int) -> list[Any]:
        x, y = examples(24, seed=seed)
        return [(x[first : first + 8], y[first : first + 8]) for first in range(0, 24, 8)]

    def generator(seed: int) -> Any:
        return (batch for batch in batches(seed))

    class Batches(keras.utils.Sequence):  # type: ignore[misc, name-defined]
        def __init__(self, seed: int) -> None:
            super().__init__()
            self.batches = batches(seed)

        def __len__(self) -> int:
            return len(self.batches)

        def __getitem__(self, number: int) -> Any:
            return self.batches[number]

    own = ctx.task.index
    cases: dict[str, Callable[[], Any]] = {
        "alike": lambda: ctx.fit(model, generator(1), epochs=1, verbose=0),
        "alike, py dataset": lambda: ctx.fit(model, Batches(1), epochs=1, verbose=0),
        "alike, plain": lambda: model.fit(Batches(1), epochs=1, verbose=0),
        "generator": lambda: ctx.fit(model, generator(own), epochs=1, verbose=0),
        "py dataset": lambda: ctx.fit(model, Batches(own), epochs=1, verbose=0),
        "evaluated": lambda: ctx.evaluate(model, generator(own)),
        "plain generator": lambda: model.fit(generator(own), epochs=1, verbose=0),
        "plain py dataset": lambda: model.fit(Batches(own), epochs=1, verbose=0),
    }
    told = {}
    for name, call in cases.items():
        forget_notes(ctx)
        call()
        told[name] = [one for one in progress_of(ctx).status().notes if "the first batches of" in one]
    return {"told": told}
