"""ctx.fit: Keras's own `fit`, with reports, checkpoints and restore around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from raydist.data.batches import Batches
from raydist.training.input import recipes, resume, train_data
from raydist.training.keras_patches import adapters
from raydist.training.trainers.export import export
from raydist.training.trainers.run_callbacks import Counter, run_callbacks

if TYPE_CHECKING:
    from raydist.training.context import TaskContext


def fit(
    context: TaskContext,
    model: Any,
    data: Any,
    *,
    epochs: int,
    steps_per_epoch: int | None,
    validation_data: Any,
    callbacks: Sequence[Any],
) -> Any:
    """Trains `model` from where the newest checkpoint ended; see TrainContext.fit."""
    base = adapters.keras_of(model).callbacks.Callback
    adapters.check(model, context.strategy)
    counter = Counter(context)
    context.trains_on(data, resumed=counter.here)
    if isinstance(data, Batches):
        steps_per_epoch = steps_per_epoch or data.steps_per_epoch
        recipes.check_length(data, epochs * steps_per_epoch)
        start_step = counter.epoch * steps_per_epoch + counter.step_in_epoch
        dataset = recipes.distribute(data, context.strategy, start_step=start_step)
    else:
        dataset = train_data.read(data, context.strategy, auto_shard=context.auto_shard)
    validation_steps = None
    if isinstance(validation_data, Batches):
        # One iterator goes from epoch to epoch; tf_keras wants the number of steps.
        validation_steps = validation_data.steps_per_epoch
        validation_data = recipes.distribute(validation_data.for_epochs(None), context.strategy)
    elif isinstance(validation_data, tf.data.Dataset) or callable(validation_data):
        validation_data = train_data.read(validation_data, context.strategy, auto_shard=context.auto_shard)
    if counter.is_done and steps_per_epoch is None and isinstance(dataset, tf.data.Dataset):
        # A later fit on the same data shuffles on from here.
        resume.drop_passes(dataset, epochs)
    before, after = run_callbacks(
        counter,
        base,
        element_spec=resume.element_spec(dataset),
        users=tf.nest.flatten(list(callbacks)),
        resumption=resume.Resumption(resume.Start(epoch=counter.epoch, step=counter.step_in_epoch)),
    )
    history = model.fit(
        dataset,
        epochs=epochs,
        initial_epoch=counter.first_epoch(epochs),
        steps_per_epoch=steps_per_epoch,
        validation_data=validation_data,
        validation_steps=validation_steps,
        callbacks=[before, *callbacks, after],
        verbose=2 if context.is_chief else 0,
    )
    if not counter.is_done:  # a later one exports
        context.loop_step = max(context.loop_step, counter.step)
        export(context, model, fit=counter.number)
    return history


def callbacks_of(context: TaskContext) -> list[Any]:
    """Returns callbacks for the user's own `model.fit`; see TrainContext.callbacks."""
    base = tf.keras.callbacks.Callback
    return list(run_callbacks(Counter(context), base, element_spec=None))
