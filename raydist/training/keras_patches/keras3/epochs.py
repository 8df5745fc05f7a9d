"""ReplicaEpochs: which steps of Keras 3's epochs go into which call, on which part of the data."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow import trainer as tf_trainer
from keras.src.backend.tensorflow.trainer import TFEpochIterator
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

from raydist import tf_private
from raydist.known_versions import version_of
from raydist.training.cluster.equal_workers import check_sizes
from raydist.training.cluster.strategy import is_distributed, is_parameter_server
from raydist.training.input import (
    cut,
    drawn_batches,
    py_datasets,
    recipes,
    shuffle_seeds,
    sources,
    worker_order,
)
from raydist.training.keras_patches.replacement import overrides, replaces
from raydist.training.replicas.accumulation import BatchGroups
from raydist.training.stepping import fit_session, step_calls

_FIXED = (ArrayDataAdapter, TFDatasetAdapter)  # what makes the same batches in each process
# Until 3.10 `fit` was given the first step of a call alone, and gave callbacks that one at its end too.
_HAS_LAST_STEPS = version_of(keras.__version__) > (3, 10)
# First and last step of a call within the epoch, and its part of the data.
_Call = tuple[int, int, step_calls.StepCall]


class _FirstStep(int):
    """The first step of a call, which also has the last one."""

    last: int


@replaces(
    keras.callbacks.CallbackList,
    "" if _HAS_LAST_STEPS else "on_train_batch_end on_test_batch_end on_predict_batch_end",
    "self batch logs",
    because="a call of several steps ends with its last one, as from 3.11 on",
)
def _batch_end(original: Callable[..., None], self: Any, batch: int, logs: Any = None) -> None:
    original(self, batch.last if isinstance(batch, _FirstStep) else batch, logs)


def _first_with_last(first: int, last: int) -> _FirstStep:
    step = _FirstStep(first)
    step.last = last
    return step


@replaces(
    tf_trainer,
    "TFEpochIterator",
    "distribute_strategy args kwargs",
    because="which steps go into which call is decided there",
)
class ReplicaEpochs(TFEpochIterator):
    """Iterates over the calls of each epoch; as Keras's own does for models outside of every strategy."""

    element_spec: Any
    data_adapter: Any  # from here on Keras's
    steps_per_epoch: int | None
    _current_iterator: Any
    _distributed_dataset: Any

    @overrides(
        "self distribute_strategy args kwargs",
        "901af2700297",
        because="an uneven global batch is weighted wrongly, an empty one becomes NaN",
    )
    def __init__(self, distribute_strategy: Any = None, *args: Any, **kwargs: Any) -> None:
        recipes.refuse_in_keras(*args, kwargs.get("x"))
        if not is_distributed(distribute_strategy):
            super().__init__(distribute_strategy, *args, **kwargs)
            self.element_spec = sources.element_spec(self._distributed_dataset)
            return
        is_on_chief = is_parameter_server(distribute_strategy)
        if is_on_chief:
            cut.refuse_distributed(kwargs.get("x"))
        super(TFEpochIterator, self).__init__(*args, **kwargs)  # Keras's own would distribute them
        self._distribute_strategy = distribute_strategy
        session = fit_session.taken_by_data_handler()
        source = session.source if session else sources.Source()
        is_fixed = isinstance(self.data_adapter, _FIXED)
        source = self._source = source if is_fixed else source.of_python()
        self._start, self._groups = source.start, source.groups
        if self._groups.size > 1:
            self.data_adapter = _GroupedAdapter(self.data_adapter, self._groups)
            self._num_batches = self.data_adapter.num_batches
        elif self._is_of_replicas():
            self._num_batches = None
        with _looked_at(self.data_adapter) as batches:
            dataset = self.data_adapter.get_tf_dataset()
        if isinstance(self.data_adapter, ArrayDataAdapter):  # whose dataset does not tell its length
            dataset = dataset.apply(tf.data.experimental.assert_cardinality(self.data_adapter.num_batches))
        if not isinstance(dataset, tf.distribute.DistributedDataset):
            self.steps_per_epoch = in_whole_calls(self.steps_per_epoch, self.steps_per_execution)
        self.element_spec = sources.element_spec(dataset)
        if batches:
            what = "call" if session is None else "fit"
            worker_order.check_batches(batches, distribute_strategy, name=f"the data of this {what}")
        if session is not None:
            session.element_spec = self.element_spec
        check_sizes(distribute_strategy, dataset, num_steps=self.steps_per_epoch or self._num_batches)
        self._packer = fit_session.packer_of(session, self.steps_per_execution, distribute_strategy)
        # Under ParameterServer `evaluate` and `predict` run on the chief, as tf_keras's `predict` does.
        is_whole = isinstance(dataset, tf.distribute.DistributedDataset) or is_on_chief
        self._given_dataset = self._drawn = None
        if not is_whole:
            self._given_dataset = dataset
            if not is_fixed and getattr(self.data_adapter, "enqueuer", None) is None:
                self._drawn = drawn_batches.of_python(dataset, distribute_strategy)
            unread = shuffle_seeds.Unread.AFTER_PASS
            dataset = cut.cut_for_replicas(
                dataset,
                distribute_strategy,
                endless=self._num_batches is not None,
                begin=source.begin(dataset, steps_per_epoch=self.steps_per_epoch, unread=unread),
                is_compared=not is_fixed,  # by the batches that Keras looks at
            )
        self._distributed_dataset = dataset

    @overrides(
        "self",
        *("376e3e16a928", "5b12fbb1202b"),  # the latter in 3.10
        because="an epoch's last call runs only what is left; a resumed run starts inside one",
    )
    def _enumerate_iterator(self) -> Iterator[Any]:
        if not is_distributed(self._distribute_strategy):
            yield from super()._enumerate_iterator()
            return
        for first, last, call in self._calls():
            yield (first, last, call) if _HAS_LAST_STEPS else (_first_with_last(first, last), call)

    def _calls(self) -> Iterator[_Call]:
        self.data_adapter.on_epoch_begin()
        # Not what Keras counted in the epoch before: this one may have more, or fewer.
        num_steps = self.steps_per_epoch
        if num_steps is None and not self._is_of_replicas():
            num_steps = self.data_adapter.num_batches
        yield from self._until_exhausted() if num_steps is None else self._exact_steps(num_steps)
        if self._drawn is not None:
            self._drawn.end_epoch()
        self.data_adapter.on_epoch_end()

    def _is_of_replicas(self) -> bool:
        """Whether the data are a function's, and a step takes several of what Keras counts as batches."""
        data = getattr(self.data_adapter, "_dataset", None)
        is_of_function = type(data).__name__ == "DistributedDatasetsFromFunction"
        return is_of_function and len(self._distribute_strategy.extended.worker_devices) > 1

    def _exact_steps(self, num_steps: int) -> Iterator[_Call]:
        # A resumed run begins inside its first epoch.
        step, epoch, self._start = self._start.step, self._start.epoch, sources.Start()
        is_new_pass = self._current_iterator is None or self.steps_per_epoch is None
        if self._drawn is not None:
            is_resumed = step or epoch
            self._drawn.begin_epoch(None if is_resumed else num_steps, is_new_pass=is_new_pass)
        if self._drawn is not None or is_new_pass:
            self._current_iterator = iter(self._get_iterator())
        if is_new_pass:
            self._steps_seen = step
            self._steps_before = 0  # of earlier epochs, that a resumed run has in the same pass over the data
            if self.steps_per_epoch and self._num_batches:
                self._steps_before = epoch * self.steps_per_epoch % self._num_batches
        groups = self._groups
        while step < num_steps:
            if self._num_batches and self._steps_seen >= self._num_batches:
                if num_steps - step >= self.steps_per_execution:  # or the last call of Keras had the rest
                    self._interrupted_warning()
                break
            left = min(
                num_steps - step, self._num_batches - self._steps_seen if self._num_batches else num_steps
            )
            size = 1
            if groups.size > 1:
                # Of a pass over the data, or of an epoch where one pass goes through all of them.
                of_epoch, of_pass = groups.batches_per_epoch, self.data_adapter.num_elements
                position = step if of_epoch else self._steps_before + self._steps_seen
                left, size = groups.next_call(position, left, num_batches=of_epoch or of_pass)
            count = self._packer.next_count(left)
            self._steps_seen += count
            yield step, step + count - 1, self._call_of(self._current_iterator, count, batches_per_step=size)
            step += count
        if self._num_batches and self._steps_seen >= self._num_batches:
            self._begin_anew()

    def _call_of(self, iterator: Any, num_steps: int, **options: Any) -> step_calls.StepCall:
        is_shared = self._distribute_strategy.num_replicas_in_sync > 1
        return step_calls.StepCall(iterator, num_steps, is_shared=is_shared, **options)

    def _begin_anew(self) -> None:
        """Makes the next iterator when data have been read to their end, as Keras does.

        With `steps_per_epoch` it is read from then on; without, each epoch makes one of its own.
        """
        self._current_iterator = None
        if self._given_dataset is None:
            return
        if self.steps_per_epoch is None:
            shuffle_seeds.begin_unread(self._given_dataset)
        elif shuffle_seeds.shuffles_of(self._given_dataset):
            self._source.epoch_ended()
            self._current_iterator = iter(self._get_iterator())
            self._steps_seen = self._steps_before = 0

    def _until_exhausted(self) -> Iterator[_Call]:
        # Data that TensorFlow shards restart from the beginning after a restore; their steps are counted on.
        step, self._start = self._start.step, sources.Start()
        if self._drawn is not None:
            self._drawn.begin_epoch(None, is_new_pass=True)
        iterator = iter(self._get_iterator())
        while True:
            # Keras shows it as the number of batches once this call has found none left.
            self._steps_seen = step
            count = self._packer.next_count(self.steps_per_execution)
            call = self._call_of(iterator, count, may_end=True, batches_per_step=self._groups.size)
            yield step, step + call.num_steps - 1, call
            step += call.num_steps


