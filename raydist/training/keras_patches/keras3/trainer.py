"""Everything that raydist changes in Keras 3, and all that it must know of its inside.

Stock Keras 3.15 cannot `fit` under MultiWorkerMirroredStrategy (keras#20585), nor run several steps
per execution under any strategy with several replicas (keras#19246). TF_NOTES 1 has the causes by
file and line; each replacement below names its own.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src import tree
from keras.src.backend.common import global_state, variables as common_variables
from keras.src.backend.common.stateless_scope import in_stateless_scope
from keras.src.backend.tensorflow import core, trainer as tf_trainer
from keras.src.layers import BatchNormalization
from keras.src.random import seed_generator

from raydist.errors import UnsupportedError
from raydist.training import tf_private
from raydist.training.cluster.collectives import means_over_workers
from raydist.training.cluster.data_sizes import check_sizes
from raydist.training.input import resume
from raydist.training.keras_patches import replacement
from raydist.training.keras_patches.keras3 import build, losses, optimizers
from raydist.training.keras_patches.replacement import Replacement
from raydist.training.replicas import (
    gradient_probe,
    loss_rules,
    own_logs,
    replica_share,
    slices,
    user_batches,
)
from raydist.training.stepping import compilation, fit_session, plain_fit
from raydist.training.stepping.callback_calls import in_run_order

VERSION = "3.15"


def mend(*, sync_batchnorm: bool) -> None:
    """Replaces what is broken. Call once in a process, before user code is imported.

    Raises:
      UnsupportedError: This Keras is not the one that the replacements were written for.
    """
    if not keras.__version__.startswith(f"{VERSION}."):
        raise UnsupportedError(
            f"keras is {keras.__version__}; raydist mends {VERSION}. Install keras=={VERSION}.*, "
            "or go without with --no-mend-keras"
        )
    replacement.apply(replacements(), library="keras", version=keras.__version__)
    if sync_batchnorm:
        _synchronize_batchnorm()


def replacements() -> tuple[Replacement, ...]:
    """Returns all that `mend` replaces."""
    trainer, epoch_iterator = tf_trainer.TensorFlowTrainer, tf_trainer.TFEpochIterator
    return (
        Replacement(
            owner=trainer,
            name="_maybe_symbolic_build",
            fingerprint="92a504f5eba9",
            make=build.make_symbolic_build,
            reason="strategy.reduce takes no nests: fit fails on `PerReplica` (keras#20585)",
        ),
        Replacement(
            owner=trainer,
            name="_make_function",
            fingerprint="bb33b7a0da3d",
            make=_make_step_function,
            reason="scalars are reduced on axis 0 (keras#20585); several steps lose a capture (keras#19246)",
        ),
        Replacement(
            owner=trainer,
            name="make_predict_function",
            fingerprint="a772a2efdd90",
            make=_make_predict_function,
            reason="global batches arrive as slices, whose stand-ins must not be predicted",
        ),
        Replacement(
            owner=trainer,
            name="fit",
            fingerprint="a9a6dc02a7dd",
            make=_make_checked_fit,
            reason="what cannot work is refused before training (keras#20582)",
        ),
        Replacement(
            owner=trainer,
            name="evaluate",
            fingerprint="a1facf652816",
            make=_make_with_equal_statistics,
            reason="BatchNormalization's moving statistics drift apart per replica (TF_NOTES 1.5)",
        ),
        Replacement(
            owner=trainer,
            name="predict",
            fingerprint="ee5831d7d217",
            make=_make_with_equal_statistics,
            reason="as for evaluate",
        ),
        *(
            Replacement(
                owner=trainer,
                name=name,
                fingerprint=fingerprint,
                make=_make_with_equal_statistics,
                reason="as for evaluate",
            )
            for name, fingerprint in (("test_on_batch", "200619489306"), ("predict_on_batch", "05be67cba664"))
        ),
        Replacement(
            owner=epoch_iterator,
            name="__init__",
            fingerprint="901af2700297",
            make=_make_epoch_iterator_init,
            reason="an uneven global batch is weighted wrongly, an empty one becomes NaN (TF_NOTES 1.6, 7)",
        ),
        Replacement(
            owner=epoch_iterator,
            name="_enumerate_iterator",
            fingerprint="376e3e16a928",
            make=_make_enumerate_iterator,
            reason="an epoch's last call runs only what is left; a resumed run starts inside one",
        ),
        *losses.replacements(),
        *optimizers.replacements(),
        Replacement(
            owner=core.Variable,
            name="_initialize",
            fingerprint="ab759c22f87f",
            make=_make_initialize,
            reason="CentralStorageStrategy needs an aggregation for layers' state (TF_NOTES 1.5)",
        ),
        *(
            Replacement(
                owner=common_variables.Variable,
                name=name,
                fingerprint=fingerprint,
                make=functools.partial(_make_atomic, name=name),
                reason="assign(self + x) loses what other workers add meanwhile (TF_NOTES 2)",
            )
            for name, fingerprint in (("assign_add", "02093eccc2e3"), ("assign_sub", "d5f310723e8b"))
        ),
        Replacement(
            owner=core.Variable,
            name="_direct_assign",
            fingerprint="170647e9816d",
            make=_make_direct_assign,
            reason="metrics assign(self + x), and CentralStorageStrategy sums it with self in each",
        ),
    )


def check_supported(model: Any, strategy: tf.distribute.Strategy) -> None:
    """Raises UnsupportedError for what cannot work with several replicas (TF_NOTES 1.4)."""
    optimizer = getattr(model, "optimizer", None)
    if strategy.num_replicas_in_sync == 1 or optimizer is None:
        return
    if getattr(optimizer, "gradient_accumulation_steps", None):
        raise UnsupportedError(
            f"optimizer {optimizer.name} has gradient_accumulation_steps="
            f"{optimizer.gradient_accumulation_steps}, which Keras 3 cannot do on "
            f"{strategy.num_replicas_in_sync} replicas (keras#20582); "
            "accumulate in a step_fn of ctx.train_steps, or use a larger global batch"
        )
    if getattr(optimizer, "use_ema", False) and getattr(optimizer, "ema_overwrite_frequency", None):
        raise UnsupportedError(
            f"optimizer {optimizer.name} has ema_overwrite_frequency={optimizer.ema_overwrite_frequency}, "
            f"which Keras 3 cannot do on {strategy.num_replicas_in_sync} replicas (keras#20582); "
            "set ema_overwrite_frequency=None: the averages are written over the weights at the end of fit"
        )


def global_random_variables() -> list[tf.Variable]:
    """Returns the state of the generator that `keras.random` draws from without a seed, if it is there."""
    generator = global_state.get_global_attribute("global_seed_generator")
    return [] if generator is None else [generator.state.value]


def make_global_generator() -> None:
    """Makes that generator, unless it is there."""
    seed_generator.global_seed_generator()


def equalize_statistics(model: Any) -> None:
    """Replaces moving statistics by their mean over replicas. Every worker calls it at the same point."""
    strategy = model.distribute_strategy
    if strategy.num_replicas_in_sync == 1 or _is_central(strategy):
        return
    if model not in _equalizers:
        _equalizers[model] = _make_equalizer(strategy, _moving_statistics(model))
    _equalizers[model]()


# One traced function per model: an epoch's end shall not trace it anew.
_equalizers: weakref.WeakKeyDictionary[Any, Callable[[], None]] = weakref.WeakKeyDictionary()


def _make_equalizer(strategy: tf.distribute.Strategy, variables: list[tf.Variable]) -> Callable[[], None]:
    if not variables:
        return lambda: None

    @tf.autograph.experimental.do_not_convert
    def average() -> None:
        context = tf.distribute.get_replica_context()
        means = context.all_reduce(
            tf.distribute.ReduceOp.MEAN, [tf.identity(variable) for variable in variables]
        )
        for variable, mean in zip(variables, means, strict=True):
            variable.assign(mean)

    return tf.function(lambda: strategy.run(average), autograph=False)


def _moving_statistics(model: Any) -> list[tf.Variable]:
    """Float state that layers write while they train. A frozen layer writes none."""
    return [
        variable.value
        for layer in model._flatten_layers()
        if layer.trainable
        for variable in layer._non_trainable_variables
        if variable.dtype.startswith(("float", "bfloat"))
    ]


def _synchronize_batchnorm() -> None:
    """Makes `synchronized=True` the default. Keras reads the signature, so a wrapper would not do."""
    init = BatchNormalization.__init__
    names = init.__code__.co_varnames[: init.__code__.co_argcount][-len(init.__defaults__) :]
    defaults = zip(names, init.__defaults__, strict=True)
    init.__defaults__ = tuple(True if name == "synchronized" else value for name, value in defaults)


def _make_step_function(original: Callable[..., Any]) -> Callable[..., Any]:
    def _make_function(self: Any, step_function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        strategy = self.distribute_strategy
        if not _is_distributed(strategy):
            return original(self, step_function)
        step_on_batch = self._autoconvert_optionals(step_function)
        is_training = step_function == self.train_step
        is_own = not loss_rules.is_keras(step_function)
        if is_training:
            loss_rules.forget(self)

        def run(element: Any, rule: Any) -> Any:
            return slices.run_slice(step_on_batch, element, rule=rule, is_model_step=True)

        def replica_step(element: Any) -> Any:
            metric_variables = (
                [] if _is_central(strategy) else [variable.value for variable in self.metrics_variables]
            )
            rule = loss_rules.rule_of(self) if is_training else loss_rules.evaluation_rule_of(self)
            return slices.keep_on_stand_in(metric_variables, element, lambda: run(element, rule))

        def logged_step(element: Any) -> Any:
            outputs = replica_step(element)
            return own_logs.weighted(outputs, element, self, num_replicas=strategy.num_replicas_in_sync)

        @tf.autograph.experimental.do_not_convert
        def one_step(element: Any) -> Any:
            outputs = strategy.run(logged_step if is_own else replica_step, args=(element,))
            # The logs of a batch are those of the local replicas: reducing them would cost an
            # all-reduce per metric and step, and halves the step rate (TF_NOTES 1.2). The logs of an
            # epoch are read from the metrics, whose variables are summed over all replicas.
            return tree.map_structure(lambda value: own_logs.mean_of_replicas(strategy, value), outputs)

        def look_at(element: Any) -> None:
            loss_rules.decide(self, step_on_batch, element)

        return slices.call_of_steps(
            one_step,
            run_eagerly=self.run_eagerly,
            jit_compile=compilation.is_compiled(self, strategy),
            on_batch=user_batches.step_of(
                strategy,
                replica_step,
                run_eagerly=self.run_eagerly,
                finish=self._get_metrics_result_or_logs,
            ),
            look_at_first=look_at if is_training and loss_rules.is_undecided(self, strategy) else None,
        )

    return _make_function


def _make_predict_function(original: Callable[..., Any]) -> Callable[..., Any]:
    def make_predict_function(self: Any, force: bool = False) -> Callable[[Any], Any] | None:
        if self.predict_function is not None and not force:
            return self.predict_function
        strategy = self.distribute_strategy
        if not _is_distributed(strategy):
            return original(self, force)
        step_on_batch = self._autoconvert_optionals(self.predict_step)
        if compilation.is_compiled(self, strategy) and not self.run_eagerly:
            step_on_batch = tf.function(step_on_batch, reduce_retracing=True, jit_compile=True)

        def replica_step(element: Any) -> Any:
            return slices.drop_stand_in(slices.run_slice(step_on_batch, element), element)

        @tf.autograph.experimental.do_not_convert
        def predict_function(elements: list[Any]) -> Any:
            outputs = [
                tf_trainer.reduce_per_replica(
                    strategy.run(replica_step, args=(element,)), strategy, reduction="concat"
                )
                for element in elements
            ]
            return tree.map_structure(lambda *parts: tf_trainer.concat(list(parts)), *outputs)

        if not self.run_eagerly:
            predict_function = tf.function(predict_function, reduce_retracing=True)
        # `predict_on_batch` gives a batch that is not distributed.
        self.predict_function = lambda elements: predict_function(
            [user_batches.for_replicas(element, strategy) for element in elements]
        )
        return None

    return make_predict_function


class _EqualStatistics(keras.callbacks.Callback):
    """Makes moving statistics equal before other callbacks (which may save the model) see the epoch's end."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        equalize_statistics(self.model)


