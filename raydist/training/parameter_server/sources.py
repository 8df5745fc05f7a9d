"""raydist.data under ParameterServer: the chief names a step, and the worker reads it in its own process.

TensorFlow runs a Python source (`numpy_function`) in the process that made the dataset, which would be
the chief's for all workers. Here the op that calls Python has no device and names a function that each
worker has registered before its server started, so it runs where it is used. A worker gets what it needs to
read from the chief, without the user's functions. It comes past storage: it is unpickled, and the URIs in it
may hold credentials.
"""

from __future__ import annotations

import functools
import hashlib
import pickle
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from raydist import tf_private
from raydist.data.shared import Parcels
from raydist.errors import ClusterError, DataError, StorageError
from raydist.planning.assignment import TaskAssignment

if TYPE_CHECKING:
    from raydist.data import Batches
    from raydist.data.pipeline import BlockReader, ReadOp

# Each may hold two windows. A fit has one for training and one for validation; those of earlier ones go.
_MAX_READERS = 4
_FUNCTION = "raydist_read_block"


class SharedSources:
    """What the chief has its workers read."""

    def __init__(self, parcels: Parcels) -> None:
        self._parcels = parcels
        self._published: set[str] = set()

    def publish(self, recipe: Batches) -> ReadOp:
        """Leaves what workers need to read `recipe`, and returns the op that reads it in any of them."""
        content = pickle.dumps(recipe.without_maps(), protocol=5)
        key = _key(content)
        if key not in self._published:
            self._parcels.put(key, content)
            self._published.add(key)

        def read(block: tf.Tensor, types: Sequence[tf.DType]) -> Sequence[tf.Tensor]:
            return tf_private.call_registered(_FUNCTION, [tf.constant(key), block], types)

        return read

    def serve(self) -> None:
        """Lets functions that peers run in this process read. Call it before the server starts."""
        tf_private.register(_FUNCTION, _Readers(self._parcels))


def load(parcels: Parcels, key: str) -> Any:
    """Returns the recipe that the chief published under `key`.

    Raises:
      ClusterError: What came is not what the chief left; it is not unpickled.
    """
    content = parcels.get(key)
    if _key(content) != key:
        raise ClusterError(f"what the chief published as {key[:12]} came back changed; resume the run")
    return pickle.loads(content)


def _key(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class _Readers:
    """What the op calls: one reader for each recipe."""

    def __init__(self, parcels: Parcels) -> None:
        self._parcels = parcels
        self._reader_of = functools.lru_cache(_MAX_READERS)(self._make_reader)

    def __call__(self, key: bytes, block: Any) -> list[Any]:
        try:
            return self._reader_of(key)(block)
        except (DataError, StorageError) as error:
            # TensorFlow hands the chief 2 KB of the text, in which the traceback and the cause come first.
            raise error.with_traceback(None) from None

    def _make_reader(self, key: bytes) -> BlockReader:
        # Here, because a worker that comes back shall not wait for it.
        from raydist.data.pipeline import BlockReader, Part

        return BlockReader(load(self._parcels, key.decode()), Part(), pads=False)


def start_server(assignment: TaskAssignment) -> tf.distribute.Server:
    """Starts this task's server at its address, and returns it; it serves until the process ends.

    It cannot be stopped (tensorflow-notes.md#servers), so it needs a process of its own.

    Raises:
      ClusterError: The port is taken.
    """
    if assignment.job.log_device_placement:
        tf.debugging.set_log_device_placement(True)
    SharedSources(assignment.parcels).serve()
    task, num_peers = assignment.task, assignment.num_slots + assignment.num_ps + 1
    try:
        return tf.distribute.Server(
            # The chief tells it of the others, which may come and go.
            tf.train.ClusterSpec({task.task_type.value: {task.index: assignment.address}}),
            job_name=task.task_type.value,
            task_index=task.index,
            protocol="grpc",
            # A function that a peer calls here holds a thread while it waits for that peer; TensorFlow's
            # tutorial asks for one more than there are workers.
            config=tf.compat.v1.ConfigProto(inter_op_parallelism_threads=num_peers + 1),
        )
    except tf.errors.OpError as error:
        raise ClusterError(
            f"{assignment.task} cannot start TensorFlow's server at {assignment.address}: {error.message}"
        ) from error
