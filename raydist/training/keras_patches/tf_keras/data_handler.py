"""The data handler of tf_keras: which steps go into which call, on which part of the data."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tf_keras.src.engine import data_adapter

from raydist import tf_private
from raydist.training.cluster.equal_workers import check_sizes, size_of
from raydist.training.cluster.strategy import is_parameter_server
from raydist.training.input import cut, drawn_batches, py_datasets, shuffle_seeds, sources
from raydist.training.input.drawn_batches import DrawnBatches
from raydist.training.keras_patches.replacement import overrides, replaces
from raydist.training.keras_patches.tf_keras import build, coordinated
from raydist.training.replicas import batch_slices
from raydist.training.replicas.accumulation import BatchGroups
from raydist.training.stepping import fit_session, model_steps, step_calls


@dataclass(kw_only=True)
class _Pass:
    """Where a data handler is in its data.

    Attributes:
      steps: Of an epoch; None where an epoch ends with the data.
      is_whole: Whether tf_keras counts no steps of an epoch, as in distributed data without steps_per_epoch.
      batches: Of a pass over the data, where several make up a step; None where it is not known.
      passed: Steps of earlier epochs in the same pass.
      unread: The dataset of which tf_keras makes an iterator at first that nobody reads.
      drawn: What is drawn of a generator, or a Sequence; None of other data.
      is_padded: Whether TensorFlow can make batches for replicas that have none, as it does in other calls
        than those that look for the end.
    """

    groups: BatchGroups
    steps: int | None
    is_whole: bool
    batches: int | None
    passed: int = 0
    unread: Any = None
    drawn: DrawnBatches | None = None
    packer: Any = None
    call: Any = None
    is_padded: bool = True


@replaces(
    data_adapter,
    "get_data_handler",
    "args kwargs",
    "00f4fc572791",
    because="which steps go into which call is decided there",
)
def get_data_handler(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Returns the data handler of a model; that of a `fit`'s validation is one of the chief's."""
    model = kwargs["model"]
    if model is None or tf_private.is_default(model.distribute_strategy):
        return original(*args, **kwargs)
    is_of_chief = "pss_evaluation_shards" in kwargs and coordinated.is_on_chief(model)
    with coordinated.without_coordinator(model) if is_of_chief else contextlib.nullcontext():
        # ParameterServer's own `fit` counts closures.
        return (original if model._cluster_coordinator else ReplicaDataHandler)(*args, **kwargs)


