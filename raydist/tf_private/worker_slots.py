"""Workers that come and go under ParameterServerStrategy, while the chief's ClusterCoordinator stays.

TensorFlow takes a list of workers when the strategy is built, and waits for all of them. Each time that one
has died it waits for all again, at the same addresses (cluster_coordinator.py,
`WorkerPreemptionHandler._preemption_handler`). What lies below needs neither: `update_server_def` adds,
removes and replaces workers at any address, and tells the ps (context_distributed_manager.cc,
`UpdateContextWithServerDef`).

So the coordinator has a slot for each worker that there may be. One without a process is what TensorFlow
calls a dead worker: its thread takes no closure, and what `create_per_worker_dataset` and the like make for
it is made once it comes. The addresses are told by the run. A worker is in the server def only while it
answers at its address, because the update waits for those that do not.

Limit: if a worker dies after it has answered and before the update is done, the update waits until another
process serves at that address. Meanwhile no worker can come back, and the others train.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from queue import SimpleQueue
from typing import Any, NoReturn

from tensorflow.python.distribute import parameter_server_strategy_v2
from tensorflow.python.distribute.coordinator import cluster_coordinator
from tensorflow.python.eager import context
from tensorflow.python.framework import errors

from raydist.tf_private.attributes import around, changed
from raydist.tf_private.coordination import answers, await_servers

logger = logging.getLogger(__name__)

# How often workers that are expected are looked for, and how long one has to answer: Linux sends a SYN that
# was lost again after 1 s.
_LOOK_S = 0.1
# After so many failed updates in a row the run's notes say so. The wait doubles with each.
_TOLD_FAILURES, _MOST_WAIT_S = 3, 5.0


class WorkerSlots:
    """What the run has told of its workers.

    Attributes:
      num_slots: Workers that there may be at the same time.
      addresses: By slot, where a worker is or is about to be; None while that is as in TF_CONFIG.
    """

    def __init__(self, num_slots: int, *, cut: Callable[[str], None], note: Callable[[str], None]) -> None:
        """Takes what the slots need of the task.

        Args:
          cut: Breaks this process's connections with an address whose host may be gone.
          note: Adds a sentence to the run's notes.
        """
        self.num_slots = num_slots
        self.cut = cut
        self.note = note
        self._lock = threading.Lock()
        self.addresses: Mapping[int, str] | None = None
        self._handler: _Handler | None = None

    def keep(self) -> None:
        """Has strategies and coordinators that are built from now on use the slots."""
        _Kept.slots = self

    def follow(self, messages: SimpleQueue[Any]) -> NoReturn:
        """Takes in the newest of the `WorkerAddresses`, for as long as the process lives."""
        newest = -1
        while True:
            message = messages.get()
            if message.number <= newest:
                continue
            newest = message.number
            try:
                self.take(message.addresses)
            except Exception as error:  # the next ones are taken in all the same
                logger.exception("the workers' addresses could not be taken in")
                self.note(f"Some workers may not join: {type(error).__name__}: {error}.")

    def take(self, addresses: Mapping[int, str]) -> None:
        """Takes in where the workers are now. May wait for an update, so not in a training thread."""
        with self._lock:
            self.addresses = addresses
            if self._handler is not None:
                self._handler.follow(addresses)

    def serve(self, handler: _Handler) -> None:
        with self._lock:
            self._handler = handler
            if self.addresses is not None:
                handler.follow(self.addresses)


class _Kept:
    slots: WorkerSlots | None = None


def members_of(coordinator: Any) -> tuple[int, ...]:
    """Returns the workers that the run has now, those included that are on their way."""
    return tuple(coordinator._cluster.failure_handler.members)


def num_members(coordinator: Any) -> int:
    """Returns how many parts to divide work into that the workers share; at least 1."""
    return max(1, len(members_of(coordinator)))


def wait_for_members(coordinator: Any) -> tuple[int, ...]:
    """Returns the same, once there is one."""
    coordinator._cluster.failure_handler.wait_for_members()
    return members_of(coordinator)


def num_present(coordinator: Any) -> int:
    """Returns how many workers take closures now; at least 1."""
    cluster = coordinator._cluster
    return max(1, len(cluster.workers) - len(cluster.failure_handler.away))


class _Handler(cluster_coordinator.WorkerPreemptionHandler):
    """Takes workers in as they come.

    Attributes:
      away: The slots whose worker takes no closures.
      members: The slots that the run has an address for.
    """

    _error_from_recovery: Any

    def __init__(self, server_def: Any, cluster: Any) -> None:
        (self._job,) = (job for job in server_def.cluster.job if job.name == "worker")
        self._expected: Mapping[int, str] = dict(self._job.tasks)
        self._connected = dict(self._expected)  # the addresses in the server def
        self.away = set(range(cluster._num_workers)) - self._expected.keys()
        self.members = tuple(sorted(self._expected))
        self._num_failures = 0  # of updates, in a row
        super().__init__(server_def, cluster)

    def follow(self, addresses: Mapping[int, str]) -> None:
        """Takes in the workers' addresses, which begins to let go of those that are gone."""
        with self._cluster_update_lock:
            left = {
                slot: address
                for slot, address in self._connected.items()
                if addresses.get(slot) != address and slot not in self.away
            }
            self._expected, self.members = dict(addresses), tuple(sorted(addresses))
            self._cluster_due_for_update_or_finish.set()
            self._worker_up_cond.notify_all()
        for slot, address in left.items():
            self._cluster.workers[slot].leave()
            if not answers(address):
                # A call to a host that has vanished would wait for as long as TCP resends.
                assert _Kept.slots is not None
                _Kept.slots.cut(address)

    def wait_for_members(self) -> None:
        """Waits until the run has a worker, or the coordinator stops."""
        if not self.members:
            with self._cluster_update_lock:
                self._worker_up_cond.wait_for(lambda: self.members or not self._should_preemption_thread_run)

    def wait_until_back(self, slot: int, *, raises: bool = False) -> None:
        """Waits until the slot's worker can take closures, or the coordinator stops.

        Args:
          raises: Whether what an update has found of a ps is raised here.
        """

        def is_over() -> bool:
            is_stopped = not self._should_preemption_thread_run
            return slot not in self.away or is_stopped or (raises and self._error_from_recovery is not None)

        with self._cluster_update_lock:
            self._worker_up_cond.wait_for(is_over)
            if raises and self._error_from_recovery is not None:
                error, self._error_from_recovery = self._error_from_recovery, None
                raise error

    def stop(self) -> None:
        super().stop()
        with self._cluster_update_lock:
            self._worker_up_cond.notify_all()

    @contextlib.contextmanager
    def wait_on_failure(
        self,
        on_failure_fn: Callable[[Exception], None] | None = None,
        on_transient_failure_fn: Callable[[], None] | None = None,
        on_recovery_fn: Callable[[], None] | None = None,
        worker_device_name: str = "(unknown)",
    ) -> Iterator[None]:
        """As TensorFlow's, but a worker is not back because another one is."""
        slot = int(worker_device_name.rpartition(":")[2])

        def failed(error: Exception) -> None:
            with self._cluster_update_lock:
                self.away.add(slot)
            if on_failure_fn is not None:
                on_failure_fn(error)

        def recovered() -> None:
            self.wait_until_back(slot, raises=True)
            if on_recovery_fn is not None:
                on_recovery_fn()

        with super().wait_on_failure(failed, on_transient_failure_fn, recovered, worker_device_name):
            yield

    def _preemption_handler(self) -> None:
        """Runs in the handler's thread."""
        while True:
            self._cluster_due_for_update_or_finish.wait()
            with self._cluster_update_lock:
                if not self._should_preemption_thread_run:
                    return
                expected = self._expected
                # To these TensorFlow would send each new function in vain.
                has_gone = bool((self._connected.keys() - expected.keys()) & self.away)
                if not has_gone and not self.away & expected.keys():
                    self._cluster_due_for_update_or_finish.clear()
                    continue
                serving = self._connected.keys() - self.away
            there = {
                slot: address
                for slot, address in expected.items()
                # No worker that serves is let go of because of one packet.
                if answers(address) or (slot in serving and answers(address))
            }
            if not ((has_gone or self.away & there.keys()) and self._update(there)):
                time.sleep(min(_LOOK_S * 2**self._num_failures, _MOST_WAIT_S))

    def _update(self, there: dict[int, str]) -> bool:
        """Has the cluster consist of these workers; returns whether it does."""
        with self._cluster_update_lock:
            self._job.tasks.clear()
            self._job.tasks.update(there)
            try:
                context.context().update_server_def(self._server_def)
            except Exception as error:
                if cluster_coordinator._is_ps_failure(error):
                    self._error_from_recovery = error
                    self._cluster_due_for_update_or_finish.clear()
                    self._worker_up_cond.notify_all()
                else:
                    self._note_failure(error)
                return False
            self._connected, self._num_failures = there, 0
            self.away -= there.keys()
            self._worker_up_cond.notify_all()
            return True

    def _note_failure(self, error: Exception) -> None:
        self._num_failures += 1
        slots = _Kept.slots
        if slots is not None and self._num_failures == _TOLD_FAILURES:
            slots.note(
                f"TensorFlow could not add workers to its cluster {_TOLD_FAILURES} times in a row "
                f"({type(error).__name__}: {error}). raydist tries again. The others continue to train."
            )


