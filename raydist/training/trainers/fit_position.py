"""FitPosition: where one `fit` of the train function stands, what of it is in checkpoints; earlier fits.

Checkpoints have more than Keras lists: random state, and all else that training changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from raydist import tf_private
from raydist.errors import UnsupportedError
from raydist.spec.text import listed
from raydist.training.checkpointing import callback_state, variables
from raydist.training.checkpointing.saved_state import FitLength, SavedState, rate_of
from raydist.training.checks.known_steps import Known
from raydist.training.input import shuffle_seeds
from raydist.training.input.sources import Start
from raydist.training.keras_patches.adapters import adapter_of
from raydist.training.keras_patches.keras3 import adapter as keras3
from raydist.training.replicas import step_trace
from raydist.training.trainers.base import FitRequest, TaskRun


class FitPosition:
    """Where one `fit` stands: shared by the callback that runs before the user's and the one after.

    A train function may call `fit` several times, to train one model in phases, or several models. The
    newest checkpoint says in which of them it was written: those before are not repeated, those after start
    over. One that has ended gives all that it gave before from the checkpoint with its end, which is kept.

    Attributes:
      number: How many `fit`s came before this one. `is_done`: it ended before the newest checkpoint.
      state: The newest checkpoint, where it was written in this `fit`, or the one with its end. `here`: the
        former.
      epoch_size: Steps of the epoch before, where this process has seen its end. Of an epoch of unknown size
        a checkpoint may hold all steps, and nothing be left of it when the run resumes there.
      element_spec: The structure of a batch that Keras was given, once it was.
    """

    def __init__(
        self,
        run: TaskRun,
        number: int,
        state: SavedState | None,
        *,
        is_done: bool = False,
        initial_epoch: int = 0,
        accumulate: int = 1,
    ) -> None:
        """Takes the checkpoint, if there is one; see `of_next_fit`."""
        self.run = run
        self.number = number
        self.initial_epoch = initial_epoch
        self._accumulate = accumulate
        self.state = state
        self.is_done = is_done
        self.here = here = None if is_done else state
        self.step = self.state.step if self.state else run.reporter.step
        self.epoch = here.epoch if here else initial_epoch
        self.step_in_epoch = here.step_in_epoch if here else 0
        self.step_before = self.step
        self.known = Known(here.known_step if here else None)
        self._first_step = self.step  # of this process
        length = here.fit_length(number) if here else None
        # Steps of this `fit` before this process began; None if the checkpoint does not say.
        self._steps_before = 0 if here is None else length and length.steps
        self.epoch_size: int | None = None
        self.element_spec: Any = None
        self.restored_rate: float | None = None
        self.history: list[Mapping[str, Any]] = list(state.history) if state else []

    @classmethod
    def of_next_fit(cls, run: TaskRun, *, initial_epoch: int = 0, accumulate: int = 1) -> FitPosition:
        """Returns the position of the run's next `fit`, which is counted.

        Raises:
          UnsupportedError: The checkpoint is inside an epoch whose steps had another number of batches.
        """
        number, state = run.num_fits, run.checkpoints.newest()
        run.num_fits += 1
        is_done = state is not None and number < state.fit
        if state is not None and is_done:
            length = state.fit_length(number)
            if length is not None:
                run.fit_lengths[number] = length
            state = run.checkpoints.of_ended_fit(number)
            if state is None and (length is None or length.steps != 0):
                run.reporter.note(_LOST.format(number=number + 1))
        elif state is not None and number > state.fit:
            state = None
        position = cls(
            run, number, state, is_done=is_done, initial_epoch=initial_epoch, accumulate=accumulate
        )
        here = position.here
        if here is not None and here.step_in_epoch and here.accumulate != accumulate:
            raise UnsupportedError(
                f"ctx.fit got accumulate={accumulate}, and checkpoint {here.uri} is inside an epoch that had "
                f"{here.accumulate}, so examples would be trained on twice, or never; give "
                f"accumulate={here.accumulate}, or continue from the end of an epoch"
            )
        return position

    @property
    def start(self) -> Start:
        """Where the training data begin: the passes and steps that this `fit` has behind it."""
        return Start(epoch=max(0, self.epoch - self.initial_epoch), step=self.step_in_epoch)

    @property
    def length(self) -> FitLength:
        begun = self.epoch - self.initial_epoch + (self.step_in_epoch > 0)
        if self._steps_before is None:
            return FitLength(begun, None)
        return FitLength(begun, self._steps_before + self.step - self._first_step)

    def first_epoch(self, epochs: int) -> int:
        """Returns the epoch to begin with; `epochs` where nothing is left to do."""
        is_over = self.is_done or (self.state is not None and self.state.is_stopped)
        return epochs if is_over else min(self.epoch, epochs)

    def restore(self, model: Any) -> None:
        """Restores what the checkpoint has of the model, its optimizer and random state, if there is one."""
        state, run = self.state, self.run
        if state is None:
            return
        if self.is_done and run.restored is not None and not run.restored.is_of_fit:
            return  # the train function has restored what a loop has made of it since
        saved = state.groups()
        run.reporter.step = max(run.reporter.step, state.step)  # ctx.step, before the first step is done
        with run.strategy.scope():
            _make_global_generators(saved.intersection(_RANDOM))
        groups = _groups_beside(model)
        known = {name: variables for name, variables in groups.items() if name in saved}
        run.checkpoints.restore(state, {"model": model, "optimizer": model.optimizer, **known})
        if lost := saved.intersection((*_RANDOM, _UNLISTED)) - known.keys():
            run.reporter.note(
                f"the checkpoint has state that nothing in the model takes up: {', '.join(sorted(lost))}"
            )
        if _UNLISTED in groups.keys() - saved:
            run.reporter.note(f"the checkpoint has no {_described(model)}; they start over")
        if state.eager_seeds is not None:
            tf_private.set_eager_seeds(state.eager_seeds)
        self.restored_rate = rate_of(model.optimizer) if self.step_in_epoch else None

    def check_equal(self, model: Any) -> None:
        """Checks that all workers begin with the same model. Every task calls it before the first step."""
        trackables = {"model": model, "optimizer": model.optimizer, **_groups_beside(model)}
        self.run.checkpoints.check_equal(trackables, when="before the first step of this fit")

    def restore_callbacks(self, callbacks: Sequence[Any]) -> None:
        """Gives the user's callbacks their states back."""
        if self.state is None:
            return
        states = callback_state.unpack(dict(self.state.callbacks), self.state.arrays())
        sentences = callback_state.restore(callbacks, states)
        if self.run.assignment.is_chief:  # others may have fewer callbacks, and the checkpoint is the chief's
            for sentence in sentences:
                self.run.reporter.note(sentence)

    def end(self, model: Any, callbacks: Sequence[Any]) -> None:
        """Saves the end of this `fit`, or restores it; called last, when the user's callbacks have ended."""
        if self.state is not None and self.state.has_ended:
            # They had ended before it was saved, and have done so twice now.
            self.restore(model)
            self.restore_callbacks(callbacks)
        self.save(model, callbacks, has_ended=True)
        if not self.is_done:
            self.run.checkpoints.fit_ended(self.number)

    def save(self, model: Any, callbacks: Sequence[Any], *, has_ended: bool = False) -> None:
        """Saves, unless this step is saved already. Every task calls it at the same step."""
        if self.is_done:
            return
        self.run.fit_lengths[self.number] = self.length
        if self.run.checkpoints.last_saved_step != self.step:
            trackables, fields = self._state(model, callbacks)
            self.run.save(trackables, step=self.step, has_ended=has_ended, **fields)

    def keep(self, model: Any, callbacks: Sequence[Any]) -> None:
        """Keeps in memory what `save` stores. Every task calls it at the same step."""
        self.run.fit_lengths[self.number] = self.length
        trackables, fields = self._state(model, callbacks)
        self.run.keep(trackables, step=self.step, known_step=self.known.packed(), **fields)

    def _state(self, model: Any, callbacks: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns what is saved: what has variables, and the fields of SavedState."""
        trackables = {"model": model, "optimizer": model.optimizer, **_groups_beside(model)}
        if self.step_in_epoch:
            trackables["metrics"] = list(model.metrics)
        # Asked in every task, because a callback may read a metric for it, which is a collective.
        states = callback_state.states_of(callbacks)
        packed, arrays = callback_state.pack(states) if self.run.assignment.is_chief else ({}, {})
        return trackables, {
            "epoch": self.epoch,
            "step_in_epoch": self.step_in_epoch,
            "history": tuple(self.history),
            "fit": self.number,
            "accumulate": self._accumulate,
            "is_stopped": bool(model.stop_training) and not self.step_in_epoch,
            "callbacks": packed,
            "arrays": arrays,
            "eager_seeds": tf_private.eager_seeds(),
        }


_LOST = (
    "fit {number} of the train function has ended, and the checkpoint with its end is not stored, as in a "
    "run of an older raydist. Its history is empty, and its model has the weights that it begins with, "
    "unless a later fit restores it. Begin a new run if the train function uses them."
)


def _groups_beside(model: Any) -> dict[str, list[Any]]:
    """Returns what a checkpoint has besides the variables that Keras lists, in groups."""
    return {**_random_groups_of(model), **_unlisted_groups_of(model)}


# Data as Keras's `fit` gets them, and their steps per epoch; None where the data's end ends an epoch.
Data: TypeAlias = tuple[Any, int | None]


def continue_from(run: TaskRun, request: FitRequest, position: FitPosition, *data: Data) -> None:
    """Brings the shuffles of a `fit`'s data to where they were at the checkpoint, but for its own epochs."""
    run.ended.continue_with(*(dataset for dataset, _ in data))
    _take_validations(request, position.start.epoch, data[1])


def fit_ended(run: TaskRun, request: FitRequest, position: FitPosition, *data: Data, group_size: int) -> None:
    """Takes note of a `fit` that has ended; `data` as of `continue_from`."""
    dataset, steps_per_epoch = data[0]
    if not isinstance(dataset, tf.data.Dataset):
        return
    epochs, length = epochs_of(position, request), run.fit_lengths.get(position.number)
    seeds = shuffle_seeds.seeds_of_fit(
        dataset,
        epochs=epochs,
        steps_per_epoch=steps_per_epoch,
        steps=length.steps if length else None,
        unread=adapter_of(request.model).unread,
        group_size=group_size,
    )
    run.ended.add(dataset, seeds, is_done=position.is_done)
    run.ended.add(data[1][0], lambda: _take_validations(request, epochs, data[1]), is_done=position.is_done)


def epochs_of(position: FitPosition, request: FitRequest) -> int:
    """Returns how many epochs a `fit` had that has ended; a callback may have stopped it early."""
    length = position.run.fit_lengths.get(position.number)
    return length.epochs if length else request.epochs - request.initial_epoch


def _take_validations(request: FitRequest, num_epochs: int, data: Data) -> None:
    """Takes the seeds of the validations after the first epochs of a `fit`."""
    dataset, steps = data
    if not isinstance(dataset, tf.data.Dataset):
        return
    epochs = range(request.initial_epoch, request.initial_epoch + num_epochs)
    count = sum(map(request.validates, epochs))
    adapter = adapter_of(request.model)
    goes_on = steps is not None and adapter.continues_validation
    for at_once in [count] if goes_on else [1] * count:
        seeds = shuffle_seeds.seeds_of_fit(
            dataset, epochs=at_once, steps_per_epoch=steps, unread=adapter.unread
        )
        if seeds is not None:
            seeds()


_KERAS, _TENSORFLOW, _LAYERS = "random-keras", "random-tensorflow", "random-layers"
_RANDOM: tuple[str, ...] = (_KERAS, _TENSORFLOW, _LAYERS)


def _random_groups_of(model: Any) -> dict[str, list[Any]]:
    """Returns the variables that hold random state besides the model's own, in groups of a checkpoint."""
    found = {
        _KERAS: keras3.global_random_variables(),
        _TENSORFLOW: tf_private.global_random_variables(),
        _LAYERS: adapter_of(model).random_variables(model),
    }
    return {name: variables for name, variables in found.items() if variables}


def _make_global_generators(names: set[str]) -> None:
    """Makes the global generators that a checkpoint has, if nothing has been drawn from them yet."""
    if _KERAS in names:
        keras3.make_global_generator()
    if _TENSORFLOW in names:
        tf.random.get_global_generator()  # makes it, unless it is there


_UNLISTED = "state"


def _unlisted_groups_of(model: Any) -> dict[str, list[Any]]:
    """Returns what training may change and no other group of a checkpoint holds: none or one, `_UNLISTED`."""
    listed = [model, *([] if model.optimizer is None else [model.optimizer]), list(model.metrics)]
    known = {
        id(tf_private.distributed(one))
        for trackable in listed
        for one in variables.variables_of("", trackable)
    }
    for group in _random_groups_of(model).values():
        known.update(id(tf_private.distributed(one)) for one in group)
    found: dict[int, Any] = {}
    for variable in _all_variables(model):
        if id(tf_private.distributed(variable)) not in known:
            found.setdefault(id(tf_private.distributed(variable)), variable)
    return {_UNLISTED: list(found.values())} if found else {}


def _described(model: Any) -> str:
    """Returns what the group holds, by the names of its first variables."""
    found = _unlisted_groups_of(model).get(_UNLISTED, ())
    return f"variables {listed((one.name for one in found), most=5)}"


def unsaved(model: Any) -> Iterator[str]:
    """Yields a sentence for each kind of state that training may change and that no checkpoint holds."""
    found = list(_descendants(model))
    # Those of Keras's layers that look up a vocabulary: the train function makes it, and no step changes it.
    fixed = {id(getattr(one, name, None)) for one in found for name in ("lookup_table", "token_counts")}
    tables = [one for one in found if isinstance(one, _TABLES) and id(one) not in fixed]
    if tables:
        yield (
            f"checkpoints do not hold {len(tables)} mutable lookup table(s) of model {model.name}; "
            "a new attempt begins with them as the train function makes them"
        )
    if any(isinstance(one, tf.data.Iterator) for one in found):
        yield (
            f"checkpoints do not hold the tf.data iterators of model {model.name}; "
            "a new attempt starts them over"
        )
    adapter = adapter_of(model)
    optimizers = [one for one in found if adapter.is_optimizer(one) and one is not model.optimizer]
    for optimizer in optimizers:
        if not adapter.is_built(optimizer):
            yield (
                f"checkpoints do not hold optimizer {optimizer.name} of model {model.name}, which has no "
                "moments before its first update; build it: optimizer.build(variables)"
            )


_TABLES = (tf.lookup.experimental.MutableHashTable, tf.lookup.experimental.DenseHashTable)


def _all_variables(model: Any) -> Iterator[Any]:
    traced, adapter = step_trace.traced(model), adapter_of(model)
    for trackable in [*_descendants(model), *traced.optimizers]:
        wrapped = adapter.wrapped_variable(trackable)
        if wrapped is not None:
            yield wrapped
        elif isinstance(trackable, (tf.Variable, tf.random.Generator)) or adapter.is_optimizer(trackable):
            yield from variables.variables_of("", trackable)
    yield from traced.variables


def _descendants(model: Any) -> Iterator[Any]:
    """Yields what `tf.train.Checkpoint` would save of a model, in the order of its attributes."""
    yield from tf.train.TrackableView(model).descendants()
