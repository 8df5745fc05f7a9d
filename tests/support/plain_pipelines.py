"""Pipelines of `tf.data` as users write them, and what several workers have of each; without a strategy."""

from __future__ import annotations

import collections
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from raydist import tf_private
from raydist.data.pipeline import Part
from raydist.training.input import walk
from raydist.training.replicas.batch_slices import Slice
from tests.support.inside import notes_of

BATCH = 5
ROWS = 23  # a last batch of 3, which 2 workers share unevenly and 5 replicas do not all have a row of


class Pair(NamedTuple):
    """Elements that tf.data gives a function as one argument."""

    x: Any
    y: Any


Make = Callable[[Any, Callable[..., Any]], Any]


class Construction(NamedTuple):
    """A pipeline.

    Attributes:
      make: Takes a source of (x, y), with x of shape [4], and `log`, the function to map them by; returns
        global batches.
      is_early: Whether a worker may map its own rows alone.
      obstacle: What the note has to say; None for no note.
    """

    make: Make
    is_early: bool = True
    obstacle: str | None = None


def _constructions() -> dict[str, Construction]:
    def late(make: Any, obstacle: str | None) -> Construction:
        return Construction(make, is_early=False, obstacle=obstacle)

    def double(x: Any, y: Any) -> Any:
        return 2 * x, y + 1

    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(tf.range(30, dtype=tf.int64), tf.range(30, dtype=tf.int64) * 7),
        -1,
    )
    weight = tf.Variable(3.0)
    generator = tf.random.Generator.from_seed(1)

    def counted() -> Any:
        counter = tf.Variable(0.0)
        return lambda x, y: (x + counter.assign_add(1.0), y)

    def branched(x: Any, y: Any) -> Any:
        if x[0] > 40:
            x = -x
        for _ in tf.range(2):
            x += 1.0
        return x, y

    def ragged(x: Any, y: Any) -> Any:
        return tf.RaggedTensor.from_row_lengths(tf.repeat(x[:1], y % 3 + 1), [y % 3, 1]), y

    def sparse(size: int | None) -> Any:
        def convert(x: Any, y: Any) -> Any:
            found = tf.sparse.from_dense(x * tf.cast(x % 2 > 0, tf.float32))
            return (found if size else tf.sparse.reset_shape(found)), y

        return convert

    def parsed(lines: Any) -> Any:
        spec = {"x": tf.io.FixedLenFeature([4], tf.float32), "y": tf.io.FixedLenFeature([], tf.int64)}
        found = tf.io.parse_example(lines, spec)
        return found["x"], found["y"]

    def serialized(x: Any, y: Any) -> Any:
        def of(x: Any, y: Any) -> bytes:
            features = {
                "x": tf.train.Feature(float_list=tf.train.FloatList(value=x.tolist())),
                "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(y)])),
            }
            return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()

        text = tf.numpy_function(of, [x, y], tf.string, stateful=False)
        return tf.ensure_shape(text, [])

    image = lambda x, y: (tf.reshape(tf.concat([x] * 3, 0), [2, 2, 3]), y)  # noqa: E731

    early: dict[str, Make] = {
        "map": lambda d, log: d.map(log).batch(BATCH),
        "two maps": lambda d, log: d.map(log).map(double).batch(BATCH),
        "parallel map": lambda d, log: d.map(log, num_parallel_calls=3).batch(BATCH),
        "autotuned": lambda d, log: (
            d.map(log, num_parallel_calls=tf.data.AUTOTUNE)
            .batch(BATCH, num_parallel_calls=2)
            .prefetch(tf.data.AUTOTUNE)
        ),
        "out of order by options": lambda d, log: (
            d.map(log, num_parallel_calls=3).batch(BATCH).with_options(_out_of_order(tf))
        ),
        "drop_remainder": lambda d, log: d.map(log).batch(BATCH, drop_remainder=True),
        "even": lambda d, log: d.map(log).batch(12, drop_remainder=True),
        "batches smaller than the replicas": lambda d, log: d.map(log).batch(2),
        "one of them": lambda d, log: d.map(log).batch(1, drop_remainder=True),
        "one batch": lambda d, log: d.map(log).batch(100),
        "no rows": lambda d, log: d.take(0).map(log).batch(BATCH),
        "repeat": lambda d, log: d.map(log).batch(BATCH).repeat(2),
        "repeat before batch": lambda d, log: d.map(log).repeat(2).batch(BATCH),
        "repeat before map": lambda d, log: d.repeat(2).map(log).batch(BATCH),
        "shuffle": lambda d, log: d.shuffle(9, seed=3).map(log).batch(BATCH),
        "shuffle, repeat": lambda d, log: d.shuffle(9, seed=3).repeat(2).map(log).batch(BATCH),
        "shuffle, repeat after batch": lambda d, log: d.shuffle(9, seed=3).map(log).batch(BATCH).repeat(2),
        "take and skip": lambda d, log: d.map(log).skip(2).take(17).batch(BATCH),
        "take and skip batches": lambda d, log: d.map(log).batch(BATCH).skip(1).take(3),
        "last batches": lambda d, log: d.map(log).batch(BATCH).skip(3),
        "prefetch": lambda d, log: d.map(log).prefetch(2).batch(BATCH).prefetch(1),
        "cardinality": lambda d, log: (
            d.map(log).apply(tf.data.experimental.assert_cardinality(ROWS)).batch(BATCH)
        ),
        "cache before map": lambda d, log: d.cache().map(log).batch(BATCH),
        "zip": lambda d, log: (
            tf.data.Dataset.zip(d, tf.data.Dataset.range(100))
            .map(lambda pair, number: log(pair[0], pair[1] + number))
            .batch(BATCH)
        ),
        "dict": lambda d, log: (
            d.map(lambda x, y: {"x": x, "y": y})
            .map(lambda one: dict(zip(("x", "y"), log(one["x"], one["y"]), strict=True)))
            .batch(BATCH)
        ),
        "interleave": lambda d, log: (
            tf.data.Dataset.range(3)
            .interleave(lambda shard: d.shard(3, shard), cycle_length=2, num_parallel_calls=2)
            .map(log)
            .batch(BATCH)
        ),
        "filter": lambda d, log: d.filter(lambda x, y: y % 3 > 0).map(log).batch(BATCH),
        "flat_map": lambda d, log: (
            d.flat_map(lambda x, y: tf.data.Dataset.from_tensors((x, y)).repeat(2)).map(log).batch(BATCH)
        ),
        "unbatch": lambda d, log: d.batch(4).unbatch().map(log).batch(BATCH),
        "enumerate": lambda d, log: (
            d.enumerate().map(lambda number, one: log(one[0], one[1] + number)).batch(BATCH)
        ),
        "lookup after batch": lambda d, log: d.map(log).batch(BATCH).map(lambda x, y: (x, table.lookup(y))),
        "table and variable": lambda d, log: (
            d.map(log).map(lambda x, y: (weight * x, table.lookup(y))).batch(BATCH)
        ),
        "branches and loops": lambda d, log: d.map(log).map(branched).batch(BATCH),
        "ragged": lambda d, log: d.map(log).map(ragged).batch(BATCH),
        "sparse": lambda d, log: d.map(log).map(sparse(4)).batch(BATCH),
        "padded to one length": lambda d, log: d.map(
            lambda x, y: (log(x, y)[0][: y % 4 + 1], y)
        ).padded_batch(BATCH, padded_shapes=([4], []), padding_values=(-1.0, None)),
        "map after batch": lambda d, log: d.map(log).batch(BATCH).map(double),
        "map after batch of one size": lambda d, log: (
            d.map(log).batch(BATCH, drop_remainder=True).map(double)
        ),
        "only a map after batch": lambda d, log: d.batch(BATCH).map(double),
        "parsed after batch": lambda d, log: (
            d.map(serialized).batch(BATCH, drop_remainder=True).map(parsed).map(double)
        ),
        "row by row": lambda d, log: (
            d.map(log)
            .batch(BATCH)
            .map(
                lambda x, y: (
                    {
                        "mean": (x - tf.reduce_mean(x, axis=1, keepdims=True)) / [1.0, 2.0, 3.0, 4.0],
                        "part": tf.concat([x[:, 1:3], tf.expand_dims(x[:, 0], -1)], axis=1),
                        "flat": tf.reshape(tf.stack([x, x], axis=1), [-1, 8]),
                        "product": tf.squeeze(x @ tf.ones([4, 1]), axis=1),
                        "soft": tf.nn.softmax(x),
                    },
                    tf.one_hot(tf.gather(tf.range(60), tf.cast(y, tf.int32)) % 5, 5),
                )
            )
        ),
        "resized": lambda d, log: (
            d.map(log).map(image).batch(BATCH).map(lambda x, y: (tf.image.resize(x, [3, 3]) / 255.0, y))
        ),
    }
    return {
        **{name: Construction(make) for name, make in early.items()},
        "ragged source": Construction(
            lambda d, log: d.map(ragged).shuffle(4, seed=1).map(lambda x, y: (x * 2.0, y)).batch(BATCH),
            obstacle=".shuffle",
        ),
        "of various lengths": Construction(
            lambda d, log: (
                d.map(lambda x, y: (x[: y % 4 + 1], y))
                .shuffle(4, seed=1)
                .map(lambda x, y: log(tf.reduce_sum(x)[tf.newaxis], y))
                .batch(BATCH)
            ),
            obstacle=".shuffle",
        ),
        "named tuples": Construction(
            lambda d, log: d.map(Pair).cache().map(lambda pair: Pair(*log(*pair))).batch(BATCH),
            obstacle=".cache",
        ),
        "mean of the batch": late(
            lambda d, log: d.map(log).batch(BATCH).map(lambda x, y: (x - tf.reduce_mean(x), y)),
            "after .batch",
        ),
        "mean over the batch": late(
            lambda d, log: d.map(log).batch(BATCH).map(lambda x, y: (x - tf.reduce_mean(x, axis=0), y)),
            "after .batch",
        ),
        "reversed batch": late(
            lambda d, log: d.map(log).batch(BATCH).map(lambda x, y: (x[::-1], y[::-1])), "after .batch"
        ),
        "part of the batch": late(
            lambda d, log: d.map(log).batch(BATCH).map(lambda x, y: (x[:2], y[:2])), "after .batch"
        ),
        "row by its number": late(
            lambda d, log: (
                d.map(log)
                .batch(BATCH, drop_remainder=True)
                .map(lambda x, y: (x + tf.range(BATCH, dtype=tf.float32)[:, tf.newaxis], y))
            ),
            "after .batch",
        ),
        "size of the batch": late(
            lambda d, log: d.map(log).batch(BATCH).map(lambda x, y: (x / tf.cast(tf.size(y), tf.float32), y)),
            "after .batch",
        ),
        "rows joined": late(
            lambda d, log: d.map(log).batch(4).map(lambda x, y: (tf.concat([x, x], 0), tf.concat([y, y], 0))),
            "after .batch",
        ),
        "shuffle after map": late(
            lambda d, log: d.map(log).shuffle(9, seed=3).batch(BATCH), ".shuffle comes after .map"
        ),
        "batches shuffled": late(lambda d, log: d.map(log).batch(BATCH).shuffle(3, seed=3), ".shuffle"),
        "cache after map": late(lambda d, log: d.map(log).cache().batch(BATCH), ".cache"),
        "named tuples cached": late(lambda d, log: d.map(log).map(Pair).batch(BATCH).cache(), ".cache"),
        "batches cached": late(lambda d, log: d.map(log).batch(BATCH).cache(), ".cache"),
        "filter after map": late(
            lambda d, log: d.map(log).filter(lambda x, y: y % 3 > 0).batch(BATCH), ".filter"
        ),
        "unbatch after map": late(lambda d, log: d.map(log).batch(3).unbatch().batch(BATCH), ".unbatch"),
        "map in an interleave": late(
            lambda d, log: (
                tf.data.Dataset.range(3)
                .interleave(lambda shard: d.shard(3, shard).map(log), cycle_length=2)
                .batch(BATCH)
            ),
            "inside of .interleave",
        ),
        "padded to the longest": late(
            lambda d, log: d.map(lambda x, y: (log(x, y)[0][: y % 4 + 1], y)).padded_batch(BATCH),
            "pads to the longest",
        ),
        "sparse of unknown width": late(lambda d, log: d.map(sparse(None)).batch(BATCH), "sparse"),
        "random numbers": late(
            lambda d, log: d.map(lambda x, y: log(x + tf.random.uniform([], seed=5), y)).batch(BATCH),
            "(RandomUniform;",
        ),
        "a generator": late(
            lambda d, log: d.map(lambda x, y: log(x + 0 * generator.normal([]), y)).batch(BATCH),
            "has a state",
        ),
        "a counter": late(lambda d, log: d.map(counted()).batch(BATCH), "(AssignAddVariableOp;"),
        "python": late(
            lambda d, log: d.map(
                lambda x, y: log(tf.ensure_shape(tf.numpy_function(lambda v: v, [x], x.dtype), [4]), y)
            ).batch(BATCH),
            "runs Python",
        ),
        "shuffle without a map": late(lambda d, log: d.shuffle(9, seed=3).batch(BATCH), None),
        "a map behind random numbers": Construction(
            lambda d, log: d.map(lambda x, y: (x + tf.random.uniform([], seed=5), y)).map(log).batch(BATCH),
            obstacle="(RandomUniform;",
        ),
    }


