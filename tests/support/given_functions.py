"""Train functions that give `ctx.fit` arrays, PyDatasets and generators, as `model.fit` takes them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.support.in_tasks import Crashed, crash, flat, refusal
from tests.support.inside import forget_notes, notes_of
from tests.support.late import LateModule
from tests.support.train_functions import dense_model, examples

tf = LateModule("tensorflow")

COUNT, SIZE, STEPS = 50, 16, 4  # the last batch of a pass has 2 examples, fewer than 2 workers of 2 devices


def made(ctx: Any, way: str = "") -> Any:
    keras = tf.keras
    with ctx.strategy.scope():
        if not way.endswith("padded"):
            return dense_model(keras, "sgd", metrics=("accuracy",))
        keras.utils.set_random_seed(7)
        layers = [keras.layers.Dense(8), keras.layers.GlobalMaxPooling1D(), keras.layers.Dense(3)]
        model = keras.Sequential(layers)  # which the data build
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, metrics=["accuracy"])
        return model


def weights() -> np.ndarray:
    return np.linspace(0.1, 2.0, COUNT)


def py_dataset(*, reorders: bool = False) -> Any:
    """Returns a PyDataset; one that `reorders` its examples after each epoch, as many do."""
    x, y = examples(COUNT)

    class Batches(tf.keras.utils.Sequence):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.rows = np.arange(COUNT)
            self.random = np.random.default_rng(5)

        def __len__(self) -> int:
            return STEPS

        def __getitem__(self, number: int) -> Any:
            rows = self.rows[number * SIZE : (number + 1) * SIZE]
            return x[rows].astype("float64"), y[rows]

        def on_epoch_end(self) -> None:
            if reorders:
                self.random.shuffle(self.rows)

    return Batches()


def padded() -> list[Any]:
    """Returns batches of sequences, each as long as its longest one; the first two differ in that."""
    random = np.random.default_rng(4)
    return [
        (random.normal(size=(size, length, 5)), random.integers(0, 3, size=size))
        for size, length in ((16, 4), (16, 6), (16, 4), (2, 3))
    ]


def padded_py_dataset() -> Any:
    batches = padded()

    class Batches(tf.keras.utils.Sequence):  # type: ignore[misc, name-defined]
        def __len__(self) -> int:
            return len(batches)

        def __getitem__(self, number: int) -> Any:
            return batches[number]

    return Batches()


def generator() -> Iterator[Any]:
    """Goes through the examples over and over, with weights."""
    batches = py_dataset()
    while True:
        for number in range(STEPS):
            x, y = batches[number]
            yield x, y, np.linspace(0.5, 1.5, len(x))


def arguments(way: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns what both `model.fit` and `ctx.fit` are given after the model."""
    x, y = examples(COUNT)
    wide = x.astype("float64")
    match way:
        case "in order":
            return (wide, y), {"batch_size": SIZE, "shuffle": False, "sample_weight": weights()}
        case "split":
            split = {"validation_split": 0.3, "validation_batch_size": 4}
            return (tf.constant(x), tf.constant(y)), {"batch_size": 12, "shuffle": False, **split}
        case "steps":  # one batch is all of them, divided by the steps
            held_out = examples(20, seed=1)
            return (wide, y), {"steps_per_epoch": 3, "shuffle": False, "validation_data": held_out}
        case "classes":
            # Keras 3 gives a class that is left out a weight of 1, tf_keras refuses it.
            weight = {0: 1.0, 1: 5.0, 2: 0.2} if is_legacy() else {1: 5.0}
            return (wide, y), {"shuffle": False, "class_weight": weight}
        case "py dataset":
            return (py_dataset(),), {"shuffle": False, "validation_data": py_dataset()}
        case "py dataset, reordered":
            return (py_dataset(reorders=True),), {"shuffle": False}
        case "py dataset, other steps":
            return (py_dataset(),), {"shuffle": False, "steps_per_epoch": 3}
        case "generator":
            return (generator(),), {"steps_per_epoch": 5, "validation_data": examples(20, seed=1)}
        case "generator, padded":
            batches = (batch for batch in itertools.cycle(padded()))
            # Keras 3 does not take them for generators.
            weight = {"class_weight": {0: 1.0, 1: 5.0, 2: 0.5}} if is_legacy() else {}
            return (batches,), {"steps_per_epoch": 4, **weight}
        case "py dataset, padded":
            return (padded_py_dataset(),), {"shuffle": False, "validation_data": padded_py_dataset()}
        case "shuffled":
            return (wide, y), {"batch_size": SIZE}
        case "py dataset, shuffled":
            return (py_dataset(reorders=True),), {}
        case "py dataset, shuffled, padded":
            # A resumed run drops batches that are as long as each other.
            return (padded_py_dataset(),), {}
    raise AssertionError(way)


