"""Train functions on raydist.data that tests run in real TensorFlow tasks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from raydist import data
from raydist.data.failures import data_error_in
from raydist.data.order.windows import Piece
from raydist.errors import DataError, UnsupportedError
from tests.support.in_tasks import flat, refusal
from tests.support.inside import notes_of, progress_of, reports_of
from tests.support.late import LateModule
from tests.support.numbered_source import NumberedSource
from tests.support.train_functions import bare_step, dense_model, examples, made

tf = LateModule("tensorflow")


def batches(kind: str, folder: str | None, *, count: int, batch_size: int) -> data.Batches:
    """Returns shuffled batches of `examples`, from memory or from the Parquet files in `folder`.

    Those of the kind "lists" are features that differ in number, ragged and padded; see `dense`.
    """
    if kind == "arrays":
        source: data.Source = data.from_arrays(*examples(count))
    elif kind == "parquet":
        assert folder is not None
        source = data.from_parquet(folder, features=[f"f{number}" for number in range(6)], label="label")
    else:
        assert folder is not None
        columns, sizes = ["ragged", "padded"], {"padded": 6}
        source = data.from_parquet(
            folder, columns=columns, label="label", ragged=["ragged"], padded_shapes=sizes
        )
    # Less than 193 examples, or there would be one lane.
    recipe = source.batches(global_batch_size=batch_size, seed=5, window_mb=source.num_bytes * 156 / 1e6)
    return recipe if kind == "lists" else recipe.map(lambda x, y: (x * 1.5, y))


def dense(x: Any) -> Any:
    """Returns features of one number; of lists it makes them inside of a step too."""
    return x["ragged"].to_tensor(shape=[None, 6]) * 0.5 + x["padded"] if isinstance(x, dict) else x


def numbers(kind: str, folder: str | None, *, count: int, batch_size: int) -> data.Batches:
    """Returns shuffled batches of the numbers 0, 1, 2, … with label 1, of which files are in `folder`."""
    if kind == "arrays":
        x = np.arange(count, dtype="float32").reshape(-1, 1)
        source: data.Source = data.from_arrays(x, np.ones(count, "int64"))
    else:
        assert folder is not None
        is_ragged = {"ragged": ["number"]} if kind == "lists" else {}
        source = data.from_parquet(folder, features=["number"], label="label", **is_ragged)
    # Less than 100 examples.
    recipe = source.batches(global_batch_size=batch_size, seed=5, window_mb=source.num_bytes * 75 / 1e6)
    return recipe.map(lambda x, y: (x[:, :1].to_tensor(), y)) if kind == "lists" else recipe


def write_parquet(folder: Path, count: int, *, num_files: int = 3, rows_per_group: int = 16) -> None:
    """Writes `examples` as Parquet files of small row groups."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    x, y = examples(count)
    for number, rows in enumerate(np.array_split(np.arange(count), num_files)):
        columns: dict[str, Any] = {f"f{column}": x[rows, column] for column in range(6)}
        lists = [x[row, : row % 7] for row in rows]
        columns.update(ragged=lists, padded=lists)
        table = pa.table({**columns, "label": y[rows]})
        pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=rows_per_group)


def trained(
    ctx: Any, *, kind: str, folder: str | None = None, count: int, batch_size: int, epochs: int
) -> dict[str, Any]:
    """Trains by `fit` and by `train_steps`; returns the weights, what validation found, and the last step."""
    recipe = batches(kind, folder, count=count, batch_size=batch_size)
    model = made(ctx, "adam", metrics=("accuracy",))
    given = recipe.map(lambda x, y: (dense(x), y))
    history = ctx.fit(model, given, epochs=epochs, validation_data=given)
    with ctx.strategy.scope():
        custom = dense_model(tf.keras, "sgd")

    step_fn = bare_step(custom, global_batch_size=batch_size, prepared=dense)
    ctx.train_steps(step_fn, recipe, num_steps=epochs * recipe.steps_per_epoch, steps_per_call=4)
    return {
        "fit": flat(model),
        "train_steps": flat(custom),
        "losses": np.array(history.history["loss"] + history.history["val_loss"]),
        "step": ctx.step,
    }


