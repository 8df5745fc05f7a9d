"""Everything that raydist changes in tf_keras (Keras 2), and all that it must know of its inside.

Stock tf_keras works under MultiWorkerMirroredStrategy, but reduces each metric over the workers in
each step, sums what is summed already (batch logs are N times too large), and weighs an uneven batch
wrongly. TF_NOTES 3.2 and 7 have the causes by file and line.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
import tf_keras
from tf_keras.src.engine import data_adapter, training
from tf_keras.src.utils import metrics_utils

from raydist.errors import UnsupportedError
from raydist.training import tf_private
from raydist.training.cluster.collectives import means_over_workers
from raydist.training.cluster.data_sizes import check_sizes
from raydist.training.keras_patches import replacement
from raydist.training.keras_patches.replacement import Replacement
from raydist.training.keras_patches.tf_keras import build, optimizers
from raydist.training.replicas import gradient_probe, loss_rules, own_logs, slices, user_batches
from raydist.training.stepping import compilation, fit_session, plain_fit
from raydist.training.stepping.callback_calls import in_run_order

VERSION = "2.21"


def mend(*, sync_batchnorm: bool) -> None:
    """Replaces what is broken. Call once in a process, before user code is imported.

    Raises:
      UnsupportedError: This tf_keras is not the one that the replacements were written for.
    """
    if not tf_keras.__version__.startswith(f"{VERSION}."):
        raise UnsupportedError(
            f"tf_keras is {tf_keras.__version__}; raydist mends {VERSION}. Install tf_keras=={VERSION}.*, "
            "or go without with --no-mend-keras"
        )
    replacement.apply(replacements(), library="tf_keras", version=tf_keras.__version__)
    # Dropout's default generator has a state that cannot be saved (TF_NOTES 12).
    tf_keras.backend.experimental.enable_tf_random_generator()
    if sync_batchnorm:
        _synchronize_batchnorm()


def replacements() -> tuple[Replacement, ...]:
    """Returns all that `mend` replaces."""
    kinds = (("make_train_function", "train"), ("make_test_function", "test"))
    return (
        *(
            Replacement(
                owner=training.Model,
                name=name,
                fingerprint=_FINGERPRINTS[name],
                make=functools.partial(_make_step_function, kind=kind),
                reason="each step reduces each metric, and logs are summed twice (keras#16286, TF_NOTES 3.2)",
            )
            for name, kind in kinds
        ),
        Replacement(
            owner=training.Model,
            name="make_predict_function",
            fingerprint=_FINGERPRINTS["make_predict_function"],
            make=_make_predict_function,
            reason="global batches arrive as slices, whose stand-ins must not be predicted",
        ),
        Replacement(
            owner=training.Model,
            name="_maybe_load_initial_counters_from_ckpt",
            fingerprint=_FINGERPRINTS["_maybe_load_initial_counters_from_ckpt"],
            make=_make_load_initial_counters,
            reason="the hook by which a resumed run starts at its epoch",
        ),
        Replacement(
            owner=data_adapter.DataHandler,
            name="_configure_dataset_and_inferred_steps",
            fingerprint=_FINGERPRINTS["_configure_dataset_and_inferred_steps"],
            make=functools.partial(_unless_coordinated, _configure_dataset),
            reason="an uneven global batch is weighted wrongly (TF_NOTES 7)",
        ),
        Replacement(
            owner=data_adapter.DataHandler,
            name="enumerate_epochs",
            fingerprint=_FINGERPRINTS["enumerate_epochs"],
            make=functools.partial(_unless_coordinated, _enumerate_epochs),
            reason="an iterator that is made and dropped advances a shuffle's seed, but not in a resumed run",
        ),
        Replacement(
            owner=data_adapter.DataHandler,
            name="steps",
            fingerprint=_FINGERPRINTS["steps"],
            make=functools.partial(_unless_coordinated, _steps),
            reason="a call has as many steps as the train function is asked for, and may have more than one",
        ),
        Replacement(
            owner=data_adapter,
            name="single_batch_iterator",
            fingerprint=_FINGERPRINTS["single_batch_iterator"],
            make=_make_single_batch_iterator,
            reason="train_on_batch makes a data set of a batch, which is weighted wrongly (TF_NOTES 7)",
        ),
        Replacement(
            owner=data_adapter.DatasetAdapter,
            name="_validate_args",
            fingerprint=_FINGERPRINTS["_validate_args"],
            make=_make_validate_args,
            reason="a distributed data set needs steps_per_epoch, though its end can be seen",
        ),
        Replacement(
            owner=training.Model,
            name="fit",
            fingerprint=_FINGERPRINTS["fit"],
            make=_make_packed_fit,
            reason="several steps may go into one call where no callback watches batches",
        ),
        *optimizers.replacements(),
        Replacement(
            owner=training.Model,
            name="_validate_and_get_metrics_result",
            fingerprint=_FINGERPRINTS["_validate_and_get_metrics_result"],
            make=_make_logs_of_epoch,
            reason="values of a user's own step that are no metrics differ from worker to worker",
        ),
        Replacement(
            owner=metrics_utils,
            name="update_state_wrapper",
            fingerprint=_FINGERPRINTS["update_state_wrapper"],
            make=_make_update_state_wrapper,
            reason="a metric cannot be updated where the check of a model's own losses traces the step",
        ),
        Replacement(
            owner=metrics_utils,
            name="result_wrapper",
            fingerprint=_FINGERPRINTS["result_wrapper"],
            make=_make_result_wrapper,
            reason="reading a metric in a step is an all-reduce per variable (TF_NOTES 3.2)",
        ),
    )


_FINGERPRINTS = {
    "make_train_function": "2c98267ffc1c",
    "make_test_function": "c0d12feaac61",
    "make_predict_function": "56a6ae779caf",
    "_maybe_load_initial_counters_from_ckpt": "fa3b05cb1c73",
    "_configure_dataset_and_inferred_steps": "b29f05ea7262",
    "enumerate_epochs": "8bd30ce6fbcc",
    "steps": "d8870ad49d13",
    "single_batch_iterator": "f73090f406a9",
    "_validate_args": "f5ff9427fb95",
    "fit": "f6cc972c81a0",
    "update_state_wrapper": "0960128e93b4",
    "result_wrapper": "e266e01cef55",
    "_validate_and_get_metrics_result": "7e420007d6a6",
}


class _LocalResults(threading.local):
    """Whether `metric.result()` means this replica's own value, in the thread that traces a step."""

    active = False