class ReplicaDataHandler(data_adapter.DataHandler):
    """The data of a model that was made in a strategy's scope: which steps go into which call."""

    _pass: _Pass
    _inferred_steps: int | None  # from here on tf_keras's
    _dataset: Any
    _initial_step: int
    _is_drawn_here: bool

    @overrides(
        "self x ...",
        because="what threads and processes of tf_keras draw cannot be limited",
    )
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = inspect.signature(super().__init__).bind(*args, **kwargs).arguments
        threaded = given.get("workers", 1) > 1 or given.get("use_multiprocessing", False)
        self._is_drawn_here = not (threaded or isinstance(given.get("x"), tf.data.Dataset))
        super().__init__(*args, **kwargs)

    @overrides(
        "self strategy x steps_per_epoch class_weight distribute",
        "b29f05ea7262",
        because="an uneven global batch is weighted wrongly",
    )
    def _configure_dataset_and_inferred_steps(
        self, strategy: Any, x: Any, steps_per_epoch: int | None, class_weight: Any, distribute: bool
    ) -> None:
        session = fit_session.taken_by_data_handler()
        is_whole = is_parameter_server(strategy)
        dataset = coordinated.whole_dataset(self._adapter, x) if is_whole else self._adapter.get_dataset()
        if session is not None:
            session.element_spec = sources.element_spec(dataset)
        if not data_adapter._is_distributed_dataset(dataset):
            build.note_spec(self._model, dataset.element_spec)
        if class_weight:
            dataset = dataset.map(data_adapter._make_class_weight_map_fn(class_weight))
        source = session.source if session is not None else sources.Source()
        if not isinstance(self._adapter, data_adapter.DatasetAdapter):
            source = source.of_python()  # it shuffles arrays by operations whose state is not known
        steps = self._infer_steps(steps_per_epoch, dataset)
        at = self._pass = _pass_of(dataset, source, steps=steps, steps_per_epoch=steps_per_epoch)
        self._inferred_steps = at.steps
        at.is_padded = strategy.num_replicas_in_sync == 1 or not batch_slices.foreign_types(
            sources.element_spec(dataset)
        )
        if distribute and not is_whole:
            model_steps.refuse_own_functions(self._model)
            if session is not None:
                build.build_ahead(self._model)
            check_sizes(strategy, dataset, num_steps=at.steps)
        if distribute and not is_whole and not data_adapter._is_distributed_dataset(dataset):
            if self._is_drawn_here:
                at.drawn = drawn_batches.of_python(dataset, strategy)
            is_made_again = self._adapter.should_recreate_iterator()
            # Steps that the user gives may be more than there are in one pass through all epochs.
            endless = at.steps is not None and (is_made_again or steps_per_epoch is None)
            at.unread = dataset if is_made_again else None
            begin = source.begin(
                dataset,
                steps_per_epoch=None if is_made_again else steps_per_epoch,
                unread=shuffle_seeds.Unread.AT_FIRST,
            )
            is_compared = py_datasets.is_from_position(getattr(self._adapter, "_keras_sequence", None))
            dataset = cut.cut_for_replicas(
                dataset, strategy, endless=endless, begin=begin, is_compared=is_compared
            )
        self._dataset = dataset
        # With several steps per execution tf_keras asks for the size here, which our calls need not know.
        at.packer = fit_session.packer_of(session, int(self._steps_per_execution.numpy()), strategy)

    @overrides(
        "self",
        "8bd30ce6fbcc",
        because="what is given is one iterator for all epochs, and has to be a call of several steps",
    )
    def enumerate_epochs(self) -> Iterator[tuple[int, Any]]:
        """Yields each epoch with its data; one iterator per epoch, or one for all."""
        at = self._pass
        with self._truncate_execution_to_epoch():
            data_iterator = None
            if self._initial_epoch < self._epochs:
                shuffle_seeds.begin_unread(at.unread)
            for epoch in range(self._initial_epoch, self._epochs):
                if self._insufficient_data:  # Set by `catch_stop_iteration`.
                    break
                is_new_pass = data_iterator is None or at.is_whole or self._adapter.should_recreate_iterator()
                if is_new_pass and data_iterator is not None:
                    at.passed = 0
                if at.drawn is not None:
                    is_resumed = epoch == self._initial_epoch and self._initial_step
                    at.drawn.begin_epoch(None if is_resumed else at.steps, is_new_pass=is_new_pass)
                if at.drawn is not None or is_new_pass:
                    data_iterator = iter(self._dataset)
                is_shared = self._model.distribute_strategy.num_replicas_in_sync > 1
                at.call = step_calls.StepCall(data_iterator, 1, is_shared=is_shared)
                # Not what tf_keras counted in the epoch before: this one may have more, or fewer.
                self._inferred_steps = at.steps
                yield epoch, at.call
                self._adapter.on_epoch_end()

    @overrides(
        "self",
        "d8870ad49d13",
        because="a call has as many steps as the train function is asked for, and may have more than one",
    )
    def steps(self) -> Iterator[int]:
        """Yields the first step of each call, and says in the call how many steps it has."""
        at = self._pass
        self._current_step, self._initial_step = self._initial_step, 0
        asked = self._steps_per_execution.numpy().item()
        while self._inferred_steps is None or self._current_step < self._inferred_steps:
            if self._insufficient_data:  # Set by `catch_stop_iteration`.
                break
            left = asked if self._inferred_steps is None else self._inferred_steps - self._current_step
            size = 1
            if at.groups.size > 1:
                # Of a pass over the data, or of an epoch where one pass goes through all of them.
                before = 0 if at.groups.batches_per_epoch else at.passed
                known = at.batches if self._inferred_steps is not None else None
                left, size = at.groups.next_call(before + self._current_step, left, num_batches=known)
            count = at.packer.next_count(left)
            if count < asked:
                self._steps_per_execution.assign(count)  # `predict` reads it
            # In a graph, part of a step (the optimizer's count) has run before its data turn out to have
            # ended.
            may_end = self._inferred_steps is None or not at.is_padded
            at.call.begin(count, may_end=may_end, batches_per_step=size)
            taken = at.call.num_steps
            self._step_increment = taken - 1
            yield self._current_step
            self._current_step += taken
            if count < asked:
                self._steps_per_execution.assign(asked)
        at.passed += self._current_step
        if at.drawn is not None and not self._insufficient_data:
            at.drawn.end_epoch()


def _pass_of(
    dataset: Any, source: sources.Source, *, steps: int | None, steps_per_epoch: int | None
) -> _Pass:
    """Returns the pass at the first step of `fit`."""
    groups = source.groups
    at = _Pass(groups=groups, steps=steps, is_whole=steps is None, batches=groups.batches_per_epoch)
    if groups.size <= 1 or groups.batches_per_epoch is not None:
        return at
    count = size_of(dataset)
    if count <= 0:
        return at
    at.batches = count
    if steps_per_epoch is None:
        at.steps = groups.num_steps(count)
    else:
        # Steps of earlier epochs that a resumed run has in the same pass over the data.
        at.passed = source.start.epoch * steps_per_epoch % groups.num_steps(count)
    return at


@replaces(
    data_adapter,
    "single_batch_iterator",
    "strategy x y sample_weight class_weight",
    "f73090f406a9",
    because="train_on_batch makes a dataset of a batch, which is weighted wrongly",
)
def single_batch_iterator(
    original: Callable[..., Any], strategy: Any, *args: Any, **kwargs: Any
) -> Iterator[Any]:
    given = inspect.signature(original).bind(strategy, *args, **kwargs)
    given.apply_defaults()
    parts = [given.arguments[name] for name in ("x", "y", "sample_weight")]
    while parts[-1] is None and len(parts) > 1:
        parts.pop()
    data = data_adapter._process_tensorlike(tuple(parts))
    data_adapter._check_data_cardinality(data)
    if given.arguments["class_weight"]:
        data = data_adapter._make_class_weight_map_fn(given.arguments["class_weight"])(*data)
    return iter([data])


@replaces(
    data_adapter.DatasetAdapter,
    "_validate_args",
    "self y sample_weights steps ...",
    because="a distributed dataset needs steps_per_epoch, though its end can be seen",
)
def validate_args(
    original: Callable[..., None], self: Any, y: Any, sample_weights: Any, steps: Any, *args: Any
) -> None:
    is_distributed = data_adapter._is_distributed_dataset(self._dataset)
    original(self, y, sample_weights, 1 if steps is None and is_distributed else steps, *args)