class _Slot(cluster_coordinator.Worker):
    """Begins to take closures once there is a worker."""

    def __init__(self, worker_index: int, device_name: str, cluster: Any) -> None:
        self._is_made = threading.Event()
        super().__init__(worker_index, device_name, cluster)
        if worker_index in cluster.failure_handler.away:
            self._is_dead_with_error = _left(device_name)
        self._is_made.set()

    def leave(self) -> None:
        """Ends what the worker has of its own, so that it takes no closure after the one that it runs."""
        with self._resource_tracking_lock:
            self._is_dead_with_error = error = _left(self.device_name)
            self._set_resources_aborted(error)

    def _process_queue(self) -> None:
        self._is_made.wait()
        if self._is_dead_with_error:
            self.failure_handler.wait_until_back(self.worker_index)
            self._on_worker_recovery()
        super()._process_queue()


class _Cluster(cluster_coordinator.Cluster):
    def __init__(self, strategy: Any) -> None:
        slots = _Kept.slots
        if slots is not None:
            strategy._num_workers = max(slots.num_slots, strategy._num_workers)
        super().__init__(strategy)
        if slots is not None:
            slots.serve(self.failure_handler)


# By the names that TensorFlow looks them up by.
cluster_coordinator.WorkerPreemptionHandler = _Handler
cluster_coordinator.CoordinationServicePreemptionHandler = _Handler
cluster_coordinator.Worker = _Slot
cluster_coordinator.Cluster = _Cluster