@contextlib.contextmanager
def _looked_at(adapter: Any) -> Iterator[list[Any]]:
    """Yields the batches of the user's Python at which Keras looks in the block, for their types."""
    data = getattr(adapter, "py_dataset", None)
    if data is None:
        yield list(getattr(adapter, "_first_batches", ()))
        return
    with py_datasets.peeked_at(data) as is_of_ctx_fit:
        if is_of_ctx_fit:  # which has compared them
            yield []
            return
    found: list[Any] = []
    standardize = adapter._standardize_batch

    def noted(batch: Any) -> Any:
        found.append(batch)
        return standardize(batch)

    with tf_private.own_attributes([(adapter, "_standardize_batch", noted)]):
        yield found


def in_whole_calls(steps: int | None, steps_per_execution: int) -> int | None:
    """Returns how many steps Keras takes of data that continue, where it is asked for `steps` of them.

    Its calls all have as many, so the last one continues beyond (epoch_iterator.py, `_enumerate_iterator`).
    """
    return -(-steps // steps_per_execution) * steps_per_execution if steps else steps


class _GroupedAdapter:
    """A data adapter of Keras whose number of batches is that of steps, each of which takes several.

    Attributes:
      num_elements: Batches of the data; None where it is not known, or they have no end.
    """

    def __init__(self, adapter: Any, groups: BatchGroups) -> None:
        self._adapter = adapter
        self._groups = groups

    @property
    def num_elements(self) -> int | None:
        return self._adapter.num_batches

    @property
    def num_batches(self) -> int | None:
        # One pass that goes through all epochs has a group that is not full at the end of each.
        count = None if self._groups.batches_per_epoch else self.num_elements
        return count if count is None else self._groups.num_steps(count)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)
