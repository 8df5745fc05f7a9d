"""A tf.distribute strategy whose replicas are the run's, not the cluster's.

It has K replicas for any number of workers. Each worker runs its share of them, in one graph; weights and
optimizer exist once in each worker, and what a replica keeps for itself (statistics, metrics, the states of
random generators) once for each replica. Sums are added by a fixed tree (replica_tree.py), so their bits do
not depend on the number of workers or devices. The order in which TensorFlow's ring all-reduce adds does.

A model's step is traced once for each replica, as under MirroredStrategy.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from raydist import tf_private
from raydist.errors import UnsupportedError
from raydist.training.cluster import replica_tree
from raydist.training.cluster.tree_sums import TreeSums


class VirtualReplicasStrategy(tf.distribute.Strategy):
    """`num_replicas_in_sync` replicas on one worker's devices, or on all workers of TF_CONFIG."""

    # What TensorFlow's strategies begin to count their collectives with.
    _collective_key_base = 0

    def __init__(
        self,
        num_replicas: int,
        *,
        devices: Sequence[str] | None = None,
        options: tf.distribute.experimental.CommunicationOptions | None = None,
        shares: Sequence[int] = (),
    ) -> None:
        """Builds the strategy.

        Args:
          num_replicas: At least the number of workers, and of this one's devices.
          devices: Of this worker, which is then the only one; None reads TF_CONFIG.
          shares: Of the replicas that each worker computes; empty for equal ones.
        """
        options = options or tf.distribute.experimental.CommunicationOptions()
        super().__init__(_Extended(self, num_replicas, devices=devices, options=options, shares=shares))

    @property
    def own_replicas(self) -> range:
        return self.extended.own_replicas

    @property
    def is_on_cpu(self) -> bool:
        """Whether all of this worker's replicas are computed by its CPU."""
        return len(set(self.extended.worker_devices)) == 1 and "CPU" in self.extended.worker_devices[0]

    def gather_rows(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns the rows of all replicas, `[num_replicas, size]`, of this worker's: a collective."""
        return self.extended.cross_device_ops.gather_rows(rows)


def is_virtual(strategy: object) -> bool:
    """Whether the strategy's replicas are those of the run."""
    return isinstance(strategy, VirtualReplicasStrategy)


def is_own(variable: object) -> bool:
    """Whether each virtual replica has a value of its own of a variable."""
    is_distributed = isinstance(variable, tf.distribute.DistributedValues)
    if not is_distributed or isinstance(variable, _SharedVariable):
        return False
    return is_virtual(getattr(variable, "distribute_strategy", None))


class _Kind(enum.Enum):
    OWN = "each replica has one"
    SHARED = "all replicas of a worker have one"


class _Sharing(threading.local):
    is_on = False  # inside of `shared_variables`
    updating: _Kind | None = None  # what is being updated by `StrategyExtended.update`


_sharing = _Sharing()

# A replica's seed is that of the first one and its number times this: any odd number far from small ones.
_SEED_STRIDE = 0x9E3779B1
_SEED_RANGE = 2**31 - 1
# How Keras 3 names the states of its SeedGenerators.
_SEEDS = "seed_generator_state"


def is_seed(variable: Any) -> bool:
    """Whether a variable is the state of a SeedGenerator of Keras 3: a seed and a count of draws."""
    return _SEEDS in str(variable.name)


def seed_of_replica(state: Any, replica: int) -> Any:
    """Returns the state that a replica has of a SeedGenerator, of which the first replica has `state`.

    The first one draws what one device draws.
    """
    if replica == 0:
        return state
    seed, count = tf.unstack(tf.cast(state, tf.int64))
    return tf.cast(tf.stack([(seed + replica * _SEED_STRIDE) % _SEED_RANGE, count]), state.dtype)


@contextlib.contextmanager
def shared_variables() -> Iterator[None]:
    """Around what makes an optimizer's variables, which one update changes for all replicas of a worker."""
    with tf_private.changed(_sharing, is_on=True):
        yield


class _SharedVariable(tf_private.MirroredVariable):
    """A variable that exists once for all replicas of a worker."""

    def _update(self, update_fn: Callable[..., Any], value: Any, **kwargs: Any) -> Any:
        if _sharing.updating is _Kind.OWN:  # it would be changed once for each replica
            raise UnsupportedError(
                f"{self.name} changes with a variable of which each virtual replica has a value of its own, "
                "such as an optimizer's variable with weights that were made with trainable=False; leave "
                "trainable=False out where weights are made"
            )
        return super()._update(update_fn, value, **kwargs)

    def _update_replica(self, update_fn: Callable[..., Any], value: Any, **kwargs: Any) -> Any:
        if self.aggregation != tf.VariableAggregation.NONE:
            return super()._update_replica(update_fn, value, **kwargs)

        # Each mirrored copy would take its own replica's value. They have to be equal:
        # `equal_workers` compares the workers'.
        def merge(strategy: tf.distribute.Strategy, given: Any) -> Any:
            first = strategy.experimental_local_results(given)[0]
            return strategy.extended.update(
                self, lambda one, own: update_fn(one, own, **kwargs), args=(first,), group=False
            )

        return tf.distribute.get_replica_context().merge_call(merge, args=(value,))


class _OwnVariable(tf_private.MirroredVariable):
    """A variable of which each replica has a value of its own.

    Outside of replicas the state of a SeedGenerator is that of the first replica, also where another worker
    has that one, and assigning it gives each replica its own seed again.
    """

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_seed(self) or tf_private.is_in_replica() or tf_private.is_in_update():
            return super().assign(value, *args, **kwargs)
        for copy, replica in zip(self.values, self.distribute_strategy.own_replicas, strict=True):
            copy.assign(seed_of_replica(tf.convert_to_tensor(value, self.dtype), replica))
        return self

    def _get_cross_replica(self) -> Any:
        found = super()._get_cross_replica()
        return (
            seed_of_replica(found, -self.distribute_strategy.own_replicas.start) if is_seed(self) else found
        )

    def _update(self, update_fn: Callable[..., Any], value: Any, **kwargs: Any) -> Any:
        if _sharing.updating is not _Kind.SHARED:
            return super()._update(update_fn, value, **kwargs)
        # Such as a slot that an optimizer has made by itself: all replicas' weights are updated at once.
        updated, *_ = [update_fn(copy, value, **kwargs) for copy in self.values]
        return updated


class _InputContext(tf.distribute.InputContext):
    """Also tells the replicas, of which workers may have unequal numbers; `raydist.data` asks for them."""

    def __init__(self, context: tf.distribute.InputContext, own_replicas: range) -> None:
        super().__init__(context.num_input_pipelines, context.input_pipeline_id, context.num_replicas_in_sync)
        self.own_replicas = own_replicas


class _Extended(tf_private.CollectiveExtended):
    """How TensorFlow's MultiWorkerMirroredStrategy differs where replicas are not devices."""

    def __init__(
        self,
        container: tf.distribute.Strategy,
        num_replicas: int,
        *,
        devices: Sequence[str] | None,
        options: tf.distribute.experimental.CommunicationOptions,
        shares: Sequence[int],
    ) -> None:
        self._num_virtual: int | None = None  # while the base class counts devices
        super().__init__(container, None, options, None if devices is None else tuple(devices))
        self._num_virtual = num_replicas
        self.replicas_of_workers = [
            replica_tree.replicas_of(
                worker, num_workers=self._num_workers, num_replicas=num_replicas, shares=shares
            )
            for worker in range(self._num_workers)
        ]
        own = self.own_replicas
        given: Sequence[str] = self.worker_devices
        self._devices = tuple(given[index * len(given) // len(own)] for index in range(len(own)))
        self._input_workers_devices = ((self._worker_device, self._devices),)
        self.cross_device_ops = self._cross_device_ops = TreeSums(
            num_replicas,
            own=own,
            replicas_of_workers=self.replicas_of_workers,
            launcher=tf_private.launcher_of(self),
        )

    @property
    def own_replicas(self) -> range:
        return self.replicas_of_workers[self._id_in_cluster]

    @property
    def _num_replicas_in_sync(self) -> int:
        return len(self._devices) if self._num_virtual is None else self._num_virtual

    def _get_replica_id_in_sync_group(self, replica_id: int) -> int:
        return self.own_replicas.start + replica_id

    def _get_local_replica_id(self, replica_id_in_sync_group: int) -> int:
        return replica_id_in_sync_group - self.own_replicas.start

    def _use_merge_call(self) -> bool:
        return True

    def _experimental_distribute_values_from_function(self, value_fn: Callable[[Any], Any]) -> Any:
        contexts = (
            tf.distribute.experimental.ValueContext(replica, self._num_replicas_in_sync)
            for replica in self.own_replicas
        )
        return tf_private.regroup([value_fn(one) for one in contexts], always_wrap=True)

    def _experimental_distribute_dataset(self, dataset: tf.data.Dataset, options: Any) -> Any:
        # TensorFlow's own way gives a replica another part of the batch for each number of workers.
        def parts(context: tf.distribute.InputContext) -> tf.data.Dataset:
            return dataset.flat_map(self._parts_of_batch)

        return self._distribute_datasets_from_function(parts, options)

    def _distribute_datasets_from_function(self, dataset_fn: Callable[[Any], Any], options: Any) -> Any:
        def of_own_replicas(context: tf.distribute.InputContext) -> Any:
            return dataset_fn(_InputContext(context, self.own_replicas))

        return super()._distribute_datasets_from_function(of_own_replicas, options)

    @tf.autograph.experimental.do_not_convert
    def _parts_of_batch(self, *batch: Any) -> tf.data.Dataset:
        def rows(component: tf.Tensor, replica: int) -> tf.Tensor:
            size, extra = (
                tf.shape(component)[0] // self._num_virtual,
                tf.shape(component)[0] % self._num_virtual,
            )
            first = replica * size + tf.minimum(replica, extra)
            return component[first : first + size + tf.cast(replica < extra, tf.int32)]

        element = batch if len(batch) > 1 else batch[0]
        first, *others = [
            tf.data.Dataset.from_tensors(
                tf.nest.map_structure(functools.partial(rows, replica=replica), element)
            )
            for replica in self.own_replicas
        ]
        return functools.reduce(lambda joined, one: joined.concatenate(one), others, first)

    def _create_variable(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        kwargs.pop("colocate_with", None)
        is_own = self._is_own(kwargs)
        devices = self._devices if is_own else self._devices[:1]

        def create(**kwargs: Any) -> list[Any]:
            copies: list[Any] = []
            for index, device in enumerate(devices):
                initial = self._get_variable_creator_initial_value(
                    replica_id=index, device=device, primary_var=copies[0] if copies else None, **kwargs
                )
                # A slash at the end takes the name as it is (mirrored_strategy.py, `_real_mirrored_creator`).
                own_name = f"{copies[0].name.partition(':')[0]}/replica_{index}/" if copies else None
                options = {**kwargs, "initial_value": initial, "name": own_name or kwargs.get("name")}
                with tf.device(device):
                    copies.append(next_creator(**options))
            return copies if is_own else copies * len(self._devices)

        return tf_private.create_mirrored_variable(
            self._container_strategy(),
            create,
            mirrored_class=_OwnVariable if is_own else _SharedVariable,
            **kwargs,
        )

    def _get_variable_creator_initial_value(self, replica_id: int, **kwargs: Any) -> Any:
        initial = super()._get_variable_creator_initial_value(replica_id=replica_id, **kwargs)
        if self._num_virtual is None or _SEEDS not in str(kwargs.get("name")):
            return initial
        # The first of each worker's copies gets what the chief's has got.
        shift = replica_id or self.own_replicas.start
        return lambda: seed_of_replica(tf.convert_to_tensor(initial()), shift)

    def _is_own(self, options: Mapping[str, Any]) -> bool:
        """Whether each replica has a value of its own of a variable that is made with these options."""
        if options.get("synchronization") == tf.VariableSynchronization.ON_READ:
            return True
        is_aggregated = options.get("aggregation") not in (None, tf.VariableAggregation.NONE)
        is_trained = options.get("trainable") is not False  # None: TensorFlow decides, for it
        return not (is_trained or is_aggregated or _sharing.is_on)

    def _update(
        self, var: Any, fn: Callable[..., Any], args: Any, kwargs: Mapping[str, Any], group: bool
    ) -> Any:
        if not isinstance(var, _SharedVariable):
            with tf_private.changed(_sharing, updating=_Kind.OWN):
                return super()._update(var, fn, args, kwargs, group)
        only = var.values[0]
        sharing = tf_private.changed(_sharing, updating=_Kind.SHARED)
        with tf.device(only.device), tf_private.update_context(0), sharing:
            updated = fn(only, *tf_private.select_replica(0, args), **tf_private.select_replica(0, kwargs))
        return tf_private.update_regroup(self, [updated] * len(self._devices), group)

    def _get_cross_device_ops(self, value: Any) -> tf.distribute.CrossDeviceOps:
        return self._cross_device_ops
