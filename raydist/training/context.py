"""TaskContext: the TrainContext of a task that runs TensorFlow."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from raydist.errors import UnsupportedError
from raydist.planning.batch_sizes import ScaledRate
from raydist.spec.job import Strategy
from raydist.spec.params import RunParams
from raydist.spec.tasks import TaskType
from raydist.spec.text import suggest
from raydist.train_context import TrainContext
from raydist.training.cluster import collectives, data_service
from raydist.training.cluster.collective_calls import made_by_all
from raydist.training.cluster.script_strategy import ScriptStrategy
from raydist.training.input.train_data import naming_mistakes
from raydist.training.reporting import reporter
from raydist.training.reporting.logs import by_element
from raydist.training.trainers import base
from raydist.training.trainers.run_callbacks import callbacks_of


class TaskContext(TrainContext):
    """What the train function is given: the public surface of a TaskRun and its Trainer."""

    def __init__(self, run: base.TaskRun, make_trainer: Callable[[base.TaskRun], base.Trainer]) -> None:
        assignment = run.assignment
        self.params = RunParams(assignment.job.params)
        self.task = assignment.task
        self.is_chief = assignment.is_chief
        self.num_workers = assignment.num_workers
        self.attempt = assignment.attempt
        self.run_name = assignment.job.name
        self.storage = assignment.run_uri
        self._run = run
        self._make_trainer = make_trainer
        self._num_distributed = 0  # datasets that were given to the data workers so far

    def __getattr__(self, name: str) -> Any:
        known = [one for one in dir(self) if not one.startswith("_")]
        remedy = _NOT_NEEDED.get(name) or suggest(name, known)
        raise AttributeError(f"ctx has no {name!r}; {remedy}", name=name, obj=self)

    @property
    def strategy(self) -> Any:
        return self._run.strategy

    @property
    def coordinator(self) -> Any:
        return self._run.coordinator

    @functools.cached_property
    def _trainer(self) -> base.Trainer:
        return self._make_trainer(self._run)

    @property
    def step(self) -> int:
        return self._run.reporter.step

    @property
    def output_dir(self) -> Path:
        return self._run.assignment.files.output_dir

    def fit(self, *args: Any, **options: Any) -> Any:
        with naming_mistakes():
            request = base.FitRequest(**_bound("fit", *args, **options))
            with made_by_all("ctx.fit", self.strategy, request.model):
                return self._trainer.fit(request)

    def evaluate(self, *args: Any, **options: Any) -> dict[str, Any]:
        with naming_mistakes():
            request = base.EvaluateRequest(**_bound("evaluate", *args, **options))
            with made_by_all("ctx.evaluate", self.strategy, request.model):
                return self._trainer.evaluate(request)

    def predict(self, *args: Any, **options: Any) -> Any:
        with naming_mistakes():
            request = base.PredictRequest(**_bound("predict", *args, **options))
            with made_by_all("ctx.predict", self.strategy, request.model):
                return self._trainer.predict(request)

    def callbacks(self) -> list[Any]:
        if self._is_evaluator:
            raise UnsupportedError("the evaluator evaluates what ctx.fit trains; use --no-evaluator")
        return callbacks_of(self._run)

    def train_steps(self, *args: Any, **options: Any) -> Mapping[str, float]:
        with naming_mistakes(), made_by_all("ctx.train_steps", self.strategy):
            return self._trainer.train_steps(base.LoopRequest(**_bound("train_steps", *args, **options)))

    def dataset(self, name: str) -> Any:
        datasets = self._run.assignment.datasets
        if name in datasets:
            return datasets[name]
        if self._is_evaluator and self._run.assignment.num_ps == 0:
            raise UnsupportedError(
                f"ctx.dataset({name!r}) has nothing for {self.task}: the workers share the rows of datasets; "
                "use --no-evaluator"
            )
        if self._run.coordinator is not None or self._is_evaluator:
            raise UnsupportedError(
                f"ctx.dataset({name!r}) has nothing for {self.task}: under parameter_server each worker "
                "makes its own data; give ctx.fit a function that reads the files into a tf.data.Dataset"
            )
        if not datasets:
            raise UnsupportedError(
                f"ctx.dataset got {name!r}, and the run was given no datasets; give them in Python, with "
                f"raydist.run(job, datasets={{{name!r}: ray.data.read_parquet(...)}})"
            )
        raise UnsupportedError(
            f"ctx.dataset got {name!r}, which the run was not given; {suggest(name, datasets)}"
        )

    def distribute(self, dataset: Any, *, sharding: str = "dynamic") -> Any:
        data_service.check(dataset, sharding)
        if self._is_evaluator:
            return dataset  # it would take elements from the workers
        service = self._run.assignment.data_service
        if service is None:
            self.note("ctx.distribute changes nothing: the run has no data workers (--data-workers N)")
            return dataset
        self._run.reporter.progress.distributed(divides=sharding != "off")
        self._num_distributed += 1
        assignment = self._run.assignment
        is_shared = assignment.num_slots > 1 or assignment.strategy is Strategy.PARAMETER_SERVER
        name = f"data-{self._num_distributed}" if is_shared else None
        return data_service.through(dataset, sharding=sharding, service=service, name=name)

    @property
    def _is_evaluator(self) -> bool:
        return self.task.task_type is TaskType.EVALUATOR

    def report(self, metrics: Mapping[str, Any], *, step: int | None = None) -> None:
        values = by_element({name: _number(name, value) for name, value in metrics.items()})
        self._run.reporter.hand_in(values, step=self.step if step is None else step)

    def save(self, *, step: int, **trackables: Any) -> None:
        if not trackables:
            raise UnsupportedError(
                "ctx.save got nothing to save; name what it stores: ctx.save(step=step, model=model, "
                "optimizer=optimizer)"
            )
        with made_by_all("ctx.save", self._run.strategy):
            self._run.register(trackables)
            self._run.reporter.step = max(self.step, step)
            self._run.save(self._run.registered, step=step)

    def wants_save(self) -> bool:
        with made_by_all("ctx.wants_save", self._run.strategy):
            wanted = float(self._run.is_save_wanted)
            return any(collectives.means_over_workers(self._run.strategy, [wanted]))

    def restore(self, **trackables: Any) -> int | None:
        with made_by_all("ctx.restore", self._run.strategy):
            return self._restore(trackables)

    def _restore(self, trackables: Mapping[str, Any]) -> int | None:
        run = self._run
        run.register(trackables)
        state = run.checkpoints.newest()
        if state is None:
            return None
        with self.strategy.scope():
            run.checkpoints.build_optimizers(state, trackables)
        run.restore(state)
        return state.step

    def global_batch_size(self, per_replica: int) -> int:
        return per_replica * int(self.strategy.num_replicas_in_sync)

    def scale_learning_rate(self, *args: Any, **options: Any) -> Any:
        rate = ScaledRate(**_bound("scale_learning_rate", *args, **options))
        reporter.detail(f"learning rate {rate}")
        if not rate.warmup_steps:
            return rate.scaled
        # A straight line that ends flat. Keras's own, of the Keras in use, so that the exported model needs
        # no raydist to be loaded.
        return tf.keras.optimizers.schedules.PolynomialDecay(
            rate.base, int(rate.warmup_steps), end_learning_rate=rate.scaled, power=1.0
        )

    def note(self, sentence: str) -> None:
        self._run.reporter.note(sentence)


class ScriptContext(TaskContext):
    """What `raydist.context()` is in a script, which may build the strategy by itself."""

    def __init__(
        self,
        run: base.TaskRun,
        make_trainer: Callable[[base.TaskRun], base.Trainer],
        strategies: ScriptStrategy,
    ) -> None:
        super().__init__(run, make_trainer)
        self._strategies = strategies

    @property
    def strategy(self) -> Any:
        """The strategy that the script has built; else the run's, built when it is first asked for."""
        return self._strategies.planned()

    @property
    def coordinator(self) -> Any:
        self._strategies.planned()
        return self._run.coordinator

    @functools.cached_property
    def _trainer(self) -> base.Trainer:
        self._strategies.planned()
        return self._make_trainer(self._run)


