"""RaydistTrainer: how models of Keras 3 train, evaluate and predict on several replicas.

Its methods do what is raydist's and call Keras's own by `super()`. epochs.py decides which steps go into a
call, stepping/model_steps.py makes the functions that run them.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src import tree
from keras.src.backend.common.stateless_scope import in_stateless_scope
from keras.src.backend.tensorflow import trainer as tf_trainer
from keras.src.saving import saving_lib
from keras.src.trainers import trainer as base_trainer

from raydist import tf_private, train_context
from raydist.errors import UnsupportedError
from raydist.training.checks import layer_notes
from raydist.training.cluster import collective_calls, default_strategy
from raydist.training.cluster.collectives import is_alone
from raydist.training.cluster.strategy import is_distributed, is_parameter_server
from raydist.training.keras_patches.keras3 import optimizers
from raydist.training.keras_patches.keras3.variables import EqualStatistics, equalize_statistics
from raydist.training.keras_patches.replacement import overrides, replaces
from raydist.training.replicas import batch_slices, replica_share, step_logs, step_trace
from raydist.training.stepping import fit_session, model_steps
from raydist.training.stepping.hooks import Hooks

logger = logging.getLogger(__name__)

# 3.16 calls them BaseTrainer and Trainer.
BaseTrainer: Any = getattr(base_trainer, "BaseTrainer", None) or base_trainer.Trainer
TensorFlowTrainer: Any = getattr(tf_trainer, "TensorFlowTrainer", None) or tf_trainer.Trainer
_DRIFT = "BatchNormalization's moving statistics drift apart per replica"


class RaydistTrainer(TensorFlowTrainer):
    """How models of Keras 3 train that were made in a strategy's scope; all others as Keras has them.

    It takes the place of Keras's trainer among the bases of `keras.Model`, so a user's methods reach it by
    `super()`. It has no attributes: models that were made before have it too, and Keras saves what they hold.
    """

    predict_function: Any  # Keras's

    @overrides(
        "self callbacks initial_epoch ...",
        because="what cannot work is refused before training (keras#20582)",
    )
    @collective_calls.by_all
    def fit(self, *args: Any, **kwargs: Any) -> Any:
        strategy = self.distribute_strategy
        is_stock = not is_distributed(strategy)
        if is_stock and not fit_session.is_in_task():
            return super().fit(*args, **kwargs)
        try:
            given = inspect.signature(super().fit).bind(*args, **kwargs)
        except TypeError:  # a mistake, which Keras's own `fit` names with the function
            return super().fit(*args, **kwargs)
        if is_parameter_server(strategy):
            return _fit_on_workers(self, **given.arguments)
        check_supported(self, strategy)
        if not is_stock:
            model_steps.refuse_own_functions(self)
        ahead = [] if is_stock else [EqualStatistics()]
        with fit_session.of_fit(self, given.arguments, keras.callbacks, ahead=ahead) as session:
            try:
                return super().fit(*given.args, **given.kwargs)
            finally:
                if session.first is not None:
                    self._initial_epoch = None  # or the next `fit` would begin there too

    @overrides("self ...", because=_DRIFT)
    @collective_calls.by_all
    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        _begin_evaluation(self)
        return super().evaluate(*args, **kwargs)

    @overrides("self ...", because=_DRIFT)
    @collective_calls.by_all
    def predict(self, *args: Any, **kwargs: Any) -> Any:
        _begin_evaluation(self)
        return super().predict(*args, **kwargs)

    @overrides("self ...", because=_DRIFT)
    @collective_calls.by_all
    def test_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        _begin_evaluation(self)
        return super().test_on_batch(*args, **kwargs)

    @overrides("self ...", because=_DRIFT)
    @collective_calls.by_all
    def predict_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        _begin_evaluation(self)
        return super().predict_on_batch(*args, **kwargs)

    @overrides("self ...", because="a worker that saves alone would have its own replicas' moving statistics")
    @collective_calls.by_all
    def train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        result = super().train_on_batch(*args, **kwargs)
        if is_distributed(self.distribute_strategy):
            equalize_statistics(self)
        return result

    @overrides(
        "self iterator data_batch",
        *("92a504f5eba9", "181752273e37"),  # the latter in 3.10
        because="strategy.reduce takes no nests: fit fails on `PerReplica` (keras#20585)",
    )
    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        strategy = self._distribute_strategy
        is_stock = strategy is None or tf_private.is_default(strategy)
        if is_stock:
            super()._maybe_symbolic_build(iterator, data_batch)
            optimizer = getattr(self, "optimizer", None)
            if optimizer is None or optimizer.built or not optimizers.assigns_when_built(optimizer):
                return
        if iterator is not None:
            # Shapes and types are enough; reading a batch would also advance a shuffle's seed.
            data_batch = iterator.element_spec
        if not is_stock:
            build(self, data_batch)
            return
        try:  # Keras builds it in the first step, where what it assigns is assigned again in each step
            self._symbolic_build(data_batch=data_batch)
        except Exception as error:  # the user's code; the first step shows what is wrong
            logger.info("%s is built by its first step: %s", self.name, error)

    @overrides(
        "self step_function",
        *("bb33b7a0da3d", "55eb952812ca", "b96ff481cdc1"),  # before 3.12; from 3.16 on
        because="scalars are reduced on axis 0 (keras#20585); several steps lose a capture (keras#19246)",
    )
    def _make_function(self, step_function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        if not is_distributed(self.distribute_strategy):
            return super()._make_function(step_function)
        return model_steps.make_step_function(
            self,
            step_function,
            convert=functools.partial(converted_step, self),
            is_training=step_function == self.train_step,
            finish=self._get_metrics_result_or_logs,
        )

    @overrides(
        "self force",
        *("a772a2efdd90", "5f1a30acee30", "3b96b2b92cd6"),  # before 3.12; from 3.16 on
        because="global batches arrive as slices, whose padding examples must not be predicted",
    )
    def make_predict_function(self, force: bool = False) -> Callable[[Any], Any] | None:
        if self.predict_function is not None and not force:
            return self.predict_function
        if not is_distributed(self.distribute_strategy):
            return super().make_predict_function(force)
        self.predict_function = model_steps.make_predict_function(
            self, converted_step(self, self.predict_step), of_shards=tf_trainer.reduce_per_replica
        )
        return None

    @overrides(
        "self loss",
        "3e9ee641327e",
        because="a loss for each example, which add_loss was given, is a sum, but weighted as a mean",
    )
    def _aggregate_additional_loss(self, loss: Any) -> Any:
        if len(loss.shape) == 0:
            return super()._aggregate_additional_loss(loss)
        return replica_share.scale_sum(BaseTrainer._aggregate_additional_loss(self, loss))

    @overrides(
        "self logs", because="values of a user's own step that are not metrics differ from worker to worker"
    )
    def _get_metrics_result_or_logs(self, logs: Any) -> Any:
        results = super()._get_metrics_result_or_logs(logs)
        if results is not logs:
            # A validation would change the variable that is a metric's result.
            results = step_logs.as_tensors(results)
        is_stock = tf_private.is_default(self.distribute_strategy)
        return results if is_stock else step_logs.of_epoch(self, logs, results)

    @overrides("self", because="it reads each variable of each metric by a collective of its own")
    def get_metrics_result(self) -> Any:
        if tf.executing_eagerly() and not in_stateless_scope() and not tf_private.is_in_replica():
            # One collective in place of one for each variable that is read.
            collective_calls.keep_totals(self)
        return super().get_metrics_result()


def _fit_on_workers(model: Any, x: Any, *, callbacks: Any = None, epochs: int = 1, **given: Any) -> Any:
    """Trains as `ctx.fit` does, which schedules steps; Keras 3 has no `fit` for that (keras#18624)."""
    listed = callbacks.callbacks if isinstance(callbacks, keras.callbacks.CallbackList) else callbacks or []
    # Without those of `ctx.callbacks()`, in place of which `ctx.fit` has its own.
    users = [one for one in tree.flatten(listed) if not isinstance(one, Hooks)]
    context: Any = train_context.context()
    return context.fit(model, x, epochs=epochs, callbacks=users, **given)


def _begin_evaluation(model: Any) -> None:
    if is_distributed(model.distribute_strategy):
        model_steps.refuse_own_functions(model)
        equalize_statistics(model)


def build(model: Any, element_spec: Any) -> None:
    """Builds a model, its optimizers and metrics from the structure of a batch, in the strategy's scope.

    A model with its own `train_step` may have no `call`, or one for other inputs. Its step then builds it.
    """
    has_own_step = type(model).train_step is not keras.Model.train_step
    with model.distribute_strategy.scope(), tf_private.inlined_functions():
        try:
            model._symbolic_build(data_batch=element_spec)
        except Exception as error:
            if not has_own_step:
                for name in batch_slices.foreign_types(element_spec):
                    raise UnsupportedError(
                        f"the data have a {name}, which fit and evaluate of Keras 3 do not take; build it "
                        "inside the model from tensors, write a train_step, or use --keras legacy"
                    ) from error
                raise
            logger.info("%s is built by its train_step: %s", model.name, error)
    is_new = model.train_function is None or not step_trace.has_traced(model)
    if has_own_step and model.optimizer is not None and is_new:
        step = converted_step(model, model.train_step)
        step_trace.trace_step(model, step, element_spec, build=optimizers.build)


def converted_step(model: Any, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns a model's step as Keras would trace it: from 3.12 on without `tf.experimental.Optional`s."""
    convert = getattr(model, "_autoconvert_optionals", None)
    return step if convert is None else convert(step)


def check_supported(model: Any, strategy: tf.distribute.Strategy) -> None:
    """Raises UnsupportedError for what cannot work with several replicas."""
    is_central_server = is_parameter_server(strategy)
    if strategy.num_replicas_in_sync == 1 and not is_central_server:
        return
    where = "under parameter_server" if is_central_server else f"on {strategy.num_replicas_in_sync} replicas"
    if not is_central_server:
        layer_notes.refuse_stateful(model, strategy)
    for optimizer in {id(one): one for one in _optimizers_of(model)}.values():
        _check_optimizer(optimizer, where)


def _optimizers_of(model: Any) -> Iterator[Any]:
    """Yields the compiled optimizer, those that are attributes, and what they wrap for mixed precision."""
    for one in (getattr(model, "optimizer", None), *vars(model).values()):
        if isinstance(one, keras.optimizers.Optimizer):
            yield one
            if isinstance(inner := getattr(one, "inner_optimizer", None), keras.optimizers.Optimizer):
                yield inner


def _check_optimizer(optimizer: Any, where: str) -> None:
    if getattr(optimizer, "gradient_accumulation_steps", None):
        raise UnsupportedError(
            f"optimizer {optimizer.name} has gradient_accumulation_steps="
            f"{optimizer.gradient_accumulation_steps}, which Keras 3 cannot do {where} (keras#20582); "
            "give ctx.fit(..., accumulate=K) instead, which works with any optimizer"
        )
    if getattr(optimizer, "use_ema", False) and getattr(optimizer, "ema_overwrite_frequency", None):
        raise UnsupportedError(
            f"optimizer {optimizer.name} has ema_overwrite_frequency={optimizer.ema_overwrite_frequency}, "
            f"which Keras 3 cannot do {where} (keras#20582); "
            "set ema_overwrite_frequency=None: the averages are written over the weights at the end of fit"
        )


@replaces(
    saving_lib,
    "get_attr_skipset",
    "obj_type",
    because="makes an optimizer to see what all have, so that in a scope no worker could save alone",
)
def _attributes_of_all(original: Callable[[str], set[str]], obj_type: str) -> set[str]:
    with tf_private.outside_of_scopes():
        return original(obj_type)


@replaces(keras.Model, "save save_weights export", "self filepath ...", because=default_strategy.ONE_FILE)
def _write(original: Callable[..., Any], self: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
    name = f"model.{original.__name__}"
    return default_strategy.write_once(name, filepath, lambda path: original(self, path, *args, **kwargs))


@replaces(
    BaseTrainer,
    "compile",
    "self ...",
    because="outside of the strategy's scope it gives each worker metrics of its own",
)
def compile_in_scope(original: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
    # As tf_keras does: otherwise each worker has metrics, and an optimizer, of its own.
    strategy = self.distribute_strategy
    if not tf_private.is_default(strategy):
        optimizers.take_into_scope(args[0] if args else kwargs.get("optimizer"), strategy)
    if not is_distributed(strategy):
        original(self, *args, **kwargs)
        return
    with strategy.scope():
        original(self, *args, **kwargs)
    given = inspect.signature(original).bind(self, *args, **kwargs).arguments
    _check_metrics([given.get("metrics"), given.get("weighted_metrics")], strategy)


def _check_metrics(given: Any, strategy: tf.distribute.Strategy) -> None:
    """Raises UnsupportedError for metrics that each worker has one of its own of."""
    if is_alone(strategy):
        return
    for metric in tree.flatten(given):
        variables = metric.variables if isinstance(metric, keras.metrics.Metric) else ()
        values = [value for one in variables if (value := getattr(one, "_value", None)) is not None]
        if any(not isinstance(one, tf.distribute.DistributedValues) for one in values):
            raise UnsupportedError(
                f"metric {metric.name} was made outside of the strategy's scope, so each worker would have "
                "one of its own; make it inside of `with ctx.strategy.scope():`"
            )
