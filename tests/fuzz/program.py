"""A random program as data: what a seed stands for, and how it is made simpler.

Each axis is drawn from a generator of its own, so that a new axis changes none of the others. Seeds from
WIDE on draw from more values of each axis, and those from ORDINARY on from what most people write; the lists
of the others stay as they are, so that a seed that found something goes on being the program that found it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

WIDE = 10_000
ORDINARY = 20_000
INPUTS = ("vector", "tokens", "image", "both")
LAYERS = {
    "vector": ("dense", "tanh", "layer_norm", "prelu", "residual", "regularized", "constrained", "units"),
    "tokens": ("average", "masked_lstm", "gru", "bilstm", "conv1d", "attention", "flatten", "masked_average"),
    "image": ("conv", "separable", "depthwise", "group_norm", "average_pool", "max_pool"),
}
LOSSES = {
    "regression": ("mse", "mae", "huber", "log_cosh", "own_function", "own_class"),
    "binary": ("binary_crossentropy", "hinge", "focal"),
    "classes": ("sparse_crossentropy", "crossentropy", "kl_divergence"),
}
METRICS = {
    "regression": ("mae", "rmse", "r2", "cosine"),
    "binary": ("binary_accuracy", "auc", "precision"),
    "classes": ("sparse_accuracy", "iou"),
}
OPTIMIZERS = (
    *("sgd", "momentum", "nesterov", "adam", "amsgrad", "adamw", "rmsprop", "centered_rmsprop"),
    *("adagrad", "adadelta", "adamax", "nadam", "ftrl", "lion"),
)
MORE_LAYERS = {
    "vector": (
        *("einsum", "gate", "twice", "frozen", "spectral", "orthogonal", "unit_norm", "normalization"),
        *("own_scale", "own_counter", "own_loss", "buckets", "lambda", "sequence"),
    ),
    "tokens": (
        *("simple_rnn", "distributed", "global_max", "separable", "tied", "transpose", "regularized", "bag"),
        *("positions", "masked_attention", "stacked", "masked_own"),
    ),
    "image": (
        "transpose",
        "upsample",
        "pad",
        "global",
        "spectral",
        "flat",
        "own_scale",
        "shared",
        "rescaled",
    ),
}
# Of models that predict something for each token or pixel.
EACH_LAYERS = {
    "tokens": ("masked_lstm", "gru", "dense", "conv", "attention", "positions"),
    "image": ("conv", "skip", "group_norm", "u"),
}
MORE_LOSSES = {
    "regression": ("msle", "mape", "scalar_mean", "scalar_sum", "function", "name", "quantile"),
    "binary": ("squared_hinge", "logits", "smoothed", "name"),
    "classes": ("smoothed_classes", "categorical_hinge", "categorical_focal", "dice"),
    "each": ("sparse_crossentropy", "crossentropy", "ignoring", "categorical_focal"),
}
MORE_METRICS = {
    "regression": ("function", "names", "msle", "own_mean"),
    "binary": ("recall", "hinge", "names", "own_mean"),
    "classes": ("names", "crossentropy", "f1", "own_mean"),
    "each": ("sparse_accuracy", "iou"),
}
MORE_OPTIMIZERS = ("lamb", "adafactor", "scaled", "name", "muon")
MORE_MODELS = ("sequential", "nested", "two_optimizers", "penalty", "own_metrics", "unlabeled", "named")
MORE_DATA = ("padded", "cached", "dropped", "interleaved", "from_generator", "mapped", "repeated")
MORE_CALLBACKS = ("best", "restoring", "stop_early", "batch_rate", "swap", "logs", "lambda")
MORE_AFTER = ("recompile", "freeze", "set_weights", "test_batch", "predict_batch", "whole", "rate")
# What most people write, each as often as it is named.
ORDINARY_INPUTS = ("vector", "vector", "tokens", "image", "text", "sparse")
OF_DATASETS = ("sparse", "text")  # Keras takes no NumPy arrays of them
ORDINARY_LAYERS = {
    "vector": ("dense", "tanh", "layer_norm", "residual", "adapted", "regularized"),
    "tokens": ("average", "flatten", "conv1d", "global_max", "gru"),
    "image": ("conv", "max_pool", "average_pool", "flat"),
}
ORDINARY_LOSSES = {
    "regression": ("mse", "mae", "huber", "name", "own_function"),
    "binary": ("binary_crossentropy", "name"),
    "classes": ("sparse_crossentropy", "crossentropy"),
}
ORDINARY_OPTIMIZERS = ("adam", "adam", "name", "sgd", "momentum", "rmsprop", "adamw")
ORDINARY_MODELS = (
    *("functional", "functional", "sequential", "subclassed"),
    *("own_train_step", "own_train_step", "own_metrics", "compute_loss"),
)
ORDINARY_DATA = ("arrays", "arrays", "arrays", "dataset", "dataset", "shuffled", "sequence", "function")
CALLS = ("evaluate", "predict", "test_batch", "predict_batch", "batch")
KEEP = "keep"  # of an axis: nothing special
SHARED = "ps"  # of the name of a program for parameter servers
STILL = "still"  # of one for several workers of theirs


@dataclass(frozen=True, kw_only=True)
class Program:
    """One random program; each field but the first two is an axis, whose first value is the simplest.

    Attributes:
      seed: What the axes were drawn from, and what the program's own random numbers are drawn from.
      dtype: Of the whole model.
      simplified: The axes that were set to their simplest value.
      layers: Names of hidden layers.
      loss: One of LOSSES[task].
      shuffle: Whether `model.fit` shuffles arrays.
      logs: Whether steps of the model's own show its loss by another name, too.
      outputs: How many outputs the model has; the second one is a regression.
      before: What happens before the training, in this order.
      after: What happens after it.
      validation_steps: 0 for the whole data.
      decorated: Which function of the program's own is one under `@tf.function`, where it has that.
      is_seeded: Whether the program seeds the generators of random numbers.
      is_shared: Whether it is one for parameter servers.
      is_still: Whether its weights do not change, so that the order in which workers take steps does not
        matter.
    """

    seed: int
    dtype: str = "float64"
    simplified: tuple[str, ...] = ()
    inputs: str = "vector"
    layers: tuple[str, ...] = ()
    task: str = "regression"
    loss: str = "mse"
    reduction: str = "mean"
    outputs: int = 1
    metrics: tuple[str, ...] = ()
    optimizer: str = "sgd"
    clipping: str = KEEP
    ema: bool = False
    decay: bool = False
    schedule: str = KEEP
    weights: str = KEEP
    model: str = "functional"
    logs: str = KEEP
    data: str = "arrays"
    shuffle: bool = False
    num_examples: int = 48
    batch_size: int = 16
    epochs: int = 2
    steps_per_execution: int = 1
    steps_per_epoch: int = 0
    validation: str = KEEP
    callbacks: tuple[str, ...] = ()
    call: str = "ctx.fit"
    after: tuple[str, ...] = ()
    metrics_weighted: bool = False
    first_epoch: int = 0
    validation_freq: int = 1
    validation_steps: int = 0
    run_eagerly: bool = False
    before: tuple[str, ...] = ()
    decorated: str = KEEP
    is_seeded: bool = True
    is_shared: bool = False
    is_still: bool = False

    @property
    def name(self) -> str:
        """`17`, or `17~ema~loss` where axes were simplified; `17:float32` for another type."""
        dtype = "" if self.dtype == "float64" else f":{self.dtype}"
        prefix = SHARED if self.is_shared and not self.is_still else STILL if self.is_still else ""
        return "~".join([f"{prefix}{self.seed}{dtype}", *self.simplified])

    def describe(self) -> str:
        """The axes that are not at their simplest value."""
        left_out = {"seed", "simplified", "is_shared", "is_still"}
        said = [
            f"{one.name}={getattr(self, one.name)}"
            for one in fields(self)
            if one.name not in left_out and getattr(self, one.name) != one.default
        ]
        return f"{self.name}: {', '.join(said) or 'the simplest program'}"

    def simpler(self) -> list[Program]:
        """Returns the programs with one axis more at its simplest value."""
        fixed = ("seed", "dtype", "simplified", "is_shared", "is_still")
        axes = [one for one in fields(self) if one.name not in fixed]
        return [
            program_of(f"{self.name}~{one.name}")
            for one in axes
            if one.name not in self.simplified and getattr(self, one.name) != one.default
        ]


def program_of(name: str) -> Program:
    """Returns the program of a name as `Program.name` writes it."""
    start, *simplified = name.split("~")
    seed, _, dtype = start.removeprefix(SHARED).removeprefix(STILL).partition(":")
    if not seed.isdecimal():
        raise ValueError(f"{name} does not begin with a seed, such as 17")
    program = draw(int(seed), dtype=dtype or "float64")
    if name.startswith((SHARED, STILL)):
        program = _for_parameter_servers(program)
    if name.startswith(STILL):
        program = _without_changes(program)
    defaults = {one.name: one.default for one in fields(Program)}
    if unknown := [axis for axis in simplified if axis not in defaults]:
        raise ValueError(
            f"{name} names {unknown[0]}, which is not an axis of programs: {', '.join(defaults)}"
        )
    changes: dict[str, Any] = {axis: defaults[axis] for axis in simplified}
    if "inputs" in changes:
        changes.setdefault("layers", ())
    if "task" in changes:
        changes |= {"loss": "mse", "metrics": ()}
    return replace(program, **changes, simplified=tuple(simplified))


def _for_parameter_servers(program: Program) -> Program:
    """Returns what parameter_server can train of a program, from which epochs know their steps."""
    return replace(
        program,
        is_shared=True,
        model="subclassed" if program.model == "subclassed" else "functional",
        data="function",
        call="ctx.fit",
        shuffle=False,
        weights=KEEP if program.weights == "class" else program.weights,
        steps_per_execution=1,
        steps_per_epoch=-(-program.num_examples // program.batch_size),
        validation=KEEP,
        callbacks=(),
        before=(),
        after=tuple(one for one in program.after if one in ("evaluate", "fit")),
    )


def _without_changes(program: Program) -> Program:
    """Returns a program whose updates change no weight, and that counts examples.

    Its batches are of one size: an epoch has as many of them as are asked for, from any pass over the data.
    """
    num_examples, batch_size = 48, 16 if program.batch_size == 16 else 12
    return replace(
        program,
        is_still=True,
        num_examples=num_examples,
        batch_size=batch_size,
        steps_per_epoch=num_examples // batch_size,
        metrics=(*program.metrics, "rows"),
        optimizer="sgd",
        clipping=KEEP,
        ema=False,
        decay=False,
        schedule=KEEP,
    )


def draw(seed: int, *, dtype: str = "float64") -> Program:
    """Returns the program of a seed."""
    if seed >= ORDINARY:
        return _draw_ordinary(seed, dtype=dtype)
    is_wide = seed >= WIDE

    def choose(axis: str, *choices: Any, more: Sequence[Any] = ()) -> Any:
        return random.Random(f"{seed}/{axis}").choice((*choices, *(more if is_wide else ())))

    def some(axis: str, choices: Sequence[Any], most: int, *, more: Sequence[Any] = ()) -> tuple[Any, ...]:
        generator = random.Random(f"{seed}/{axis}")
        choices = (*choices, *(more if is_wide else ()))
        return tuple(generator.sample(choices, generator.randint(0, min(most, len(choices)))))

    inputs = choose("inputs", *INPUTS, more=("pair",))
    has_each = inputs in ("tokens", "image")
    task = choose("task", *LOSSES, more=("each",) if has_each else ())
    of_layers = "tokens" if inputs in ("both", "pair") else inputs
    data = choose(
        "data",
        *("arrays", "dataset", "shuffled", "function", "generator", "sequence", "filtered"),
        more=MORE_DATA if inputs == "tokens" and task != "each" else MORE_DATA[1:],
    )
    call = choose("call", "ctx.fit", "ctx.fit", "model.fit")
    model = choose(
        "model",
        *("functional", "subclassed", "own_train_step", "add_loss", "compute_loss", "functional"),
        more=MORE_MODELS,
    )
    epochs = choose("epochs", 2, 1, 3)
    loss = choose("loss", *LOSSES.get(task, ()), more=MORE_LOSSES[task])
    is_large = task == "each" or loss in ("mape", "scalar_sum")
    return Program(
        seed=seed,
        dtype=dtype,
        inputs=inputs,
        layers=_layers(some, of_layers, is_each=task == "each"),
        task=task,
        loss=loss,
        # A sum over all pixels, or of percentages, makes weights so large that rounding shows.
        reduction="mean" if is_large else choose("reduction", "mean", "mean", "mean", "sum"),
        outputs=1 if task == "each" else choose("outputs", 1, 1, 1, 2),
        metrics=some("metrics", METRICS.get(task, ()), 2, more=MORE_METRICS[task]),
        optimizer=choose("optimizer", *OPTIMIZERS, more=MORE_OPTIMIZERS),
        clipping=choose("clipping", KEEP, KEEP, "clipnorm", "clipvalue", "global_clipnorm"),
        ema=choose("ema", False, False, False, True),
        decay=choose("decay", False, False, True),
        schedule=choose("schedule", KEEP, KEEP, "cosine", "exponential", "piecewise"),
        weights=choose("weights", KEEP, KEEP, "sample", "class", more=("each",) if task == "each" else ()),
        model=model,
        logs=choose("logs", KEEP, "again"),
        data="dataset" if call == "model.fit" and data == "function" else data,
        shuffle=data == "arrays" and call == "model.fit" and choose("shuffle", False, True),
        num_examples=choose("num_examples", 48, 50, 61, 37, more=(10, 65)),
        batch_size=choose("batch_size", 16, 12, 7, more=(3, 64)),
        epochs=epochs,
        steps_per_execution=choose("steps_per_execution", 1, 1, 1, 2, 3),
        steps_per_epoch=choose("steps_per_epoch", 0, 0, 0, 2),
        validation=choose("validation", KEEP, KEEP, "data", "split"),
        callbacks=some("callbacks", ("plateau", "rate", "stopping", "batches"), 1, more=MORE_CALLBACKS),
        call=call,
        after=some("after", ("evaluate", "predict", "fit", "reload", "batch"), 3, more=MORE_AFTER),
        metrics_weighted=choose("metrics_weighted", False, more=(False, True)),
        first_epoch=choose("first_epoch", 0, more=(0, 0, epochs - 1)),
        validation_freq=choose("validation_freq", 1, more=(1, 2)),
        validation_steps=choose("validation_steps", 0, more=(0, 1)),
        run_eagerly=choose("run_eagerly", False, more=(False,) * 8 + (True,)),
    )


def _layers(some: Callable[..., Any], of: str, *, is_each: bool) -> tuple[str, ...]:
    if is_each:
        return tuple(some("layers", EACH_LAYERS[of], 2))
    return tuple(some("layers", LAYERS[of], 2 if of == "tokens" else 3, more=MORE_LAYERS[of]))


def _draw_ordinary(seed: int, *, dtype: str) -> Program:
    """Returns a program of an ordinary seed: it evaluates and predicts, and most of its batches are even."""

    def choose(axis: str, *choices: Any) -> Any:
        return random.Random(f"{seed}/{axis}").choice(choices)

    def some(axis: str, choices: Sequence[Any], most: int) -> tuple[Any, ...]:
        generator = random.Random(f"{seed}/{axis}")
        return tuple(generator.sample(choices, generator.randint(0, min(most, len(choices)))))

    inputs = choose("inputs", *ORDINARY_INPUTS)
    of_layers = {"text": "tokens", "sparse": "vector"}.get(inputs, inputs)
    task = choose("task", *ORDINARY_LOSSES)
    loss = choose("loss", *ORDINARY_LOSSES[task])
    model = choose("model", *ORDINARY_MODELS)
    functions = (
        *(("train_step", "test_step") if model in ("own_train_step", "own_metrics") else ()),
        *(("call",) if model not in ("functional", "sequential") else ()),
        *(("loss",) if task == "regression" else ()),
        *(("layer",) if of_layers != "tokens" else ()),
    )
    decorated = choose("decorated", KEEP, *functions)
    layer_names = some("layers", ORDINARY_LAYERS[of_layers], 2)
    data = choose("data", *ORDINARY_DATA)
    if inputs in OF_DATASETS and data not in ("dataset", "shuffled", "function"):
        data = "dataset"
    call = choose("call", "ctx.fit", "model.fit")
    if call == "model.fit" and data == "function":
        data = "dataset"
    # Without a seed each run takes the rows in another order, which matters if there are several batches.
    is_seeded = choose("is_seeded", True, True, False)
    shuffle = data == "arrays" and call == "model.fit" and choose("shuffle", False, True)
    num_examples = choose("num_examples", 32, 64, 64, 96, 50, 65)
    before = some("before", CALLS, 2)
    callbacks = some("callbacks", ("plateau", "rate", "stopping", "best"), 1)
    more = some("after", ("fit", "recompile", "freeze", "rate", "reload", "whole", *CALLS[2:]), 1)
    always = [name for name in ("evaluate", "predict") if name not in before or choose(name, True, False)]
    after = [*always, *more]
    random.Random(f"{seed}/order").shuffle(after)
    return Program(
        seed=seed,
        dtype=dtype,
        inputs=inputs,
        layers=layer_names,
        task=task,
        loss="own_function" if decorated == "loss" and task == "regression" else loss,
        outputs=choose("outputs", 1, 1, 1, 2),
        metrics=some("metrics", (*METRICS[task], "names"), 2),
        optimizer=choose("optimizer", *ORDINARY_OPTIMIZERS),
        clipping=choose("clipping", *[KEEP] * 5, "clipnorm"),
        schedule=choose("schedule", KEEP, KEEP, KEEP, "cosine"),
        weights=choose("weights", KEEP, KEEP, KEEP, "sample", "class"),
        model=model,
        data=data,
        shuffle=shuffle,
        num_examples=num_examples,
        batch_size=num_examples if shuffle and not is_seeded else choose("batch_size", 16, 32, 8, 16, 32, 12),
        epochs=choose("epochs", 1, 2, 2, 3),
        steps_per_execution=choose("steps_per_execution", 1, 1, 1, 2),
        validation=choose("validation", KEEP, KEEP, "data", "split"),
        callbacks=callbacks if choose("has_callbacks", False, True) else (),
        call=call,
        before=before,
        after=tuple(after),
        decorated=decorated,
        is_seeded=is_seeded,
    )
