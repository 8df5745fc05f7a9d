"""The data handler of tf_keras: which steps go into which call, on which part of the data."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tf_keras.src.engine import data_adapter

from raydist.training import tf_private
from raydist.training.cluster.collectives import means_over_workers
from raydist.training.cluster.equal_workers import check_sizes
from raydist.training.input import cut, py_datasets, resume
from raydist.training.keras_patches.tf_keras import build
from raydist.training.replicas.accumulation import Groups
from raydist.training.stepping import fit_session, step_calls


def unless_coordinated(new: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
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


def configure_dataset(
    self: Any, strategy: Any, x: Any, steps_per_epoch: int | None, class_weight: Any, distribute: bool
) -> None:
    del x
    session = fit_session.taken_by_data_handler()
    dataset = self._adapter.get_dataset()
    if session is not None:
        session.element_spec = resume.element_spec(dataset)
    if not data_adapter._is_distributed_dataset(dataset):
        build.note_spec(self._model, dataset.element_spec)
    if class_weight:
        dataset = dataset.map(data_adapter._make_class_weight_map_fn(class_weight))
    resumption = session.resumption if session is not None else resume.Resumption(resume.Start())
    # It shuffles arrays by operations whose state is not known.
    resumption = resumption.of_data(is_fixed=isinstance(self._adapter, data_adapter.DatasetAdapter))
    groups = self._raydist_groups = session.groups if session is not None else Groups()
    self._inferred_steps = self._infer_steps(steps_per_epoch, dataset)
    self._raydist_batches, self._raydist_passed = groups.batches_per_epoch, 0
    if groups.size > 1 and groups.batches_per_epoch is None:
        cardinality = dataset.cardinality  # a distributed dataset has a property
        count = int(cardinality() if callable(cardinality) else cardinality)
        self._raydist_batches = count if count > 0 else None
        if count > 0 and steps_per_epoch is None:
            self._inferred_steps = groups.num_steps(count)
        elif count > 0 and session is not None:
            # Steps of earlier epochs that a resumed run has in the same pass over the data.
            before = resumption.start.epoch * (steps_per_epoch or 0)
            self._raydist_passed = before % groups.num_steps(count)
    self._raydist_steps, self._raydist_unread = self._inferred_steps, None
    if distribute:
        check_sizes(strategy, dataset, num_steps=self._inferred_steps)
    if distribute and not data_adapter._is_distributed_dataset(dataset):
        # Only a new iterator for each epoch surely takes no more than there is.
        endless = self._inferred_steps is not None and self._adapter.should_recreate_iterator()
        steps = None if self._adapter.should_recreate_iterator() else steps_per_epoch
        if self._adapter.should_recreate_iterator():
            self._raydist_unread = dataset
        resumption.prepare(dataset, steps_per_epoch=steps, unread=resume.Unread.AT_FIRST)
        is_compared = py_datasets.is_from_position(getattr(self._adapter, "_keras_sequence", None))
        dataset = cut.cut_for_replicas(
            dataset, strategy, endless=endless, begin=resumption.begin, is_compared=is_compared
        )
    self._dataset = dataset
    agree = functools.partial(means_over_workers, strategy)
    steps = int(self._steps_per_execution.numpy())
    # With several steps per execution tf_keras asks for the size here, which our calls need not know.
    self._raydist_packer = fit_session.packer_of(session, steps, agree)


def enumerate_epochs(self: Any) -> Iterator[tuple[int, Any]]:
    """Yields each epoch with its data; one iterator per epoch, or one for all."""
    with self._truncate_execution_to_epoch():
        data_iterator = None
        if self._initial_epoch < self._epochs:
            resume.begin_unread(self._raydist_unread)
        for epoch in range(self._initial_epoch, self._epochs):
            if self._insufficient_data:  # Set by `catch_stop_iteration`.
                break
            is_whole = self._raydist_steps is None  # also a distributed dataset without steps_per_epoch
            if data_iterator is None or is_whole or self._adapter.should_recreate_iterator():
                if data_iterator is not None:
                    self._raydist_passed = 0
                data_iterator = iter(self._dataset)
            self._raydist_call = step_calls.StepCall(data_iterator, 1)
            # Not what tf_keras counted in the epoch before: this one may have more, or fewer.
            self._inferred_steps = self._raydist_steps
            yield epoch, self._raydist_call
            self._adapter.on_epoch_end()


def steps(self: Any) -> Iterator[int]:
    """Yields the first step of each call, and says in the call how many steps it has."""
    self._current_step, self._initial_step = self._initial_step, 0
    asked = self._steps_per_execution.numpy().item()
    groups = self._raydist_groups
    while self._inferred_steps is None or self._current_step < self._inferred_steps:
        if self._insufficient_data:  # Set by `catch_stop_iteration`.
            break
        left = asked if self._inferred_steps is None else self._inferred_steps - self._current_step
        size = 1
        if groups.size > 1:
            # Of a pass over the data, or of an epoch where one pass goes through all of them.
            before = 0 if groups.batches_per_epoch else self._raydist_passed
            known = self._raydist_batches if self._inferred_steps is not None else None
            left, size = groups.next_call(before + self._current_step, left, num_batches=known)
        count = self._raydist_packer.next_count(left)
        if count < asked:
            self._steps_per_execution.assign(count)  # `predict` reads it
        # In a graph, part of a step (the optimizer's count) has run before its data turn out to have ended.
        may_end = self._inferred_steps is None
        self._raydist_call.begin(count, may_end=may_end, batches_per_step=size)
        taken = self._raydist_call.num_steps
        self._step_increment = taken - 1
        yield self._current_step
        self._current_step += taken
        if count < asked:
            self._steps_per_execution.assign(asked)
    self._raydist_passed += self._current_step


def make_single_batch_iterator(original: Callable[..., Any]) -> Callable[..., Any]:
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


def make_validate_args(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def _validate_args(self: Any, y: Any, sample_weights: Any, steps: Any, *args: Any) -> None:
        is_distributed = data_adapter._is_distributed_dataset(self._dataset)
        original(self, y, sample_weights, 1 if steps is None and is_distributed else steps, *args)

    return _validate_args