def _out_of_order(tf: Any) -> Any:
    options = tf.data.Options()
    options.deterministic = False
    return options


# Workers, and replicas of each.
SPLITS = ((2, 1), (3, 1), (2, 2), (5, 1))


def compare(
    ctx: Any,
    *,
    names: list[str] | None = None,
    splits: Sequence[Sequence[int]] = SPLITS,
    shares: Sequence[int] = (),
) -> dict[str, Any]:
    """Returns what was not as on one device, and by construction how many examples `log` got.

    The numbers are those of one device, and of each of 2 workers.

    Args:
      shares: Of the workers; empty for equal ones.
    """
    from raydist.training.input import cut

    source = _source(tf)
    wrong: list[str] = []
    calls: dict[str, list[int]] = {}
    for name, construction in _constructions().items():
        if names is not None and name not in names:
            continue
        counts: collections.Counter[int] = collections.Counter()
        running = [0]

        def log(x: Any, y: Any, counts: Any = counts, running: Any = running) -> Any:
            def count(y: Any) -> Any:
                counts[running[0]] += 1
                return y

            # A function without a state, as far as TensorFlow is told.
            y = tf.ensure_shape(tf.numpy_function(count, [y], y.dtype, stateful=False), y.shape)
            return x * 3 + 1, y

        # Each pass of a shuffled pipeline draws the next numbers; the others are the same in each.
        is_random = any(word in name for word in ("shuffle", "random", "lengths", "ragged source", "counter"))

        def make(construction: Construction = construction, log: Any = log) -> Any:
            tf.keras.utils.set_random_seed(11)
            return construction.make(source, log)

        once = make()
        expected = [list(once) for _ in range(1 + is_random)]
        for workers, local in splits:
            parts = []
            for worker in range(workers):
                running[0] = worker + 1 if local == 1 and workers == 2 else -1
                part = Part(worker * local, local, workers * local, tuple(shares))
                data = cut.part_of(make() if is_random else once, part)
                if lost := _lost_shapes(once.element_spec, data.element_spec):
                    wrong.append(f"{name}, {workers} workers of {local}: {lost}")
                parts.append([list(data) for _ in expected])
            wrong += [
                f"{name}, {workers} workers of {local}: {told}"
                for told in _differences(expected, parts, local, workers * local, shares)
            ]
        calls[name] = [counts[index] for index in range(3)]
    return {"wrong": wrong, "calls": calls}