def _make_checked_fit(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_distributed(self.distribute_strategy):
            return original(self, *args, **kwargs)
        if _is_parameter_server(self.distribute_strategy):
            raise UnsupportedError(
                "Keras 3's model.fit cannot train under parameter_server (keras#20585); use ctx.fit with a "
                "function that returns the data set, or --keras legacy"
            )
        check_supported(self, self.distribute_strategy)
        bound = signature.bind(self, *args, **kwargs)
        callbacks = bound.arguments.get("callbacks")
        if not isinstance(callbacks, keras.callbacks.CallbackList):
            users = in_run_order(tree.flatten(callbacks or []))
            reports = plain_fit.callbacks_for(users, keras.callbacks.Callback)
            callbacks = [_EqualStatistics(), *reports, *users]
            bound.arguments["callbacks"] = callbacks
        session = fit_session.FitSession(self, callbacks, base=keras.callbacks.Callback)
        try:
            with fit_session.entered(session):
                return original(*bound.args, **bound.kwargs)
        finally:
            if session.first is not None:
                self._initial_epoch = None  # or the next `fit` would begin there too

    return fit


def _make_with_equal_statistics(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def evaluate_or_predict(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_distributed(self.distribute_strategy):
            equalize_statistics(self)
        return original(self, *args, **kwargs)

    return evaluate_or_predict


def _make_epoch_iterator_init(original: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: Any, distribute_strategy: Any = None, *args: Any, **kwargs: Any) -> None:
        if not _is_distributed(distribute_strategy):
            original(self, distribute_strategy, *args, **kwargs)
            return
        super(tf_trainer.TFEpochIterator, self).__init__(*args, **kwargs)
        self._distribute_strategy = distribute_strategy
        session = fit_session.taken_by_data_handler()
        self._start = session.resumption.start if session else resume.Start()
        dataset = self.data_adapter.get_tf_dataset()
        check_sizes(distribute_strategy, dataset, num_steps=self.steps_per_epoch or self._num_batches)
        agree = functools.partial(means_over_workers, distribute_strategy)
        is_static = slices.has_static_batch(dataset)
        self._packer = fit_session.packer_of(
            session, self.steps_per_execution, agree, is_batch_static=is_static
        )
        # Under ParameterServer `evaluate` and `predict` run on the chief, as tf_keras's `predict` does.
        is_whole = isinstance(dataset, tf.distribute.DistributedDataset) or _is_parameter_server(
            distribute_strategy
        )
        if not is_whole:
            if session is not None:
                dataset = session.resumption.after(dataset, steps_per_epoch=self.steps_per_epoch)
            dataset = slices.distribute(dataset, distribute_strategy, endless=self._num_batches is not None)
        self._distributed_dataset = dataset

    return __init__


def _make_enumerate_iterator(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _enumerate_iterator(self: Any) -> Iterator[Any]:
        # The iterators of jax and torch have none, and are not replaced.
        is_ours = _is_distributed(self._distribute_strategy)
        yield from _enumerate_calls(self) if is_ours else original(self)

    return _enumerate_iterator


def _enumerate_calls(self: Any) -> Iterator[tuple[int, int, slices.StepCall]]:
    """Yields the first and last step of each call of the step function, and its part of the data."""
    self.data_adapter.on_epoch_begin()
    # Not what Keras counted in the epoch before: this one may have more, or fewer.
    num_steps = self.steps_per_epoch or self.data_adapter.num_batches
    if num_steps is None:
        yield from _until_exhausted(self)
    else:
        yield from _exact_steps(self, num_steps)
    self.data_adapter.on_epoch_end()


def _exact_steps(self: Any, num_steps: int) -> Iterator[tuple[int, int, slices.StepCall]]:
    # A resumed run begins inside its first epoch.
    step, self._start = self._start.step, resume.Start()
    if self._current_iterator is None or self.steps_per_epoch is None:
        self._current_iterator = iter(self._get_iterator())
        self._steps_seen = step
    while step < num_steps:
        if self._num_batches and self._steps_seen >= self._num_batches:
            self._interrupted_warning()
            break
        left = min(num_steps - step, self._num_batches - self._steps_seen if self._num_batches else num_steps)
        count = self._packer.next_count(left)
        self._steps_seen += count
        yield step, step + count - 1, slices.StepCall(self._current_iterator, count)
        step += count
    if self._num_batches and self._steps_seen >= self._num_batches:
        self._current_iterator = None


def _until_exhausted(self: Any) -> Iterator[tuple[int, int, slices.StepCall]]:
    # Data that TensorFlow shards begin anew after a restore; their steps count on all the same.
    step, self._start = self._start.step, resume.Start()
    iterator = iter(self._get_iterator())
    while True:
        # Keras shows it as the number of batches once this call has found none left.
        self._steps_seen = step
        count = self._packer.next_count(self.steps_per_execution)
        call = slices.StepCall(iterator, count, may_end=True)
        yield step, step + call.num_steps - 1, call
        step += call.num_steps


def _make_initialize(original: Callable[..., None]) -> Callable[..., None]:
    def _initialize(self: Any, value: Any) -> None:
        probe = gradient_probe.active()
        if probe is not None:
            # Layers that are built by the first call of a step, which the check makes outside of the
            # strategy.
            with probe.strategy.scope():
                initialize(self, value)
        else:
            initialize(self, value)

    def initialize(self: Any, value: Any) -> None:
        is_central = _is_central(tf.distribute.get_strategy())
        if is_central and self._aggregation == "none" and not self._trainable:
            self._aggregation = (
                "mean" if self._dtype.startswith(("float", "bfloat")) else "only_first_replica"
            )
        original(self, value)

    return _initialize


def _make_atomic(original: Callable[..., Any], *, name: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def assign(self: Any, value: Any) -> Any:
        if in_stateless_scope() or not _is_parameter_server(tf.distribute.get_strategy()):
            return original(self, value)
        getattr(self._value, name)(tf.cast(value, self._value.dtype))
        return self

    return assign


def _make_direct_assign(original: Callable[..., None]) -> Callable[..., None]:
    def _direct_assign(self: Any, value: Any) -> None:
        is_sum = self._aggregation == "sum" and tf.distribute.get_replica_context() is not None
        if not is_sum or not _is_central(tf.distribute.get_strategy()):
            original(self, value)
            return
        added = tf.cast(value, self._value.dtype) - self._value
        share = replica_share.current_share()
        self._value.assign_add(added if share is None else tf.where(share > 0, added, tf.zeros_like(added)))

    return _direct_assign


def _is_distributed(strategy: tf.distribute.Strategy) -> bool:
    """Whether a model was made in a strategy's scope; others are left as Keras has them."""
    return not tf_private.is_default(strategy)


def _is_parameter_server(strategy: tf.distribute.Strategy) -> bool:
    return isinstance(strategy, tf.distribute.ParameterServerStrategy)


def _is_central(strategy: tf.distribute.Strategy) -> bool:
    return isinstance(strategy, tf.distribute.experimental.CentralStorageStrategy)
