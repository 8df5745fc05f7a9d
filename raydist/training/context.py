"""TaskContext: the TrainContext of a task that runs TensorFlow."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from raydist.data.batches import Batches
from raydist.errors import UnsupportedError
from raydist.metrics.parquet import MetricsWriter
from raydist.metrics.records import MetricRow, Scope
from raydist.planning.assignment import TaskAssignment
from raydist.planning.learning_rate import ScaledRate
from raydist.spec.near import suggest
from raydist.spec.tasks import TaskType
from raydist.training.checkpointing.checkpoints import TaskCheckpoints
from raydist.training.checkpointing.saved_state import SavedState
from raydist.training.checkpointing.schedule import Cadence
from raydist.training.input import recipes
from raydist.training.input.train_data import naming_mistakes
from raydist.training.reporting.commands import Orders
from raydist.training.reporting.progress import TaskProgress

if TYPE_CHECKING:
    from raydist.training.parameter_server.sources import SourceFolder
    from raydist.training.trainers.export import ExportFolder


class TaskContext:
    """What the train function is given; see raydist.train_context.TrainContext.

    Beside the public surface it carries what `fit` and `train_steps` share: `progress`,
    `checkpoints`, `cadence`, `sources` (where workers under ParameterServer learn what to read), and the
    steps completed.
    """

    def __init__(
        self,
        assignment: TaskAssignment,
        *,
        strategy: tf.distribute.Strategy,
        progress: TaskProgress,
        checkpoints: TaskCheckpoints,
        metrics: MetricsWriter,
        sources: SourceFolder,
        coordinator: Any = None,
        orders: Orders | None = None,
        export_folder: ExportFolder | None = None,
    ) -> None:
        job = assignment.job
        self.strategy = strategy
        self.coordinator = coordinator
        self.orders = orders or Orders()
        self.params = job.params
        self.task = assignment.task
        self.is_chief = assignment.is_chief
        self.num_workers = assignment.num_workers
        self.has_evaluator = job.evaluator
        self.partitioner = job.partitioner
        self.attempt = assignment.attempt
        self.run_name = assignment.job.name
        self.storage = assignment.run_uri
        self.progress = progress
        self.checkpoints = checkpoints
        self.cadence = Cadence(job.checkpoint_every, each_epoch=job.keep_best is not None)
        self.export_folder = export_folder
        self.sources = sources
        self.restored: SavedState | None = None  # by the train function
        self._data: int | None = None  # what SavedState.data is to be
        self.auto_shard = job.auto_shard
        self.step = 0
        self.num_fits = 0  # calls of fit so far
        self.fitted: list[tuple[int, Any]] = []  # number and model of those that have ended
        self.steps_repeated = 0  # by the fits and loops that are done
        self.loop_step = 0  # where the next train_steps begins
        self._datasets = assignment.datasets
        self._data_service = assignment.data_service
        self._num_distributed = 0  # data sets that were given to the data workers so far
        self._metrics = metrics
        self._registered: dict[str, Any] = {}

    def fit(
        self,
        model: Any,
        train_data: Any,
        *,
        epochs: int,
        steps_per_epoch: int | None = None,
        validation_data: Any = None,
        callbacks: Sequence[Any] = (),
    ) -> Any:
        # Keras: a job with a custom loop may do without.
        if self.task.task_type is TaskType.EVALUATOR:
            from raydist.training.trainers import evaluator

            return evaluator.follow(self, model, validation_data)
        if self.coordinator is not None:
            from raydist.training.parameter_server.fit import fit
        else:
            from raydist.training.trainers.keras_fit import fit
        with naming_mistakes():
            return fit(
                self,
                model,
                train_data,
                epochs=epochs,
                steps_per_epoch=steps_per_epoch,
                validation_data=validation_data,
                callbacks=callbacks,
            )

    def callbacks(self) -> list[Any]:
        from raydist.training.trainers import keras_fit

        return keras_fit.callbacks_of(self)

    def dataset(self, name: str) -> Any:
        if name in self._datasets:
            return self._datasets[name]
        if self.coordinator is not None or self.task.task_type is TaskType.EVALUATOR:
            raise UnsupportedError(
                f"ctx.dataset({name!r}) has nothing for {self.task}: under parameter_server each worker "
                "makes its own data; give ctx.fit a function that reads the files into a tf.data.Dataset"
            )
        if not self._datasets:
            raise UnsupportedError(
                f"ctx.dataset got {name!r}, and the run was given no datasets; give them in Python, with "
                f"raydist.run(job, datasets={{{name!r}: ray.data.read_parquet(...)}})"
            )
        raise UnsupportedError(
            f"ctx.dataset got {name!r}, which the run was not given; {suggest(name, self._datasets)}"
        )

    def distribute(self, dataset: Any, *, sharding: str = "dynamic") -> Any:
        from raydist.training.cluster import data_service

        data_service.check(dataset, sharding)
        if self._data_service is None:
            self.note("ctx.distribute changes nothing: the run has no data workers (--data-workers N)")
            return dataset
        self._num_distributed += 1
        return data_service.distribute(
            dataset,
            sharding=sharding,
            service=self._data_service,
            name=f"data-{self._num_distributed}" if self.num_workers > 1 else None,
        )

    def train_steps(
        self,
        step_fn: Callable[[Any], Mapping[str, Any]],
        train_data: Any,
        *,
        num_steps: int,
        steps_per_call: int = 10,
    ) -> Mapping[str, float]:
        from raydist.training.trainers import custom_loop

        with naming_mistakes():
            return custom_loop.train_steps(
                self, step_fn, train_data, num_steps=num_steps, steps_per_call=steps_per_call
            )

    def report(self, metrics: Mapping[str, float], *, step: int | None = None) -> None:
        values = {name: _float(name, value) for name, value in metrics.items()}
        at_step = self.step if step is None else step
        self.progress.completed(at_step)
        if self.is_chief:
            self.report_global(values, step=at_step)
        else:
            self.progress.reported(values)
            self._append(values, step=at_step, epoch=None, scope=Scope.LOCAL)

    def save(self, *, step: int, **trackables: Any) -> None:
        self._registered = dict(trackables)
        self.step = max(self.step, step)
        self.save_now(trackables, step=step)

    def restore(self, **trackables: Any) -> int | None:
        self._registered = dict(trackables)
        state = self.checkpoints.newest()
        if state is None:
            return None
        self.checkpoints.restore(state, trackables)
        self.step = state.step
        self.restored = state
        return state.step

    def global_batch_size(self, per_replica: int) -> int:
        return per_replica * self.strategy.num_replicas_in_sync

    def scale_learning_rate(
        self,
        base: float,
        *,
        base_batch_size: int,
        batch_size: int,
        rule: str = "linear",
        warmup_steps: int = 0,
    ) -> Any:
        rate = ScaledRate(
            base=base,
            base_batch_size=base_batch_size,
            batch_size=batch_size,
            rule=rule,
            warmup_steps=warmup_steps,
        )
        self.note(f"learning rate {rate}")
        if not rate.warmup_steps:
            return rate.scaled
        # A straight line that ends flat. Keras's own, of the Keras in use, so that the exported model needs
        # no raydist to be loaded.
        return tf.keras.optimizers.schedules.PolynomialDecay(
            rate.base, int(rate.warmup_steps), end_learning_rate=rate.scaled, power=1.0
        )

    def note(self, sentence: str) -> None:
        print(f"raydist: {sentence}", flush=True)  # in the task's log, where it happens
        self.progress.note(sentence)

    def report_global(self, metrics: Mapping[str, float], *, step: int, epoch: int | None = None) -> None:
        """Records values that hold for the whole run; every task calls it, the chief writes."""
        self.step = max(self.step, step)
        self.progress.reported(metrics)
        if self.is_chief:
            self._append(metrics, step=step, epoch=epoch, scope=Scope.GLOBAL)

    def report_evaluation(self, metrics: Mapping[str, float], *, step: int, epoch: int) -> None:
        """Records what an evaluator found for the checkpoint of `step`."""
        self.progress.reported(metrics)
        self._append(metrics, step=step, epoch=epoch, scope=Scope.GLOBAL)

    def record_local(self, metrics: Mapping[str, float], *, step: int, epoch: int | None) -> None:
        """Records this task's own running values."""
        self.step = max(self.step, step)
        self._append(metrics, step=step, epoch=epoch, scope=Scope.LOCAL)

    def steps_to_checkpoint(self, step: int) -> int:
        """Returns how many steps may run from `step` on before a checkpoint is due, at least 1."""
        return self.cadence.steps_left(step) if self._registered else 1 << 30

    def save_registered(self) -> None:
        """Saves what the train function gave to `restore` or `save`, if anything, and if it is new."""
        if self._registered and self.checkpoints.last_saved_step != self.step:
            self.save_now(self._registered, step=self.step)

    def wants_save(self, step: int) -> bool:
        """Whether this task wants a checkpoint after `step` steps: for an order, or by the chief's clock."""
        if self.checkpoints.last_saved_step == step:
            return False
        is_due = self.is_chief and self.cadence.is_due_after(self.checkpoints.seconds_since_save)
        return is_due or self.orders.save.is_set()

    def wants_registered_save(self, step: int) -> bool:
        """Whether this task asks for one, and the train function has said of what."""
        return bool(self._registered) and self.wants_save(step)

    def save_now(self, trackables: Mapping[str, Any], *, step: int, **position: Any) -> None:
        """Saves; see TaskCheckpoints.save. Every task calls it at the same step."""
        # Before the copy is made, so that an order that comes in later is kept for the next step.
        self.orders.save.clear()
        self.checkpoints.save(trackables, step=step, data=self._data, **position)

    def trains_on(self, data: Any, *, resumed: SavedState | None) -> None:
        """Takes note of what is trained on from here, which checkpoints will name.

        Args:
          resumed: The checkpoint that this training goes on from.

        Raises:
          UnsupportedError: It was trained on other batches of raydist.data.
        """
        self._data = data.fingerprint() if isinstance(data, Batches) else None
        if resumed is not None and self._data is not None:
            recipes.check_same(self._data, resumed)

    def _append(self, metrics: Mapping[str, float], *, step: int, epoch: int | None, scope: Scope) -> None:
        now = time.time()
        self._metrics.append(
            MetricRow(
                run=self.run_name,
                attempt=self.attempt,
                task=self.task,
                step=step,
                epoch=epoch,
                wall_time=now,
                scope=scope,
                name=name,
                value=value,
            )
            for name, value in metrics.items()
        )


def _float(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise UnsupportedError(
            f"ctx.report got {name}={value!r}, which is no number; report scalars"
        ) from error