# What does itself what one may look for a method of.
_NOT_NEEDED = {
    **dict.fromkeys(
        ("export", "save_model"), "ctx.fit exports the model at its end, and --no-export leaves it out"
    ),
    **dict.fromkeys(
        ("rank", "world_rank", "worker_rank"), "ctx.task.index is the number of the worker, from 0"
    ),
}


def _bound(name: str, *args: Any, **options: Any) -> dict[str, Any]:
    """Returns the arguments of a method by name; raises TypeError where its signature does not take them."""
    signature = inspect.signature(getattr(TrainContext, name))
    names = [one for one in signature.parameters if one != "self"]
    if unknown := next((one for one in options if one not in names), None):
        raise TypeError(f"ctx.{name}() has no argument {unknown!r}; {suggest(unknown, names)}")
    try:
        bound = signature.bind(None, *args, **options)
    except TypeError as error:
        raise TypeError(f"ctx.{name}() {error}") from None
    _, *arguments = bound.arguments.items()  # without self
    return dict(arguments)


def _number(name: str, value: Any) -> Any:
    """Returns a float, or an array of numbers."""
    try:
        # A variable of a strategy, such as an optimizer's iterations, is not a number to `float`.
        array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
        return array.astype("float64") if array.ndim else float(array)
    except (TypeError, ValueError) as error:
        raise UnsupportedError(
            f"ctx.report got {name}={value!r}, which is not a number; report numbers, or arrays of them"
        ) from error
