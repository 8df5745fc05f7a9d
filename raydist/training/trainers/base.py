"""Trainer: how a task trains, chosen by its kind and the strategy; and TaskRun: what trainers share."""

from __future__ import annotations

import operator
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf

from raydist import tf_private
from raydist.data.batches import Batches
from raydist.errors import UnsupportedError
from raydist.planning.assignment import TaskAssignment
from raydist.spec.text import listed
from raydist.storage.run_storage import RunStorage
from raydist.training.checkpointing.checkpoints import TaskCheckpoints
from raydist.training.checkpointing.saved_state import FitLength, SavedState
from raydist.training.checkpointing.schedule import CheckpointSchedule, KeepSchedule
from raydist.training.checkpointing.variables import count_in, variables_of
from raydist.training.input.shuffle_seeds import EndedTrainings
from raydist.training.keras_patches.adapters import adapter_of, is_model
from raydist.training.reporting.progress import Commands
from raydist.training.reporting.reporter import Reporter, note
from raydist.training.trainers.export import export


@dataclass(frozen=True, kw_only=True)
class FitRequest:
    """The arguments of `TrainContext.fit`."""

    model: Any
    train_data: Any
    y: Any = None
    epochs: int
    batch_size: int | None = None
    shuffle: bool = True
    sample_weight: Any = None
    steps_per_epoch: int | None = None
    initial_epoch: int = 0
    validation_data: Any = None
    validation_split: float = 0.0
    validation_batch_size: int | None = None
    validation_steps: int | None = None
    validation_freq: int | Sequence[int] = 1
    class_weight: Mapping[int, float] | None = None
    accumulate: int = 1
    callbacks: Sequence[Any] = ()
    verbose: int | str | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "initial_epoch", "batch_size"):
            value = getattr(self, name)
            try:
                operator.index(0 if value is None else value)
            except TypeError:
                raise UnsupportedError(f"ctx.fit got {name}={value!r}; give a whole number") from None
        for one in self.callbacks if isinstance(self.callbacks, Sequence) else ():
            if isinstance(one, type):
                raise UnsupportedError(
                    f"ctx.fit got the class {one.__name__} as a callback; give an object of it, such as "
                    f"{one.__name__}()"
                )

    def validates(self, epoch: int) -> bool:
        """Whether the data are evaluated at the end of an epoch, counted from 0, as Keras counts."""
        if self.validation_data is None:
            return False
        freq = self.validation_freq
        return (epoch + 1) % freq == 0 if isinstance(freq, int) else epoch + 1 in freq


@dataclass(frozen=True, kw_only=True)
class LoopRequest:
    """The arguments of `TrainContext.train_steps`."""

    step_fn: Callable[[Any], Mapping[str, Any]]
    train_data: Any
    num_steps: int
    steps_per_call: int = 10


@dataclass(frozen=True, kw_only=True)
class EvaluateRequest:
    """The arguments of `TrainContext.evaluate`."""

    model: Any
    data: Any
    y: Any = None
    sample_weight: Any = None
    batch_size: int | None = None
    steps: int | None = None
    verbose: int | str | None = None


@dataclass(frozen=True, kw_only=True)
class PredictRequest:
    """The arguments of `TrainContext.predict`."""

    model: Any
    data: Any
    batch_size: int | None = None
    steps: int | None = None


class Trainer(Protocol):
    """What `TrainContext` hands its calls to."""

    def fit(self, request: FitRequest) -> Any:
        """Trains, or follows the training; returns a Keras `History`."""

    def evaluate(self, request: EvaluateRequest) -> dict[str, Any]:
        """Returns the metrics over the data, by name."""

    def predict(self, request: PredictRequest) -> Any:
        """Returns the outputs for all rows, in their order."""

    def train_steps(self, request: LoopRequest) -> Mapping[str, float]:
        """Runs the steps; returns the scalars of the last ones."""


# How the names of raydist's own variables begin, such as those of its clocks.
_OWN = "raydist_"