_local_results = _LocalResults()


class _local_metric_results:
    def __enter__(self) -> None:
        _local_results.active = True

    def __exit__(self, *exc_info: object) -> None:
        _local_results.active = False


def random_variables(model: Any) -> list[tf.Variable]:
    """Returns the states of the generators of a model's layers, which Keras does not list as variables."""
    found = []
    for layer in model._flatten_layers():
        generator = getattr(getattr(layer, "_random_generator", None), "_generator", None)
        if generator is not None:
            found.append(generator.state)
    return found


def _synchronize_batchnorm() -> None:
    layer = tf_keras.layers.BatchNormalization
    original = layer.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("synchronized", True)
        original(self, *args, **kwargs)

    layer.__init__ = __init__


def _make_step_function(original: Callable[..., Any], *, kind: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def make_function(self: Any, force: bool = False) -> Any:
        if self._cluster_coordinator or tf_private.is_default(self.distribute_strategy):
            return original(self, force)
        if getattr(self, f"{kind}_function") is None or force:
            setattr(self, f"{kind}_function", _step_function(self, kind))
        return getattr(self, f"{kind}_function")

    return make_function


def _step_function(model: Any, kind: str) -> Callable[[Any], Any]:
    strategy = model.distribute_strategy
    step, counter = getattr(model, f"{kind}_step"), getattr(model, f"_{kind}_counter")
    # There the replicas share a metric's variables; a stand-in counts, as one example more.
    is_central = isinstance(strategy, tf.distribute.experimental.CentralStorageStrategy)
    is_own = not loss_rules.is_keras(step)
    # Users write `if tensor:` in their own train_step.
    step = tf.__internal__.autograph.tf_convert(step, tf.__internal__.autograph.control_status_ctx())

    is_training = kind == "train"
    if is_training:
        loss_rules.forget(model)

    def local_step(batch: Any) -> Any:
        with _local_metric_results():
            return step(batch)

    def replica_step(element: Any) -> Any:
        rule = loss_rules.rule_of(model) if is_training else loss_rules.evaluation_rule_of(model)

        def run() -> Any:
            return slices.run_slice(local_step, element, rule=rule, is_model_step=True)

        metrics = [] if is_central else model.metrics
        variables = [variable for metric in metrics for variable in metric.variables]
        outputs = slices.keep_on_stand_in(variables, element, run)
        counter.assign_add(1)
        return outputs

    def logged_step(element: Any) -> Any:
        outputs = replica_step(element)
        return own_logs.weighted(outputs, element, model, num_replicas=strategy.num_replicas_in_sync)

    def one_step(element: Any) -> Any:
        outputs = strategy.run(logged_step if is_own else replica_step, args=(element,))
        # Metrics are aggregated when they are read; the default, `sum`, would count each replica again.
        return tf.nest.map_structure(lambda value: own_logs.mean_of_replicas(strategy, value), outputs)

    def look_at(element: Any) -> None:
        loss_rules.decide(model, local_step, element)

    return slices.call_of_steps(
        one_step,
        run_eagerly=model.run_eagerly,
        jit_compile=compilation.is_compiled(model, strategy),
        on_batch=user_batches.step_of(
            strategy,
            replica_step,
            run_eagerly=model.run_eagerly,
            finish=model._validate_and_get_metrics_result,
        ),
        look_at_first=look_at if is_training and loss_rules.is_undecided(model, strategy) else None,
    )


def _make_packed_fit(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        if tf_private.is_default(self.distribute_strategy):
            return original(self, *args, **kwargs)
        bound = signature.bind(self, *args, **kwargs)
        callbacks = bound.arguments.get("callbacks")
        if not isinstance(callbacks, tf_keras.callbacks.CallbackList):
            users = in_run_order(tf.nest.flatten(callbacks or []))
            reports = plain_fit.callbacks_for(users, tf_keras.callbacks.Callback)
            callbacks = bound.arguments["callbacks"] = [*reports, *users]
        session = fit_session.FitSession(self, callbacks, base=tf_keras.callbacks.Callback)
        with fit_session.entered(session):
            return original(*bound.args, **bound.kwargs)

    return fit


def _make_predict_function(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def make_predict_function(self: Any, force: bool = False) -> Any:
        is_made = self.predict_function is not None and not force
        if self._cluster_coordinator or is_made or tf_private.is_default(self.distribute_strategy):
            return original(self, force)
        if not isinstance(self.predict_step, _SlicedPredictStep):
            # On the model, because the function that stock makes looks it up when it is traced.
            object.__setattr__(self, "predict_step", _SlicedPredictStep(self.predict_step))
        function, on_batch = original(self, True), _predict_on_batch(self)
        # What stock makes would be compiled, which fails for variables on several devices.
        is_usable = compilation.is_compiled(self, self.distribute_strategy) or not self.jit_compile

        def predict_function(call: Any) -> Any:
            if not isinstance(call, slices.StepCall):
                return on_batch(next(call))
            if call.elements is None and is_usable:
                return function(call.iterator)
            outputs = [on_batch(element) for element in call]
            if not outputs:
                raise StopIteration
            return tf.nest.map_structure(lambda *parts: training.concat(list(parts)), *outputs)

        self.predict_function = predict_function
        return predict_function

    return make_predict_function


def _predict_on_batch(model: Any) -> Callable[[Any], Any]:
    strategy = model.distribute_strategy

    @tf.autograph.experimental.do_not_convert
    def predict(element: Any) -> Any:
        outputs = strategy.run(model.predict_step, args=(element,))
        return training.reduce_per_replica(outputs, strategy, reduction="concat")

    traced = predict if model.run_eagerly else tf.function(predict, reduce_retracing=True)
    return lambda batch: traced(user_batches.for_replicas(batch, strategy))


def _make_single_batch_iterator(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def single_batch_iterator(strategy: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        if isinstance(strategy, tf.distribute.ParameterServerStrategy):
            return original(strategy, *args, **kwargs)
        given = signature.bind(strategy, *args, **kwargs)
        given.apply_defaults()
        parts = [given.arguments[name] for name in ("x", "y", "sample_weight")]
        while parts[-1] is None and len(parts) > 1:
            parts.pop()
        data = data_adapter._process_tensorlike(tuple(parts))
        data_adapter._check_data_cardinality(data)
        if given.arguments["class_weight"]:
            data = data_adapter._make_class_weight_map_fn(given.arguments["class_weight"])(*data)
        return iter([data])

    return single_batch_iterator


def _make_validate_args(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def _validate_args(self: Any, y: Any, sample_weights: Any, steps: Any, *args: Any) -> None:
        is_distributed = data_adapter._is_distributed_dataset(self._dataset)
        original(self, y, sample_weights, 1 if steps is None and is_distributed else steps, *args)

    return _validate_args


class _SlicedPredictStep:
    """A predict step that takes slices, and cuts off what a stand-in made."""

    def __init__(self, step: Callable[[Any], Any]) -> None:
        self._step = step

    def __call__(self, data: Any) -> Any:
        return slices.drop_stand_in(slices.run_slice(self._step, data), data)


def _make_load_initial_counters(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _maybe_load_initial_counters_from_ckpt(self: Any, steps_per_epoch: Any, initial_epoch: int) -> Any:
        session = fit_session.current()
        if session is not None and session.first is not None:
            return session.first.epoch, session.first.step
        return original(self, steps_per_epoch, initial_epoch)

    return _maybe_load_initial_counters_from_ckpt


def _unless_coordinated(new: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """Leaves some data handlers as they are: those of models that were made outside of a strategy's scope,
    and of ParameterServer's own `fit`, whose closures are counted otherwise.
    """

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        is_coordinated = isinstance(self, data_adapter._ClusterCoordinatorDataHandler)
        # Without a model: `adapt` of a preprocessing layer.
        is_ours = self._model is not None and not tf_private.is_default(self._model.distribute_strategy)
        is_stock = is_coordinated or not is_ours
        return (original if is_stock else new)(self, *args, **kwargs)

    return method


def _configure_dataset(
    self: Any, strategy: Any, x: Any, steps_per_epoch: int | None, class_weight: Any, distribute: bool
) -> None:
    del x
    session = fit_session.taken_by_data_handler()
    given = dataset = self._adapter.get_dataset()
    if not data_adapter._is_distributed_dataset(dataset):
        build.note_spec(self._model, dataset.element_spec)
    if class_weight:
        dataset = dataset.map(data_adapter._make_class_weight_map_fn(class_weight))
    self._inferred_steps = self._raydist_steps = self._infer_steps(steps_per_epoch, dataset)
    if distribute:
        check_sizes(strategy, dataset, num_steps=self._inferred_steps)
    if distribute and not data_adapter._is_distributed_dataset(dataset):
        # Only a new iterator for each epoch surely takes no more than there is.
        endless = self._inferred_steps is not None and self._adapter.should_recreate_iterator()
        steps = None if self._adapter.should_recreate_iterator() else steps_per_epoch
        if session is not None:
            dataset = session.resumption.after(dataset, steps_per_epoch=steps)
        dataset = slices.distribute(dataset, strategy, endless=endless)
    self._dataset = dataset
    agree = functools.partial(means_over_workers, strategy)
    steps = int(self._steps_per_execution.numpy())
    is_static = slices.has_static_batch(given)
    # With several steps per execution tf_keras asks for the size here, which our calls need not know.
    self._raydist_packer = fit_session.packer_of(session, steps, agree, is_batch_static=is_static)


def _enumerate_epochs(self: Any) -> Iterator[tuple[int, Any]]:
    """Yields each epoch with its data; one iterator per epoch, or one for all."""
    with self._truncate_execution_to_epoch():
        data_iterator = None
        for epoch in range(self._initial_epoch, self._epochs):
            if self._insufficient_data:  # Set by `catch_stop_iteration`.
                break
            is_whole = self._raydist_steps is None  # also a distributed data set without steps_per_epoch
            if data_iterator is None or is_whole or self._adapter.should_recreate_iterator():
                data_iterator = iter(self._dataset)
            self._raydist_call = slices.StepCall(data_iterator, 1)
            # Not what tf_keras counted in the epoch before: this one may have more, or fewer.
            self._inferred_steps = self._raydist_steps
            yield epoch, self._raydist_call
            self._adapter.on_epoch_end()


def _steps(self: Any) -> Iterator[int]:
    """Yields the first step of each call, and says in the call how many steps it has."""
    self._current_step, self._initial_step = self._initial_step, 0
    asked = self._steps_per_execution.numpy().item()
    while self._inferred_steps is None or self._current_step < self._inferred_steps:
        if self._insufficient_data:  # Set by `catch_stop_iteration`.
            break
        left = asked if self._inferred_steps is None else self._inferred_steps - self._current_step
        count = self._raydist_packer.next_count(left)
        if count < asked:
            self._steps_per_execution.assign(count)  # `predict` reads it
        # In a graph, part of a step (the optimizer's count) has run before its data turn out to have ended.
        self._raydist_call.begin(count, may_end=self._inferred_steps is None)
        taken = self._raydist_call.num_steps
        self._step_increment = taken - 1
        yield self._current_step
        self._current_step += taken
        if count < asked:
            self._steps_per_execution.assign(asked)


def _make_logs_of_epoch(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _validate_and_get_metrics_result(self: Any, logs: Any) -> Any:
        results = original(self, logs)
        strategy = self.distribute_strategy
        is_stock = self._cluster_coordinator or tf_private.is_default(strategy)
        if is_stock or results is not logs or not isinstance(logs, dict):
            return results
        return own_logs.of_all_replicas(strategy, logs, self.get_metrics_result())

    return _validate_and_get_metrics_result


def _make_update_state_wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def update_state_wrapper(update_state_fn: Callable[..., Any]) -> Callable[..., Any]:
        wrapped = original(update_state_fn)

        def decorated(metric_obj: Any, *args: Any, **kwargs: Any) -> Any:
            is_probed = gradient_probe.active() is not None
            return tf.no_op() if is_probed else wrapped(metric_obj, *args, **kwargs)

        return tf.__internal__.decorator.make_decorator(update_state_fn, decorated)

    return update_state_wrapper


def _make_result_wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def result_wrapper(result_fn: Callable[..., Any]) -> Callable[..., Any]:
        merged = original(result_fn)

        def decorated(metric_obj: Any, *args: Any) -> Any:
            if not _local_results.active:
                return merged(metric_obj, *args)
            result = tf.nest.map_structure(tf.identity, result_fn(*args))
            metric_obj._call_result = result
            return result

        return tf.__internal__.decorator.make_decorator(result_fn, decorated)

    return result_wrapper
