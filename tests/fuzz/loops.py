"""A random loop of `ctx.train_steps`: losses of the user's own, one or two optimizers, nested batches.

It has the model, data and optimizer of the random program of the same seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from tests.fuzz.program import KEEP, Program, program_of

PREFIX = "loop"
# How the losses of a step become one.
LOSSES = ("mean", "sum", "average_loss", "object", "sum_object")


@dataclass(frozen=True, kw_only=True)
class Loop:
    """One random loop; each field but the first two is an axis, whose first value is the simplest.

    Attributes:
      program: What it has in common with the program of its seed.
      structure: Of a batch.
      num_optimizers: With two, each has every other variable.
      again: Whether the loop is run twice.
    """

    program: Program
    simplified: tuple[str, ...] = ()
    loss: str = "mean"
    structure: str = "tuple"
    num_optimizers: int = 1
    num_steps: int = 6
    steps_per_call: int = 1
    regularizes: bool = False
    again: bool = False

    @property
    def name(self) -> str:
        """`loop17`, or `loop17~loss` where an axis of its own or of its program was simplified."""
        own = [f"{PREFIX}{self.program.name}", *self.simplified]
        return "~".join(own)

    @property
    def dtype(self) -> str:
        return self.program.dtype

    def describe(self) -> str:
        """The axes that are not at their simplest value."""
        said = [
            f"{one.name}={getattr(self, one.name)}"
            for one in fields(self)
            if one.name not in ("program", "simplified") and getattr(self, one.name) != one.default
        ]
        return f"{self.name}: {', '.join(said) or 'the simplest loop'}; {self.program.describe()}"

    def simpler(self) -> list[Loop]:
        """Returns the loops with one axis more at its simplest value."""
        axes = [one for one in fields(self) if one.name not in ("program", "simplified")]
        of_loop = [
            loop_of(f"{self.name}~{one.name}") for one in axes if getattr(self, one.name) != one.default
        ]
        of_program = [
            loop_of("~".join([f"{PREFIX}{one.name}", *self.simplified])) for one in self.program.simpler()
        ]
        return of_loop + of_program


def loop_of(name: str) -> Loop:
    """Returns the loop of a name as `Loop.name` writes it."""
    start, *simplified = name.removeprefix(PREFIX).split("~")
    own = [one.name for one in fields(Loop)]
    of_program = "~".join([start, *(axis for axis in simplified if axis not in own)])
    loop = _draw(program_of(of_program))
    defaults = {one.name: one.default for one in fields(Loop)}
    axes = tuple(axis for axis in simplified if axis in own)
    changes: dict[str, Any] = {axis: defaults[axis] for axis in axes}
    return replace(loop, **changes, simplified=axes)


def _draw(program: Program) -> Loop:
    def choose(axis: str, *choices: Any) -> Any:
        return random.Random(f"{program.seed}/loop/{axis}").choice(choices)

    common = replace(
        program,
        model="functional",
        outputs=1,
        metrics=(),
        weights=KEEP,
        data="dataset",
        loss="mse" if program.task == "regression" else program.loss,
    )
    return Loop(
        program=common,
        loss=choose("loss", *LOSSES),
        structure=choose("structure", "tuple", "dict", "nested"),
        num_optimizers=choose("num_optimizers", 1, 1, 2),
        num_steps=choose("num_steps", 6, 4, 9),
        steps_per_call=choose("steps_per_call", 1, 2, 3),
        regularizes=choose("regularizes", False, False, True),
        again=choose("again", False, True),
    )


def run(loop: Loop, ctx: Any) -> Any:
    """Trains and returns the weights, the optimizers, and what the step's metrics hold."""
    import tensorflow as tf

    from tests.fuzz.models import build, optimizer_of
    from tests.fuzz.training import floats
    from tests.programs.outcome import outcome

    keras, program = tf.keras, loop.program
    with floats(program.dtype):
        keras.utils.set_random_seed(program.seed)
        with ctx.strategy.scope():
            model = build(program)
            optimizers = [optimizer_of(program) for _ in range(loop.num_optimizers)]
            parts = [
                model.trainable_variables[start :: loop.num_optimizers] for start in range(len(optimizers))
            ]
            for optimizer, variables in zip(optimizers, parts, strict=True):
                optimizer.build(variables)
            shown, counted = (keras.metrics.Mean(name=name) for name in ("shown", "counted"))
            spread = keras.metrics.MeanAbsoluteError(name="spread")
        compute = _loss(loop)

        def step_fn(batch: Any) -> dict[str, Any]:
            x, y = _unpacked(loop, batch)
            with tf.GradientTape(persistent=True) as tape:
                outputs = model(x, training=True)
                loss = compute(y, outputs)
                if loop.regularizes and loop.loss not in ("average_loss", "sum", "sum_object"):
                    loss += 0.01 * tf.add_n([tf.reduce_sum(one**2) for one in model.trainable_variables])
            for optimizer, variables in zip(optimizers, parts, strict=True):
                gradients = tape.gradient(loss, variables)
                optimizer.apply_gradients(zip(gradients, variables, strict=True))
            shown.update_state(loss)
            counted.update_state(tf.shape(outputs)[0])
            spread.update_state(tf.zeros_like(outputs), outputs)
            return {"loss": loss}

        for _ in range(1 + loop.again):
            ctx.train_steps(
                step_fn, _data(loop), num_steps=loop.num_steps, steps_per_call=loop.steps_per_call
            )
        values = {one.name: [float(one.result())] for one in (shown, counted, spread)}
    return outcome(values, models=[model], optimizers=optimizers)


def _loss(loop: Loop) -> Callable[[Any, Any], Any]:
    import tensorflow as tf

    from tests.fuzz.models import loss_of

    each, whole, summed = (loss_of(loop.program, reduction=kind) for kind in ("none", "mean", "sum"))
    size = loop.program.batch_size
    return {
        "mean": lambda y, outputs: tf.reduce_mean(each(y, outputs)),
        "sum": lambda y, outputs: tf.reduce_sum(each(y, outputs)),
        "average_loss": lambda y, outputs: tf.nn.compute_average_loss(
            each(y, outputs), global_batch_size=size
        ),
        "object": whole,
        "sum_object": summed,
    }[loop.loss]


def _data(loop: Loop) -> Any:
    import tensorflow as tf

    from tests.fuzz.data import arrays

    x, y, _ = arrays(loop.program, loop.program.num_examples)
    whole = {"tuple": (x, y), "dict": {"x": x, "y": y}, "nested": {"all": (x, {"y": y})}}[loop.structure]
    return tf.data.Dataset.from_tensor_slices(whole).batch(loop.program.batch_size)


def _unpacked(loop: Loop, batch: Any) -> tuple[Any, Any]:
    if loop.structure == "tuple":
        return batch[0], batch[1]
    if loop.structure == "dict":
        return batch["x"], batch["y"]
    return batch["all"][0], batch["all"][1]["y"]