class Strategies(Protocol):
    """Where a task's strategy and its coordinator come from: a script builds them while it runs."""

    @property
    def strategy(self) -> tf.distribute.Strategy: ...
    @property
    def coordinator(self) -> Any: ...


class TaskRun:
    """One task of a run, while its train function runs: where it is, what it saves and when.

    Attributes:
      restored: The checkpoint that the train function restored by itself.
      num_fits: Calls of `fit` so far. `num_loops`: calls of `train_steps`.
      fit_lengths: How long each `fit` was, by number, those before a resume included.
      ended: Trainings that have ended, as far as the shuffles of later ones depend on them.
      steps_repeated: Steps applied twice, by trainings that are done; under parameter_server.
      registered: What the train function saves and restores by itself.
    """

    def __init__(
        self,
        assignment: TaskAssignment,
        *,
        strategies: Strategies,
        reporter: Reporter,
        checkpoints: TaskCheckpoints,
        commands: Commands,
        export_to: RunStorage | None,
    ) -> None:
        job = assignment.job
        self.assignment = assignment
        self._strategies = strategies
        self.reporter = reporter
        self.checkpoints = checkpoints
        self.commands = commands
        self._export_to = export_to
        self.schedule = CheckpointSchedule(job.checkpoint_every, each_epoch=job.keep_best is not None)
        self.auto_shard = job.auto_shard
        self.restored: SavedState | None = None
        self.num_fits = 0
        self.num_loops = 0
        self.fit_lengths: dict[int, FitLength] = {}
        self.ended = EndedTrainings()
        self.steps_repeated = 0
        self._fingerprint: int | None = None  # what SavedState.data is to be
        self.registered: Mapping[str, Any] = {}

    @property
    def data_seed(self) -> int:
        """The seed of the order of arrays that the next `fit` is given."""
        return self.data_seed_of(self.num_fits)

    def data_seed_of(self, fit: int) -> int:
        """Returns the seed of a `fit`'s order: several on the same data shuffle them differently."""
        return self.assignment.job.seed + fit

    @property
    def strategy(self) -> tf.distribute.Strategy:
        return self._strategies.strategy

    @property
    def coordinator(self) -> Any:
        """The ClusterCoordinator; None except under ParameterServer."""
        return self._strategies.coordinator

    def trains_on(self, data: Any, *, resumed: SavedState | None) -> None:
        """Takes note of what is trained on from here, which checkpoints will name.

        Raises:
          UnsupportedError: It was trained on other batches of raydist.data.
        """
        self._fingerprint = data.fingerprint() if isinstance(data, Batches) else None
        if resumed is None or self._fingerprint is None or resumed.data in (None, self._fingerprint):
            return
        raise UnsupportedError(
            f"train_data are other batches than those that checkpoint {resumed.uri} was trained on: the "
            "examples (files, their sizes), the seed, the batch size or window_mb have changed, so examples "
            "would be trained on twice, or never; give the data as they were, or begin a new run"
        )

    def save(self, trackables: Mapping[str, Any], *, step: int, **position: Any) -> None:
        """Saves, in every task; `position` has the other fields of SavedState.

        Outside of a `fit` or a loop it is the number of those that have ended.
        """
        # Before the copy is made, so that a command that comes in later is kept for the next step.
        self.commands.save.clear()
        self.checkpoints.save(trackables, step=step, **self._described(position))
        if self.commands.is_last_save.is_set():
            self.checkpoints.finish()
            # Until the controller, which learns of the checkpoint, ends the process. Peers wait for this one.
            threading.Event().wait()

    def keep(self, trackables: Mapping[str, Any], *, step: int, **position: Any) -> None:
        """Keeps in memory what `save` stores, in every task."""
        self.checkpoints.keep(trackables, step=step, **self._described(position))

    def keep_by(self, schedule: KeepSchedule, keep: Callable[[], None]) -> None:
        """Calls `keep` if that is due, in every task, and has the schedule know what it has cost."""
        if not schedule.is_due:
            return
        begun_at_s = time.perf_counter()
        keep()
        schedule.kept(time.perf_counter() - begun_at_s if self.assignment.is_chief else 0.0)
        if self.checkpoints.has_given_up_keeping:
            schedule.end()

    def _described(self, position: Mapping[str, Any]) -> dict[str, Any]:
        lengths = [(number, *length) for number, length in self.fit_lengths.items()]
        counts = {"fit": self.num_fits, "loop": self.num_loops}
        return {**counts, "data": self._fingerprint, "fit_lengths": lengths, **position}

    def wants_save(self, step: int) -> bool:
        """Whether this task wants a checkpoint after `step` steps."""
        return self.checkpoints.last_saved_step != step and self.is_save_wanted

    @property
    def is_save_wanted(self) -> bool:
        """Whether this task wants a checkpoint: on command, or by the chief's clock."""
        is_due = self.assignment.is_chief and self.schedule.is_due_after(self.checkpoints.seconds_since_save)
        return is_due or self.commands.save.is_set()

    def register(self, trackables: Mapping[str, Any]) -> None:
        """Takes what the train function saves and restores by itself; its loops save that by schedule.

        With the random state of tf_keras's layers, which are not among their model's variables.
        """
        self.registered = {**trackables, **_random_layers_of(trackables)}

    def restore(self, state: SavedState) -> None:
        """Assigns what is registered from `state`, in every task; random layers where it has as many."""
        known = dict(self.registered)
        for name in known.keys() & _random_layers_of(known).keys():
            if count_in(state.files, name) != len(known[name]):
                del known[name]
                if name in state.groups():
                    which = name.removesuffix(_RANDOM)
                    note(f"the random state of {which} is not restored: the checkpoint is of other layers")
        self.checkpoints.restore(state, known)
        self.reporter.step = state.step
        self.restored = state

    def note_unsaved(self, changed: Sequence[Any]) -> None:
        """Notes what of the variables that a loop changes its checkpoints will not have.

        Args:
          changed: `tf.Variable`s, as a trace of the loop's step shows them.
        """
        changed = [one for one in changed if not one.name.startswith(_OWN)]
        remedy = "call ctx.restore(model=model, optimizer=optimizer) first, with all that the step changes"
        if changed and not self.registered:
            note(
                "train_steps saves no checkpoints, because ctx.restore was given nothing to save, and a new "
                f"attempt starts over; {remedy}"
            )
            return
        saved = [one for name, given in self.registered.items() for one in variables_of(name, given)]
        names = [one.name.partition(":")[0] for one in changed if not tf_private.is_among(one, saved)]
        if names:
            note(
                "train_steps changes variables that ctx.restore was not given "
                f"({listed(names, most=3)}): checkpoints do not have them, and a new attempt "
                f"starts them over; {remedy}"
            )

    def steps_to_checkpoint(self, step: int) -> int:
        """Returns how many steps may run from `step` on before a checkpoint is due, at least 1."""
        return self.schedule.steps_left(step) if self.registered else 1 << 30

    def export(self, model: Any, *, fit: int, element_spec: Any) -> None:
        """Exports what a `fit` has trained, if the job asks for it. Every task calls it at its end."""
        self.checkpoints.settle_best(fit=fit, is_alone=self.commands.finish.is_set)
        if self._export_to is not None:
            export(
                model,
                self._export_to,
                fit=fit,
                element_spec=element_spec,
                checkpoints=self.checkpoints,
                is_chief=self.assignment.is_chief,
            )


_RANDOM = "-random"


def _random_layers_of(trackables: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Returns the random state of the models among `trackables` that their own variables lack, in groups."""
    models = {name: one for name, one in trackables.items() if is_model(one)}
    found = {f"{name}{_RANDOM}": adapter_of(one).random_variables(one) for name, one in models.items()}
    return {name: variables for name, variables in found.items() if variables}
