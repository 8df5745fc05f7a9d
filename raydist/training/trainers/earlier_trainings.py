"""Trainings that have ended, before a resume or in this process, and the orders that they drew."""

from __future__ import annotations

from typing import Any, TypeAlias

import tensorflow as tf

from raydist.training.input import reshuffles
from raydist.training.keras_patches import adapters
from raydist.training.trainers.fit_position import FitPosition
from raydist.training.trainers.task_run import TaskRun
from raydist.training.trainers.trainer import FitRequest, LoopRequest

# Data as Keras's `fit` gets them, and their steps per epoch; None where the data's end ends an epoch.
Data: TypeAlias = tuple[Any, int | None]


def continue_from(run: TaskRun, request: FitRequest, position: FitPosition, *data: Data) -> None:
    """Brings the shuffles of a `fit`'s data to where they were at the checkpoint, but for its own epochs.

    Args:
      data: The training and the validation data.
    """
    run.ended.continue_with(*(dataset for dataset, _ in data))
    _take_validations(request, position.start.epoch, data[1])


def fit_ended(run: TaskRun, request: FitRequest, position: FitPosition, *data: Data, group_size: int) -> None:
    """Takes note of a `fit` that has ended; `data` as of `continue_from`."""
    dataset, steps_per_epoch = data[0]
    if not isinstance(dataset, tf.data.Dataset):
        return
    epochs, length = epochs_of(position, request), run.fit_lengths.get(position.number)
    counted = length.steps if length else None
    seeds = reshuffles.seeds_of_fit(
        dataset,
        epochs=epochs,
        steps_per_epoch=steps_per_epoch,
        steps=counted if counted is not None else epochs * (steps_per_epoch or 0),
        unread=adapters.adapter_of(request.model).unread,
        group_size=group_size,
    )
    if position.is_done:
        run.ended.add(dataset, seeds)
        run.ended.add(data[1][0], lambda: _take_validations(request, epochs, data[1]))
    elif seeds is None:
        run.ended.add(dataset, None)


def epochs_of(position: FitPosition, request: FitRequest) -> int:
    """Returns how many epochs a `fit` had that has ended; a callback may have stopped it early."""
    length = position.run.fit_lengths.get(position.number)
    return length.epochs if length else request.epochs - request.initial_epoch


def loop_ended(run: TaskRun, request: LoopRequest, *, is_done: bool) -> None:
    """Takes note of a loop of `ctx.train_steps` that has ended, before a resume if `is_done`."""
    if not isinstance(request.train_data, tf.data.Dataset):
        return
    seeds = reshuffles.seeds_of_loop(request.train_data, num_steps=request.num_steps)
    if is_done or seeds is None:
        run.ended.add(request.train_data, seeds)


def _take_validations(request: FitRequest, num_epochs: int, data: Data) -> None:
    """Takes the seeds of the validations after the first epochs of a `fit`."""
    dataset, steps = data
    if not isinstance(dataset, tf.data.Dataset):
        return
    epochs = range(request.initial_epoch, request.initial_epoch + num_epochs)
    count = sum(map(request.validates, epochs))
    adapter = adapters.adapter_of(request.model)
    if steps is not None and adapter.continues_validation:
        seeds = reshuffles.seeds_of_fit(
            dataset, epochs=count, steps_per_epoch=steps, steps=count * steps, unread=adapter.unread
        )
        if seeds is not None:
            seeds()
        return
    for _ in range(count):
        seeds = reshuffles.seeds_of_fit(
            dataset, epochs=1, steps_per_epoch=steps, steps=steps or 0, unread=adapter.unread
        )
        if seeds is not None:
            seeds()