@around(parameter_server_strategy_v2.ParameterServerStrategyV2, "_connect_to_cluster")
def _connect_to_cluster(original: Callable[..., None], strategy: Any, coordinator_name: str) -> None:
    """Hides the workers from each other, as TensorFlow does, also those that come later.

    It takes filters only once.
    """
    remote, slots = parameter_server_strategy_v2.remote, _Kept.slots
    connect = remote.connect_to_cluster

    def connect_slots(*args: Any, cluster_device_filters: Any, **kwargs: Any) -> None:
        for slot in range(0 if slots is None else slots.num_slots):
            seen = ["/job:ps", f"/job:{coordinator_name}"]
            cluster_device_filters.set_device_filters("worker", slot, seen)
        connect(*args, cluster_device_filters=cluster_device_filters, **kwargs)

    spec = strategy._cluster_resolver.cluster_spec()
    servers = [spec.job_tasks(job) for job in spec.jobs if job in ("worker", "ps")]
    await_servers(address for addresses in servers for address in addresses if address)
    with changed(remote, connect_to_cluster=connect_slots):
        original(strategy, coordinator_name)


def _left(device_name: str) -> Exception:
    """Returns an error that TensorFlow takes for that of a worker (cluster_coordinator.py)."""
    return errors.UnavailableError(None, None, f"{device_name} has left the run")