def walked(ctx: Any) -> dict[str, Any]:
    """Returns, by construction, whether a worker maps its own rows alone and what is in the way.

    Each as it should be and as it was found.
    """
    source = _source(tf)
    found = {}
    for name, construction in _constructions().items():
        one = walk.find_place(construction.make(source, lambda x, y: (x * 3 + 1, y)))
        is_same = construction.obstacle is not None and construction.obstacle in (one.obstacle or "")
        expected = [construction.is_early, construction.obstacle]
        found[name] = [expected, [one.place is not None, expected[1] if is_same else one.obstacle]]
    return {"found": found}


def recognized(ctx: Any) -> dict[str, Any]:
    """Returns what raydist takes the datasets of tf.data's public methods for, and which operations."""
    source = tf.data.Dataset.range(8)
    made = {
        "map": source.map(lambda x: x + 1),
        "parallel map": source.map(lambda x: x + 1, num_parallel_calls=2),
        "batch": source.batch(3),
        "parallel batch": source.batch(3, num_parallel_calls=2),
        "padded_batch": source.padded_batch(3, drop_remainder=True),
        "repeat": source.repeat(2),
        "take": source.take(5),
        "skip": source.skip(5),
        "prefetch": source.prefetch(3),
        "with_options": source.with_options(tf.data.Options()),
        "assert_cardinality": source.apply(tf.data.experimental.assert_cardinality(8)),
        "cache": source.cache(),
        "shuffle": source.shuffle(3),
        "interleave": source.interleave(lambda x: tf.data.Dataset.range(x), num_parallel_calls=2),
        "flat_map": source.flat_map(tf.data.Dataset.range),
    }
    kinds = {name: tf_private.transformation_of(one) for name, one in made.items()}
    values = {
        "batch": [tf_private.parameter(made["batch"], name) for name in ("batch_size", "drop_remainder")],
        "padded_batch": tf_private.parameter(made["padded_batch"], "drop_remainder"),
        "prefetch": tf_private.parameter(made["prefetch"], "buffer_size"),
        "parallel map": tf_private.parameter(made["parallel map"], "num_parallel_calls"),
        "map": tf_private.parameter(made["map"], "num_parallel_calls"),
    }
    again = {
        name: list(tf_private.moved(made[name], source).as_numpy_iterator())
        for name in ("repeat", "take", "skip")
    }
    ops = (
        "RandomUniform",
        "PyFunc",
        "EagerPyFunc",
        "AssignAddVariableOp",
        "AddV2",
        "StatelessRandomUniformV2",
    )
    return {
        "kinds": {name: None if kind is None else kind.value for name, kind in kinds.items()},
        "names": {name: tf_private.name_of_transformation(one) for name, one in made.items()},
        "values": values,
        "again": {name: [int(one) for one in found] for name, found in again.items()},
        "with a state": [name for name in ops if tf_private.has_state(name)],
    }


