"""SynchronousTrainer: Keras's own `fit` and a loop of steps, on the replicas of this task and its peers.

session.py makes one for each task, and context.py hands it the calls of `ctx.fit`, `ctx.train_steps` and so
on as requests. Out go a `History` or the loop's scalars, checkpoints, reports and the export.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from raydist.data.batches import Batches
from raydist.errors import UnsupportedError
from raydist.training.input import py_datasets, recipes, shuffle_seeds, sources, train_data, worker_order
from raydist.training.keras_patches import adapters
from raydist.training.replicas.accumulation import BatchGroups
from raydist.training.trainers import custom_loop, evaluation, fit_data, fit_position
from raydist.training.trainers.base import FitRequest, LoopRequest
from raydist.training.trainers.fit_position import FitPosition
from raydist.training.trainers.run_callbacks import run_callbacks

_REREAD = (
    "train_data is a generator, which cannot be rewound: a resumed run reads it again from its beginning "
    "and drops the batches that it has trained on, so it has to yield the same ones in each attempt"
)


@dataclass(frozen=True, kw_only=True)
class _TrainData:
    """The training data of one `fit`, from its position on.

    Attributes:
      element_spec: The structure of one replica's batch; None where the model's own `fit` changes it.
      exported_spec: That of batches that an exported model takes, if it is another one.
      steps_per_epoch: None where the data's end ends an epoch.
    """

    dataset: Any
    element_spec: Any | None
    steps_per_epoch: int | None
    source: sources.Source
    exported_spec: Any | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


class SynchronousTrainer(evaluation.KerasEvaluation):
    """Trains under every strategy whose replicas take each step together."""

    def fit(self, request: FitRequest) -> Any:
        """Keras's own `fit`, with reports, checkpoints and restore around it."""
        run, model, epochs = self._run, request.model, request.epochs
        request = fit_data.resolved(request, seed=run.data_seed)
        adapters.check(model, run.strategy)
        groups = self._groups(request)
        position = FitPosition.of_next_fit(run, initial_epoch=request.initial_epoch, accumulate=groups.size)
        run.trains_on(request.train_data, resumed=position.here)
        data = self._train_data(request, position, groups)
        dataset, steps_per_epoch = data.dataset, data.steps_per_epoch
        validation_data, validation_steps = self._validation_data(request)
        in_all = (dataset, steps_per_epoch), (validation_data, validation_steps)
        if not position.is_done:
            fit_position.continue_from(run, request, position, *in_all)
        before, after = run_callbacks(
            run,
            position=position,
            element_spec=data.element_spec,
            users=tf.nest.flatten(list(request.callbacks)),
            begin=lambda _: data.source,
        )
        history = model.fit(
            dataset,
            epochs=epochs,
            initial_epoch=position.first_epoch(epochs),
            steps_per_epoch=steps_per_epoch,
            validation_data=validation_data,
            validation_steps=validation_steps,
            validation_freq=request.validation_freq,
            **data.options,
            callbacks=[before, *request.callbacks, after],
            verbose=evaluation.verbosity(run, request.verbose, default=2),
        )
        fit_position.fit_ended(run, request, position, *in_all, group_size=groups.size)
        if not position.is_done:  # a later one exports
            spec = data.exported_spec or data.element_spec or position.element_spec
            run.export(model, fit=position.number, element_spec=spec)
        return history

    def train_steps(self, request: LoopRequest) -> Mapping[str, float]:
        """`strategy.run` in a loop of our own, several steps in each `tf.function`."""
        run = self._run
        loop = custom_loop.begin(run, request)
        data = train_data.made(request.train_data)
        metrics: Mapping[str, float] = {}
        if loop is not None:
            run.ended.continue_with(data)
            metrics = custom_loop.run_steps(run, dataclasses.replace(request, train_data=data), loop)
        seeds = shuffle_seeds.seeds_of_loop(data, num_steps=request.num_steps)
        run.ended.add(data, seeds, is_done=loop is None)
        return metrics

    def _groups(self, request: FitRequest) -> BatchGroups:
        data = request.train_data
        is_whole = isinstance(data, Batches) and request.steps_per_epoch is None
        groups = BatchGroups(
            size=request.accumulate, batches_per_epoch=data.steps_per_epoch if is_whole else None
        )
        if groups.size > 1 and not self._run.assignment.job.patch_keras:
            raise UnsupportedError(
                f"ctx.fit got accumulate={groups.size}, which raydist's patches of Keras do; drop "
                "--no-patch-keras"
            )
        return groups

    def _train_data(self, request: FitRequest, position: FitPosition, groups: BatchGroups) -> _TrainData:
        if fit_data.check_py_dataset(request.train_data, request.model, name="train_data"):
            if groups.size > 1:
                raise UnsupportedError(
                    f"ctx.fit got accumulate={groups.size} and a PyDataset; give arrays or a tf.data.Dataset"
                )
            return _py_dataset(request, position)
        data, steps_per_epoch, strategy = request.train_data, request.steps_per_epoch, self._run.strategy
        kind = sources.Source if isinstance(data, Batches) else sources.PipelineSource
        specs: fit_data.BatchSpecs | None = None
        if not isinstance(data, Batches):
            steps_per_epoch = adapters.adapter_of(request.model).steps_taken(request.model, steps_per_epoch)
        if fit_data.is_generator(data):
            data, specs = fit_data.dataset_of_train_generator(request)
            if position.start != sources.Start():
                self._run.reporter.note(_REREAD)
        data = fit_data.applied(data, request)
        if not isinstance(data, Batches):
            dataset = train_data.read(data, strategy, auto_shard=self._run.auto_shard)
        else:
            steps_per_epoch = steps_per_epoch or groups.num_steps(data.steps_per_epoch)
            batches_per_epoch = groups.batches_per_epoch or steps_per_epoch * groups.size
            recipes.check_length(data, (request.epochs - request.initial_epoch) * batches_per_epoch)
            first = position.start.epoch * batches_per_epoch + position.start.step * groups.size
            read = recipes.global_batches if self._has_own_fit(request) else recipes.parts_of_workers
            dataset = read(data, strategy, start_step=first)
        element_spec = sources.element_spec(dataset)
        if specs is not None:  # beside what it has of weights by class
            of_weights = element_spec[len(specs.model) :] if isinstance(element_spec, tuple) else ()
            element_spec = (*specs.model, *of_weights) if of_weights else specs.model
        return _TrainData(
            dataset=dataset,
            element_spec=None if self._has_own_fit(request) else element_spec,
            exported_spec=specs.exported if specs and not self._has_own_fit(request) else None,
            steps_per_epoch=steps_per_epoch,
            source=kind.at(position.start, groups),
            # Shuffled already; Keras 3 warns of its default for what it cannot shuffle.
            options={} if self._has_own_fit(request) else {"shuffle": False},
        )

    def _has_own_fit(self, request: FitRequest) -> bool:
        """Whether the model has its own `fit`, which may change a dataset first, as KerasHub's does."""
        return adapters.has_own(request.model, "fit")

    def _validation_data(self, request: FitRequest) -> tuple[Any, int | None]:
        data, strategy, steps = request.validation_data, self._run.strategy, request.validation_steps
        if self._run.assignment.job.evaluator:
            return None, None  # the evaluator evaluates, alongside the training
        if isinstance(data, Batches):
            # Keras gets the number of steps, so the data need no end; each validation starts over.
            steps = evaluation.num_steps(data, steps, names=evaluation.OF_VALIDATION)
            if self._has_own_fit(request):
                return recipes.global_batches(data.for_epochs(None), strategy).take(steps), None
            return recipes.parts_of_workers(data.for_epochs(None), strategy), steps
        steps = adapters.adapter_of(request.model).steps_taken(request.model, steps)
        if isinstance(data, tf.data.Dataset) or callable(data):
            auto_shard = self._run.auto_shard
            data = train_data.read(data, strategy, auto_shard=auto_shard, name="validation_data")
        return data, steps