def trained_by_workers(
    ctx: Any,
    *,
    kind: str,
    folder: str | None = None,
    count: int,
    batch_size: int,
    epochs: int,
    steps_per_call: int = 2,
) -> dict[str, Any]:
    """Trains under ParameterServer.

    Returns how often each example was seen, the validation's metrics, and how too few batches are refused.
    """
    recipe = numbers(kind, folder, count=count, batch_size=batch_size).map(lambda x, y: (x + 0.0, y))
    with ctx.strategy.scope():
        seen = tf.Variable(tf.zeros(count), aggregation=tf.VariableAggregation.SUM)
        model = dense_model(tf.keras, "sgd", metrics=("accuracy",))

    def step_fn(batch: Any) -> dict[str, Any]:
        x, y = batch
        rows = tf.cast(x[:, 0], tf.int64)
        seen.assign_add(tf.tensor_scatter_nd_add(tf.zeros(count), rows[:, None], tf.ones_like(x[:, 0])))
        return {"size": tf.cast(tf.shape(y)[0], tf.float32)}

    ctx.train_steps(step_fn, recipe, num_steps=epochs * recipe.steps_per_epoch, steps_per_call=steps_per_call)
    steps_repeated = progress_of(ctx).status().steps_repeated
    wide = recipe.map(lambda x, y: (tf.tile(x, [1, 6]) / count, y))
    history = ctx.fit(model, wide, epochs=2, validation_data=wide)
    two = wide.for_epochs(2)
    return {
        "refused": [
            unsupported(lambda: ctx.train_steps(step_fn, two, num_steps=3 * two.steps_per_epoch)),
            unsupported(lambda: ctx.fit(model, two, epochs=3)),
        ],
        "steps_repeated": steps_repeated,
        "seen": seen.numpy(),
        "history": {name: list(map(float, values)) for name, values in history.history.items()},
    }


class FailingSource(NumberedSource):
    """Examples that cannot be read, for a reason that is longer than TensorFlow hands on."""

    def read_into(self, arrays: Sequence[np.ndarray], piece: Piece) -> None:
        raise DataError("the examples cannot be read") from ValueError("why " * 2000)


def failing_in_a_worker(ctx: Any) -> dict[str, Any]:
    """Trains on examples that cannot be read; returns what is found of it in what TensorFlow raises."""
    recipe = FailingSource([8] * 4).batches(global_batch_size=4)
    try:
        ctx.train_steps(lambda batch: {"one": tf.constant(1.0)}, recipe, num_steps=8)
    except Exception as error:
        return {"found": repr(data_error_in(error))}
    return {"found": ""}


def unsupported(call: Callable[[], object]) -> str:
    """Returns what a call is refused with; "" where it is not."""
    try:
        call()
    except UnsupportedError as error:
        return str(error)
    return ""


def evaluated_beside(ctx: Any) -> dict[str, Any]:
    """Trains for two epochs; returns the validation loss that was found, and that of the last weights."""
    recipe = data.from_arrays(*examples(100)).batches(global_batch_size=12, seed=2)
    model = made(ctx, "sgd")
    history = ctx.fit(model, recipe, epochs=2, validation_data=recipe)
    x, y = examples(100)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)(y, model(x)) + sum(model.losses)
    return {"found": history.history.get("val_loss"), "loss": float(loss)}


def different_data(ctx: Any) -> dict[str, Any]:
    """Trains on examples of which each worker has other ones; returns what that is answered with."""
    x, y = examples(64, seed=ctx.task.index)
    model = made(ctx, "adam")
    return {"error": refusal(ctx.fit, model, data.from_arrays(x, y).batches(global_batch_size=8), epochs=1)}


