"""Train functions that give `ctx.fit` awkward data; see tests/training/test_train_data.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.in_tasks import flat
from tests.support.late import LateModule
from tests.support.train_functions import examples, made

tf = LateModule("tensorflow")

BATCH = 8


def fit_each(ctx: Any, *, cases: list[str], folder: str = "") -> dict[str, Any]:
    """Trains a new model for two epochs on each case; returns each one's steps and weights, or its error."""
    results = {case: _fit(ctx, case, Path(folder)) for case in cases}
    weights = {case: result.pop("weights") for case, result in results.items() if "weights" in result}
    return {"results": results, **weights}


def _fit(ctx: Any, case: str, folder: Path) -> dict[str, Any]:

    model = made(ctx, "sgd", metrics=("accuracy",))
    steps: list[int] = []

    class Steps(tf.keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.before = int(model.optimizer.iterations.numpy())

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            steps.append(int(model.optimizer.iterations.numpy()) - self.before)

    options: dict[str, Any] = {"epochs": 2, "callbacks": [Steps()]}
    try:
        if case == "model.fit on arrays":
            # All examples in one batch, so that the order does not matter, but who has which does.
            model.fit(*examples(64), batch_size=64, verbose=0, **options)
        elif case == "empty batches":
            ctx.fit(model, *examples(64), batch_size=0, **options)
        else:
            data, steps_per_epoch = _CASES[case](ctx, folder)
            ctx.fit(model, data, steps_per_epoch=steps_per_epoch, **options)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    weights = flat(model)
    return {"error": "", "steps": steps, "weights": weights}


def _of_files(folder: Path) -> Any:
    files = sorted(str(path) for path in folder.glob("*.csv"))
    return tf.data.TextLineDataset(files).map(_parse).batch(BATCH)


def _parse(line: Any) -> Any:
    values = tf.strings.to_number(tf.strings.split(line, ","))
    return tf.ensure_shape(values[:6], [6]), tf.cast(values[6], tf.int64)


def write_files(folder: Path, *counts: int) -> None:
    """Writes files with so many examples each."""
    x, y = examples(sum(counts))
    first = 0
    for index, count in enumerate(counts):
        rows = zip(x[first : first + count], y[first : first + count], strict=True)
        lines = [",".join(f"{value:.6f}" for value in [*row, label]) for row, label in rows]
        (folder / f"part-{index}.csv").write_text("\n".join(lines) + "\n")
        first += count


def _generated(count: int) -> Any:
    x, y = examples(count)
    signature = (tf.TensorSpec([6], tf.float32), tf.TensorSpec([], tf.int64))
    return tf.data.Dataset.from_generator(lambda: zip(x, y, strict=True), output_signature=signature)


def _changing(*counts: int) -> Any:
    """A generator that yields another number of examples in each epoch."""
    x, y = examples(max(counts))
    counted = iter(counts)
    signature = (tf.TensorSpec([6], tf.float32), tf.TensorSpec([], tf.int64))
    return tf.data.Dataset.from_generator(
        lambda: zip(*(values[:count] for count in [next(counted)] for values in (x, y)), strict=True),
        output_signature=signature,
    )


def _sliced(count: int) -> Any:
    return tf.data.Dataset.from_tensor_slices(examples(count))


def _of_worker(make: Any, ctx: Any) -> Any:
    """Fewer examples on worker 1, as from files of its own host."""
    return make((80, 56)[ctx.task.index])


def _share(dataset: Any, context: Any) -> Any:
    return dataset.shard(context.num_input_pipelines, context.input_pipeline_id)


# Name: (data, steps_per_epoch).
_CASES: dict[str, Any] = {
    "even": lambda ctx, folder: (_sliced(64).batch(BATCH), None),
    "files": lambda ctx, folder: (_of_files(folder), None),
    "growing": lambda ctx, folder: (_changing(48, 64).batch(BATCH), None),
    "shrinking": lambda ctx, folder: (_changing(64, 48).batch(BATCH), None),
    "generator": lambda ctx, folder: (_generated(64).batch(BATCH), None),
    "endless": lambda ctx, folder: (_sliced(64).batch(BATCH).repeat(), None),
    "endless with steps": lambda ctx, folder: (_sliced(64).batch(BATCH).repeat(), 8),
    "other steps": lambda ctx, folder: (_sliced(64).batch(BATCH).repeat(), 8 - ctx.task.index),
    "uneven": lambda ctx, folder: (lambda: _of_worker(_sliced, ctx).batch(BATCH), None),
    "uneven with steps": lambda ctx, folder: (lambda: _of_worker(_sliced, ctx).batch(BATCH), 7),
    "uneven generators": lambda ctx, folder: (lambda: _of_worker(_generated, ctx).batch(BATCH), None),
    "even shares": lambda ctx, folder: (lambda context: _share(_sliced(64), context).batch(BATCH // 2), None),
    "uneven shares": lambda ctx, folder: (lambda context: _of_worker(_sliced, ctx).batch(BATCH // 2), None),
    "uneven generated shares": lambda ctx, folder: (
        lambda context: _of_worker(_generated, ctx).batch(BATCH // 2),
        None,
    ),
    "arrays": lambda ctx, folder: (examples(64), None),
}
