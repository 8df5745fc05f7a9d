"""Evaluation under ParameterServer: the workers share the data, and every example counts once."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from raydist import tf_private
from raydist.data.batches import Batches
from raydist.errors import UnsupportedError
from raydist.training.input import train_data
from raydist.training.keras_patches import adapters
from raydist.training.keras_patches.adapters import adapter_of
from raydist.training.parameter_server import train_input
from raydist.training.parameter_server.returned_values import LocalMetrics, ReturnedScalars
from raydist.training.parameter_server.sources import SharedSources
from raydist.training.parameter_server.train_input import StepFeed, check_made_inside, checked_dataset
from raydist.training.replicas import batch_slices, step_logs
from raydist.training.trainers import evaluation
from raydist.training.trainers.base import EvaluateRequest, PredictRequest, TaskRun


class WorkerEvaluation:
    """Evaluates a model on the workers.

    Each worker's part of the data is one closure that begins at the part's beginning and returns its
    metrics at the end: what a worker had done when it died is lost with it, and another one does it again.
    """

    def __init__(
        self,
        run: TaskRun,
        model: Any,
        data: Any,
        *,
        sources: SharedSources,
        metrics: LocalMetrics | None = None,
        num_steps: int | None = None,
        names: tuple[str, str] = evaluation.OF_VALIDATION,
    ) -> None:
        """Takes what is evaluated.

        Args:
          data: As `validation_data` of TrainContext.fit; finite, unless `num_steps` are taken.
          metrics: Those of `model`; None for a model that is not built yet.
          names: What `num_steps` and `data` are called in the call.
        """
        self._num_steps = evaluation.num_steps(data, num_steps, names=names)
        _, self._name = names
        self._coordinator = run.coordinator
        self._strategy = run.strategy
        self._model = model
        self._test_step = adapter_of(model).converted(model, model.test_step)
        self._num_shards = tf_private.num_members(run.coordinator)
        self._shards: Sequence[tuple[Any, tuple[tf.Tensor, ...]]] | None = None
        self._data = data if isinstance(data, Batches) else train_data.function_of(data, self._name)
        self._sources = sources
        if metrics is None:
            adapter_of(model).build(model, self._element_spec())
        self._metrics = metrics or LocalMetrics(model)
        # What the user's own test_step returns besides the metrics.
        self._returned = ReturnedScalars(self._strategy, self._test_step, model=model)
        if adapters.has_own(model, "test_step"):
            self._returned.probe(self._element_spec())
            self._returned.shown.note_derived(type(model).test_step)

    def _element_spec(self) -> Any:
        if isinstance(self._data, Batches):
            return StepFeed(self._data, self._sources.publish(self._data)).element_spec
        is_sharding = train_data.takes_input_context(self._data)
        own = train_input.contexts(self._strategy, self._num_shards)[:1] if is_sharding else ()
        return checked_dataset(self._data(*own), self._name).element_spec

    def run(self) -> dict[str, Any]:
        """Returns the metrics over all examples, and what an own `test_step` returns of the last batch."""
        num_shards = tf_private.num_members(self._coordinator)
        if self._shards is None or num_shards != self._num_shards:
            self._num_shards = num_shards
            self._shards = self._make_shards()
        # Variables that a metric hides, in a list for instance, stay on their ps and are used there.
        self._model.reset_metrics()
        results = [self._coordinator.schedule(function, args=args) for function, args in self._shards]
        self._coordinator.join()
        tally, lasts = self._metrics.tally(), []
        for result in results:
            *state, last = result.fetch()
            tally.add(state)
            lasts.append(last)
        returned = dict(zip(self._returned.names, self._of_last_batch(np.array(lasts)), strict=True))
        return step_logs.joined(returned, self._metrics.results(tally), self._returned.shown.metrics)

    def _of_last_batch(self, lasts: np.ndarray) -> np.ndarray:
        """Returns what the step has returned of the last batch of all, as Keras's logs have it.

        Args:
          lasts: For each part of the data, what the step has returned of its last batch, that batch's
            number of examples, and the number of batches.
        """
        if isinstance(self._data, Batches):  # of which each part follows the one before
            lasts = lasts[-1:]
        elif not train_data.takes_input_context(self._data):  # of which the parts take turns
            lasts = lasts[[int(lasts[:, -1].sum() - 1) % len(lasts)]]
        # Where each worker reads data of its own, the last batches of all of them are one.
        *values, sizes, _ = lasts.T
        return np.array([one @ sizes / sizes.sum() for one in values])

    def _make_shards(self) -> list[tuple[Any, tuple[tf.Tensor, ...]]]:
        num_shards, data = self._num_shards, self._data
        contexts = train_input.contexts(self._strategy, num_shards)
        if isinstance(data, Batches):
            return self._shards_of_steps(data)
        takes_context = train_data.takes_input_context(data)
        num_steps = self._num_steps
        # Made once outside of a graph, where its size can be asked.
        made = checked_dataset(data(contexts[0]) if takes_context else data(), self._name)
        if tf_private.is_of_data_workers(made):
            raise UnsupportedError(
                f"{self._name} is made by ctx.distribute, which workers of parameter servers can read only "
                "once; give it without ctx.distribute"
            )
        if num_steps is None:
            _check_finite(made, self._name)
            num_steps = -1  # `take` then takes all
        if takes_context:
            return [(self._closure(functools.partial(_taken, data, own, num_steps)), ()) for own in contexts]
        closure = self._closure(lambda index: data().take(num_steps).shard(num_shards, index))
        with tf_private.traced_for_workers(self._strategy):
            check_made_inside(closure.get_concrete_function(tf.TensorSpec([], tf.int64)), self._name)
        return [(closure, (tf.constant(index, tf.int64),)) for index in range(num_shards)]

    def _shards_of_steps(self, recipe: Batches) -> list[tuple[Any, tuple[tf.Tensor, ...]]]:
        """Each worker's part is some of the steps of one epoch."""
        feed = StepFeed(recipe.for_epochs(None), self._sources.publish(recipe))
        closure = self._closure(feed.dataset)
        assert self._num_steps is not None  # of batches of raydist.data it is known
        ends = [self._num_steps * index // self._num_shards for index in range(self._num_shards + 1)]
        return [
            (closure, feed.arguments(first, end - first))
            for first, end in itertools.pairwise(ends)
            if first < end
        ]

    def _closure(self, make: Callable[..., tf.data.Dataset]) -> Any:
        def update(element: Any, state: Sequence[tf.Tensor]) -> tuple[tf.Tensor, ...]:
            if not self._returned.names:
                step = functools.partial(self._strategy.run, self._test_step, args=(element,))
                updated, _ = self._metrics.updated(state[:-1], step)
                return (*updated, state[-1])
            step = functools.partial(self._returned.run, element)
            updated, scalars = self._metrics.updated(state[:-1], step)
            parts = self._strategy.experimental_local_results(element)
            num_examples = tf.cast(tf.add_n([batch_slices.num_rows(part) for part in parts]), tf.float64)
            last = tf.concat([tf.cast(scalars, tf.float64), [num_examples, state[-1][-1] + 1]], axis=0)
            return (*updated, last)

        @tf.function(autograph=False)
        def evaluate(*index: tf.Tensor) -> tuple[tf.Tensor, ...]:
            options = tf.data.Options()
            options.deterministic = True  # or the workers' shares would overlap
            dataset = make(*index).with_options(options)
            if self._strategy.num_replicas_in_sync > 1:
                dataset = self._strategy.experimental_distribute_dataset(dataset)
            iterator = iter(dataset)
            _, *state = tf.while_loop(
                lambda element, *state: element.has_value(),
                lambda element, *state: (
                    iterator.get_next_as_optional(),
                    *update(element.get_value(), state),
                ),
                [
                    iterator.get_next_as_optional(),
                    *self._metrics.zeros(),
                    tf.zeros([len(self._returned.names) + 2], tf.float64),
                ],
                parallel_iterations=1,
            )
            return tuple(state)

        return evaluate


def evaluate(run: TaskRun, request: EvaluateRequest, *, sources: SharedSources) -> dict[str, Any]:
    """Returns the metrics over the data, which the workers share."""
    adapters.check(request.model, run.strategy)
    request = evaluation.with_batches(request)
    return WorkerEvaluation(
        run,
        request.model,
        request.data,
        sources=sources,
        num_steps=request.steps,
        names=evaluation.OF_EVALUATE,
    ).run()


def predict(request: PredictRequest) -> Any:
    """Returns the outputs for all rows in their order: Keras predicts in the chief, on the whole data."""
    data = evaluation.data_to_predict(request)
    if isinstance(data, Batches):
        data = data.for_epochs(1).dataset()
    if callable(data) and not train_data.takes_input_context(data):
        data = train_data.made_by(data, evaluation.DATA_OF_PREDICT)
    return evaluation.predicted(request, data)


def _taken(
    function: Callable[[Any], tf.data.Dataset], context: tf.distribute.InputContext, num_steps: int
) -> tf.data.Dataset:
    """Returns one worker's own data, cut to its share of `num_steps` batches; -1 takes all."""
    if num_steps < 0:
        return function(context)
    base, extra = divmod(num_steps, context.num_input_pipelines)
    return function(context).take(base + (context.input_pipeline_id < extra))


def _check_finite(dataset: tf.data.Dataset, name: str) -> None:
    if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
        raise UnsupportedError(
            f"{name} never ends, and is to be evaluated as a whole; give it without repeat(), or with take(n)"
        )