def different_files(ctx: Any, *, folder: str) -> dict[str, Any]:
    """Trains on Parquet files of which each worker has its own; returns what that is answered with."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    own = Path(folder) / ctx.task.task_type.value / str(ctx.task.index)
    model = made(ctx, "sgd")

    def write(place: Path, *, seed: int, count: int = 64) -> None:
        x, y = examples(count, seed=seed)
        columns = {f"f{number}": x[:, number] for number in range(6)}
        place.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({**columns, "y": y}), place, compression="none", use_dictionary=False)

    def told(case: str) -> str:
        features = [f"f{number}" for number in range(6)]
        source = data.from_parquet(own / case, features=features, label="y")
        return refusal(ctx.fit, model, source.batches(global_batch_size=8), epochs=1, verbose=0)

    for case in ("alike", "content", "size", "count"):
        for part in range(2):
            write(own / case / f"part-{part}.parquet", seed=part)
    os.utime(own / "alike/part-0.parquet", ns=(0, ctx.task.index * 10**9))  # copies have times of their own
    write(own / "content/part-1.parquet", seed=5 + ctx.task.index)
    write(own / "size/part-0.parquet", seed=0, count=64 + 8 * ctx.task.index)
    for part in range(2, 2 + ctx.task.index):
        write(own / f"count/part-{part}.parquet", seed=part)
    return {"told": {case: told(case) for case in ("alike", "content", "size", "count")}}


def trained_on_seed(ctx: Any, *, seed: int) -> dict[str, Any]:
    """Trains by `fit` on batches of a seed; returns what was refused."""
    recipe = data.from_arrays(*examples(64)).batches(global_batch_size=8, seed=seed)
    model = made(ctx, "adam")
    refused = []
    try:
        ctx.fit(model, recipe, epochs=2)
    except UnsupportedError as error:
        refused.append(str(error))
    return {"refused": refused}


def looped_on_seeds(ctx: Any, *, loops: list[tuple[int, int]]) -> dict[str, Any]:
    """As `trained_on_seed`, by a `train_steps` for each seed and number of steps, and a restored variable."""
    with ctx.strategy.scope():
        seen = tf.Variable(0.0)
    ctx.restore(seen=seen)

    def step_fn(batch: Any) -> dict[str, Any]:
        seen.assign_add(1.0)
        return {"seen": seen.read_value()}

    refused = []
    for seed, num_steps in loops:
        recipe = data.from_arrays(*examples(64)).batches(global_batch_size=8, seed=seed)
        try:
            ctx.train_steps(step_fn, recipe, num_steps=num_steps)
        except UnsupportedError as error:
            refused.append(str(error))
    return {"refused": refused, "seen": float(seen.numpy())}


def slowed_by_its_data(ctx: Any, *, is_static: bool, by_example: bool = False) -> dict[str, Any]:
    """Trains on data of which each batch takes 50 ms; returns what was noted, and the local metrics.

    Args:
      is_static: Whether the size of a batch is known while the step is traced.
      by_example: Whether the examples take their time before they are batched, 25 ms each.
    """
    from raydist.training.stepping import step_timing

    step_timing.MIN_TRAINING_S = 1.0

    def slow(x: np.ndarray) -> np.ndarray:
        time.sleep(0.025 if by_example else 0.05)
        return x

    def read(x: Any, y: Any) -> Any:
        # By examples it is a function without a state, so that each worker reads its own.
        slowed = tf.numpy_function(slow, [x], tf.float32, stateful=not by_example)
        return tf.ensure_shape(slowed, x.shape), y

    recorded = reports_of(ctx)
    dataset = tf.data.Dataset.from_tensor_slices(examples(320))
    if by_example:
        dataset = dataset.map(read).batch(8, drop_remainder=is_static)
    else:
        dataset = dataset.batch(8, drop_remainder=is_static).map(read)
    dataset = dataset.prefetch(1)
    model = made(ctx, "adam")
    ctx.fit(model, dataset, epochs=2)
    notes = notes_of(ctx)
    return {"notes": notes, "recorded": [one for one in recorded if "examples_per_s" in one]}


def distribute_in_turn(ctx: Any) -> dict[str, Any]:
    """Gives `ctx.distribute` what it takes and what it refuses; returns the sentences of the refusals."""
    dataset = tf.data.Dataset.range(4)
    recipe = batches("arrays", None, count=8, batch_size=4)
    refused = [
        unsupported(lambda: ctx.distribute(recipe)),
        unsupported(lambda: ctx.distribute([1])),
        unsupported(lambda: ctx.distribute(dataset, sharding="static")),
        unsupported(lambda: ctx.distribute(dataset.repeat(2).batch(2))),
    ]
    is_same = all(ctx.distribute(dataset, sharding=sharding) is dataset for sharding in ("dynamic", "off"))
    return {"refused": refused, "is_same": is_same, "notes": notes_of(ctx)}
