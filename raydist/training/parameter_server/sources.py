"""raydist.data under ParameterServer: the chief names a step, and the worker reads it in its own process.

TensorFlow runs a Python source (`numpy_function`) in the process that made the data set, which would be
the chief's for all workers. Here the op that calls Python has no device and names a function that each
worker has registered before its server started, so it runs where it is used. A worker learns what to
read from a file in the run's folder, which holds the source without the user's functions.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from raydist.errors import DataError, StorageError
from raydist.storage.run_storage import RunStorage
from raydist.training import tf_private

if TYPE_CHECKING:
    from raydist.data import Batches
    from raydist.data.pipeline import BlockReader, ReadOp

# Each may hold two windows. A fit has one for training and one for validation; those of earlier ones go.
_MAX_READERS = 4
_FUNCTION = "raydist_read_block"


class SourceFolder:
    """The run's sources/ on storage."""

    def __init__(self, storage: RunStorage) -> None:
        self._storage = storage

    def publish(self, recipe: Batches) -> ReadOp:
        """Stores what workers need to read `recipe`, and returns the op that reads it in any of them."""
        content = pickle.dumps(recipe.without_maps(), protocol=5)
        key = hashlib.sha256(content).hexdigest()
        path = self._storage.source(key)
        if not self._storage.exists(path):
            self._storage.write_bytes(path, content)

        def read(block: tf.Tensor, types: Sequence[tf.DType]) -> Sequence[tf.Tensor]:
            return tf_private.call_registered(_FUNCTION, [tf.constant(key), block], types)

        return read

    def serve(self) -> None:
        """Lets functions that peers run in this process read. Call it before the server starts."""
        tf_private.register(_FUNCTION, _Readers(self._storage))


class _Readers:
    """What the op calls: one reader for each recipe."""

    def __init__(self, storage: RunStorage) -> None:
        self._storage = storage
        self._readers: dict[bytes, BlockReader] = {}

    def __call__(self, key: bytes, block: Any) -> list[Any]:
        try:
            reader = self._readers.get(key)
            if reader is None:
                reader = self._reader(key.decode())
                while len(self._readers) >= _MAX_READERS:
                    self._readers.pop(next(iter(self._readers)), None)
                self._readers[key] = reader
            return reader(block)
        except (DataError, StorageError) as error:
            # TensorFlow hands the chief 2 KB of the text, in which the traceback and the cause come first.
            raise error.with_traceback(None) from None

    def _reader(self, key: str) -> BlockReader:
        # Here, because a worker that comes back shall not wait for it.
        from raydist.data.pipeline import BlockReader, Part

        recipe = pickle.loads(self._storage.read_bytes(self._storage.source(key)))
        return BlockReader(recipe, Part(), pads=False)