def _py_dataset(request: FitRequest, position: FitPosition) -> _TrainData:
    """Keras reads it, each worker all of the batches, and keeps its part of each."""
    data, steps = request.train_data, request.steps_per_epoch
    adapter = adapters.adapter_of(request.model)
    # Those of a fit that is done have been called as well.
    done = sources.Start(epoch=fit_position.epochs_of(position, request))
    start = done if position.is_done else position.start
    num_batches = py_datasets.num_batches_of(data)
    if num_batches is None and steps is None:
        raise UnsupportedError("train_data is a PyDataset without an end; give steps_per_epoch")
    steps = adapter.steps_taken(request.model, steps) if steps != num_batches else steps
    is_endless = adapter.continues_py_datasets and steps is not None and steps != num_batches
    is_shuffled = request.shuffle and (num_batches or 0) > 1
    seed = position.run.data_seed_of(position.number) if is_shuffled else None
    if seed is not None:
        fit_data.tell_order("the batches of a PyDataset")
    if is_endless and num_batches:
        fit_data.note_passes(request, "a PyDataset", num_batches=num_batches, steps=steps or 0)
    peeked = fit_data.first_batches(data)
    worker_order.check_batches(peeked, position.run.strategy, name="train_data")
    specs = fit_data.specs_of(peeked, request.model)
    return _TrainData(
        dataset=py_datasets.from_position(
            data,
            adapter.library.utils.Sequence,
            start=start,
            seed=seed,
            num_steps=steps if is_endless else None,
            peeked=peeked,
        ),
        element_spec=specs.model,
        exported_spec=specs.exported,
        steps_per_epoch=None if steps == num_batches else steps,
        source=(sources.Source if is_endless else sources.NumberedSource).at(position.start),
        options={"shuffle": False, "class_weight": request.class_weight},
    )