def is_legacy() -> bool:
    return bool(tf.keras.Model.__module__.startswith("tf_keras"))


AS_KERAS = (
    *("in order", "split", "steps", "classes", "py dataset", "py dataset, reordered"),
    *("py dataset, other steps", "generator", "generator, padded", "py dataset, padded"),
)
SHUFFLED = ("shuffled", "py dataset, shuffled", "py dataset, shuffled, padded")


def through_ctx(ctx: Any, *, way: str, crash_after: int | None = None) -> dict[str, Any]:
    """Three epochs; with `crash_after` so many steps only."""
    forget_notes(ctx)
    model = made(ctx, way)
    positional, named = arguments(way)
    crashes = [] if crash_after is None else [crash(tf.keras, "on_train_batch_end", crash_after - 1)]
    try:
        history = ctx.fit(model, *positional, epochs=3, verbose=0, callbacks=crashes, **named)
    except Crashed:
        return {"step": ctx.step}
    return {
        "weights": flat(model),
        "history": dict(history.history),
        "step": ctx.step,
        "replicas": ctx.strategy.num_replicas_in_sync,
        "notes": notes_of(ctx),
    }


def through_keras(ctx: Any, *, way: str) -> dict[str, Any]:
    model = made(ctx, way)
    positional, named = arguments(way)
    if way == "py dataset, other steps" and not is_legacy():
        # Keras 3 cuts the second epoch off where the pass ends, and warns; ctx.fit continues.
        positional, named = ((batch[:2] for batch in generator()),), {"steps_per_epoch": 3}
    history = model.fit(*positional, epochs=3, verbose=0, **named)
    return {"weights": flat(model), "history": dict(history.history)}


def refused(ctx: Any) -> dict[str, Any]:
    """Returns what each mistake is answered with."""
    x, y = examples(COUNT)
    model = made(ctx)
    mistakes: dict[str, dict[str, Any]] = {
        "generator": {"train_data": generator(), "epochs": 2},
        "empty generator": {"train_data": iter(()), "epochs": 1},
        "rows": {"train_data": x, "y": y[:-1], "epochs": 1},
        "split": {"train_data": x, "y": y, "epochs": 1, "validation_split": 1.5},
        "beside": {"train_data": py_dataset(), "y": y, "epochs": 1},
        "both weights": {
            **{"train_data": x, "y": y, "epochs": 1},
            **{"class_weight": {0: 1.0, 1: 1.0, 2: 1.0}, "sample_weight": weights()},
        },
    }
    if is_legacy():
        mistakes["class without a weight"] = {
            "train_data": x,
            "y": y,
            "epochs": 1,
            "class_weight": {0: 1.0, 1: 2.0},
        }
    else:  # where tf_keras leaves all sizes open
        first, longer, *_ = padded()
        mistakes["sizes"] = {"train_data": iter([first, first, longer]), "epochs": 1}
    models = {"sizes": made(ctx, "padded")}
    return {name: refusal(ctx.fit, models.get(name, model), **given) for name, given in mistakes.items()}


def other_arrays(ctx: Any) -> dict[str, Any]:
    """Each worker has arrays of its own."""
    x, y = examples(COUNT, seed=ctx.task.index)
    return {"told": refusal(ctx.fit, made(ctx), x, y, epochs=1)}
