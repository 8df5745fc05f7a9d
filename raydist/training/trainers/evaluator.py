"""ctx.fit in an evaluator: evaluates each new checkpoint beside the training, on one device."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import keras

from raydist.data.batches import Batches
from raydist.errors import UnsupportedError
from raydist.training.checkpointing.saved_state import SavedState
from raydist.training.input import resume, train_data
from raydist.training.keras_patches import adapters
from raydist.training.keras_patches.keras3 import build
from raydist.training.parameter_server.evaluation import function_of
from raydist.training.trainers.run_callbacks import floats

if TYPE_CHECKING:
    from raydist.training.context import TaskContext

POLL_S = 0.5


def follow(context: TaskContext, model: Any, validation_data: Any) -> Any:
    """Evaluates the checkpoints of this `fit` until training is done; returns a Keras `History`.

    Reports `val_` values at the checkpoint's step, with `evaluator_lag_steps`, by how many steps the
    newest checkpoint was ahead when the evaluation was done, and `evaluator_lag_s`, the seconds since
    the evaluated one was found.
    """
    if validation_data is None:
        raise UnsupportedError(
            "the evaluator has nothing to evaluate: give ctx.fit validation_data, or use --no-evaluator"
        )
    library = adapters.keras_of(model)
    adapters.check(model, context.strategy)
    if isinstance(validation_data, (tuple, list)):
        validation_data = function_of(validation_data)
    # tf_keras wants the number of steps of a distributed data set.
    num_steps = validation_data.steps_per_epoch if isinstance(validation_data, Batches) else None
    validation_data = train_data.read(validation_data, context.strategy, auto_shard=context.auto_shard)
    _build(library, model, validation_data)
    history = library.callbacks.History()
    history.set_model(model)
    history.on_train_begin()
    number = context.num_fits
    context.num_fits += 1
    seen_step = 0
    while True:
        # Asked before the look at storage: what was committed by then is seen.
        is_last = context.orders.finish.is_set()
        state = context.checkpoints.newest_after(seen_step)
        seen_step = seen_step if state is None else state.step
        if state is not None and state.fit == number:
            _evaluate(context, model, validation_data, state, history, num_steps=num_steps)
        elif is_last or (state is not None and state.fit > number):
            return history
        else:
            context.orders.finish.wait(POLL_S)


def _evaluate(
    context: TaskContext, model: Any, data: Any, state: SavedState, history: Any, *, num_steps: int | None
) -> None:
    found_at_s = time.time()
    context.checkpoints.restore(state, {"model": model})
    # The data are read anew each time, so a generator or a shuffle begins at its beginning.
    logs = floats(model.evaluate(data, steps=num_steps, verbose=0, return_dict=True))
    lag_steps = max(0, context.checkpoints.newest_step() - state.step)
    metrics = {f"val_{name}": value for name, value in logs.items()}
    lag = {"evaluator_lag_steps": float(lag_steps), "evaluator_lag_s": time.time() - found_at_s}
    context.progress.evaluated(state.step, lag_steps=lag_steps)
    context.report_evaluation({**metrics, **lag}, step=state.step, epoch=state.epoch)
    history.on_epoch_end(state.epoch - 1, metrics)


def _build(library: Any, model: Any, data: Any) -> None:
    """Makes the variables, so that they can be restored."""
    spec = resume.element_spec(data)
    if library is keras:
        build.build(model, spec)
        return
    from raydist.training.keras_patches.tf_keras import build

    build.build(model, spec)