def _source(tf: Any) -> Any:
    """Returns (x, y) that are read from files, so that nothing knows how many there are; without a map."""
    folder, files = Path(tempfile.mkdtemp()), []
    for index, rows in enumerate(np.array_split(np.arange(ROWS), 2)):
        path = folder / f"{index}.txt"
        path.write_text("".join(f"{row}\n" for row in rows))
        files.append(str(path))

    def one(line: Any) -> Any:
        y = tf.strings.to_number(line, tf.int64)
        return tf.data.Dataset.from_tensors((tf.range(4.0) / 4 + tf.cast(y, tf.float32), y))

    return tf.data.TextLineDataset(files).flat_map(one)


def _lost_shapes(batch: Any, element: Any) -> str:
    """Returns what a worker does not know of the shapes of rows, which those of the global batch have."""
    own = tf.nest.flatten(getattr(element, "batch", element))
    return "; ".join(
        f"{theirs.shape} became {ours.shape}"
        for theirs, ours in zip(tf.nest.flatten(batch), own, strict=True)
        if isinstance(theirs, tf.TensorSpec) and theirs.shape.rank
        if ours.shape.rank is None or theirs.shape[1:].as_list() != ours.shape[1:].as_list()
    )


def _differences(
    expected: Any, parts: Any, local: int, num_replicas: int, shares: Sequence[int]
) -> list[str]:
    """Returns where the elements of the workers are not the rows of the global batches.

    Args:
      expected: Global batches, pass by pass.
      parts: The elements of each worker, pass by pass.
      local: Replicas of each worker.
    """
    wrong = []
    for number, batches in enumerate(expected):
        for worker, passes in enumerate(parts):
            if len(passes[number]) != len(batches) * local:
                wrong.append(f"pass {number}: {len(passes[number])} elements of {len(batches)} batches")
                continue
            for index, element in enumerate(passes[number]):
                replica = worker * local + index % local
                if not _is_share(element, batches[index // local], replica, num_replicas, shares):
                    wrong.append(f"pass {number}, batch {index // local}, replica {replica}: {element}")
    return wrong


def _is_share(element: Any, batch: Any, replica: int, num_replicas: int, shares: Sequence[int]) -> bool:
    from raydist.data.order.steps import cut

    rows = _rows(batch)
    sizes = [len(one) for one in np.array_split(np.arange(len(rows)), num_replicas)]
    if shares:
        spans = [cut(len(rows), one, num_replicas, shares) for one in range(num_replicas)]
        sizes = [end - first for first, end in spans]
    first, size = sum(sizes[:replica]), sizes[replica]
    if not isinstance(element, Slice):
        return len(set(sizes)) == 1 and _rows(element) == rows[first : first + size]
    told = int(element.num_examples), int(element.num_global)
    return told == (size, len(rows)) and _rows(element.batch) == (rows[first : first + size] or rows[:1])


def _rows(batch: Any) -> list[Any]:
    """Returns the rows of a batch as Python numbers, without the digits that depend on a batch's size."""
    columns = []
    for component in tf.nest.flatten(batch):
        if isinstance(component, tf.SparseTensor):
            component = tf.sparse.to_dense(component)
        is_ragged = isinstance(component, tf.RaggedTensor)
        columns.append(component.to_list() if is_ragged else np.round(component, 4).tolist())
    return list(zip(*columns, strict=True))


def parallel_draws(ctx: Any) -> dict[str, Any]:
    """Distributes pipelines that mix a batch by random numbers, in parallel calls and one after the other."""
    from raydist.training.input import cut

    def mixed(x: Any) -> Any:
        return tf.random.uniform([]) * x + tf.random.shuffle(x)

    def scaled(x: Any) -> Any:
        return x * tf.random.stateless_uniform([], seed=[1, 2])

    data, seen = tf.data.Dataset.range(40).map(lambda x: tf.cast(x, tf.float32)).batch(8), []
    for function, calls, seed in ((mixed, 4, None), (mixed, None, 5), (scaled, 4, 5), (mixed, 4, 5)):
        if seed is not None:
            tf.random.set_seed(seed)
        cut.cut_for_replicas(data.map(function, num_parallel_calls=calls), ctx.strategy, endless=False)
        seen.append([note for note in notes_of(ctx) if "parallel calls" in note])
    return {"seen": seen}
