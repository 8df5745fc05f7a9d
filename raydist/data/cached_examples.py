"""Examples that are read, and decoded, once on a host: their order is that of the source."""

from __future__ import annotations

import hashlib
import itertools
import logging
import math
import re
import threading
import uuid
import weakref
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from raydist import op_types
from raydist.data.examples import Examples, Field
from raydist.data.order.windows import Piece
from raydist.data.record_cache import RecordCache
from raydist.errors import DataError

logger = logging.getLogger(__name__)

Where = Literal["disk", "memory"]
_VERSION = 1  # of what a record holds
_FUNCTION = "raydist_cached_examples"


class Place(NamedTuple):
    """Where examples are kept; see `Batches.cached`."""

    where: Where
    max_bytes: float
    version: str


class CachedExamples(Examples):
    """Examples of which each group is read once, and kept as the source reads it."""

    def __init__(self, source: Examples, place: Place, decoding: str = "") -> None:
        """Takes the source, which has files.

        Args:
          decoding: What `decode` does to an example that is kept decoded.
        """
        assert source.files is not None
        self.source = source
        self.fields = source.fields
        self.structure = source.structure
        self.group_sizes = source.group_sizes
        self.files = source.files
        self.class_names = source.class_names
        self.most_at_once = source.most_at_once
        self.decodes = source.decodes
        self._place = place
        self._num_records = len(source) if decoding or source.group_sizes is None else len(source.group_sizes)
        told = (
            *(_VERSION, type(source).__name__, source.options, source.fields, source.structure),
            *(self._num_records, source.files.identity(), decoding, place.version),
        )
        self._key = hashlib.sha256(repr(told).encode()).hexdigest()
        self._set_up()

    def _set_up(self) -> None:
        self._lock = threading.Lock()
        self._opened: RecordCache | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lock": None, "_opened": None}  # elsewhere it is that host's

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._set_up()

    def __len__(self) -> int:
        return len(self.source)

    def fingerprint(self) -> int:
        return self.source.fingerprint()

    @property
    def num_bytes(self) -> int:
        return self.source.num_bytes

    def decode(self, values: Sequence[Any]) -> Any:
        return self.source.decode(values)

    @property
    def _records(self) -> RecordCache:
        with self._lock:
            if self._opened is None:
                where, max_bytes, _ = self._place
                try:
                    if where == "memory":
                        self._opened = RecordCache.in_memory(self._num_records, max_bytes=max_bytes)
                    else:
                        self._opened = RecordCache.on_disk(self._key, self._num_records, max_bytes=max_bytes)
                except OSError as error:
                    logger.warning("examples are not cached: %s", error)
                    self._opened = RecordCache.in_memory(self._num_records, max_bytes=0)
                    self._opened.is_full = True
            return self._opened

    def read_into(self, arrays: Sequence[np.ndarray], piece: Piece) -> None:
        assert self.group_sizes is not None
        size, records = int(self.group_sizes[piece.group]), self._records
        if (record := records.get(piece.group)) is not None:
            group = _unpacked(record, self.fields, size)
        elif records.is_full:
            return self.source.read_into(arrays, piece)
        else:
            group = self.source.read([Piece(piece.group, 0, size)])
            records.put([piece.group], [_packed(group)])
        for array, whole in zip(arrays, group, strict=True):
            array[:] = whole[piece.first : piece.end]


class DecodedExamples(CachedExamples):
    """Examples of which each is decoded once, and kept so.

    What the reader passes on of an example is its number and, unless it is kept already, what the source
    reads. The operation that decodes batches then takes what is kept, and decodes and keeps the rest.
    """

    # By name, for the operation; those that came from another process are held, as it may have let them go.
    _instances: ClassVar[weakref.WeakValueDictionary[str, DecodedExamples]] = weakref.WeakValueDictionary()
    _received: ClassVar[dict[str, DecodedExamples]] = {}

    def __init__(self, source: Examples, place: Place, decoding: str, spec: Any) -> None:
        import tensorflow as tf

        self._name = uuid.uuid4().hex
        self._spec = spec
        self._kept_fields = [
            Field(str(number), tuple(one.shape[1:]), np.dtype(one.dtype.as_numpy_dtype))
            for number, one in enumerate(tf.nest.flatten(spec))
        ]
        super().__init__(source, place, decoding)
        self.fields = (
            *(Field("number", (), np.dtype(np.int64)), Field("is_read", (), np.dtype(bool))),
            *source.fields,
        )
        sizes = source.group_sizes
        self._firsts = None if sizes is None else np.cumsum(sizes) - sizes

    def _set_up(self) -> None:
        from raydist import tf_private

        super()._set_up()
        self._instances.setdefault(self._name, self)
        tf_private.register(_FUNCTION, _call)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._received.setdefault(self._name, self)

    def take(self, rows: np.ndarray) -> list[np.ndarray]:
        is_read = ~self._records.has(rows)
        raw = [field.blank(len(rows)) for field in self.source.fields]
        if is_read.any():
            for array, found in zip(raw, self.source.take(rows[is_read]), strict=True):
                array[is_read] = found
        return [rows, is_read, *raw]

    def read_into(self, arrays: Sequence[np.ndarray], piece: Piece) -> None:
        assert self._firsts is not None
        numbers, is_read, *raw = arrays
        numbers[:] = self._firsts[piece.group] + np.arange(piece.first, piece.end)
        is_read[:] = not self._records.has(numbers).all()
        if is_read.any():
            self.source.read_into(raw, piece)
        else:
            for array, field in zip(raw, self.source.fields, strict=True):
                array[:] = field.blank(len(array))

    def decode(self, values: Sequence[Any]) -> Any:
        import tensorflow as tf

        numbers, is_read, *raw = values
        types = [one.dtype for one in tf.nest.flatten(self._spec)]
        is_kept, *kept = self._called("load", [numbers], [tf.bool, *types])
        missing = tf.where(tf.logical_not(tf.ensure_shape(is_kept, [None])))

        def filled() -> list[Any]:
            own, is_own_read, *read = (tf.gather_nd(one, missing) for one in (numbers, is_read, *raw))

            def again() -> Sequence[Any]:
                return self._called("read_again", [own, is_own_read, *read], [one.dtype for one in raw])

            whole = zip(
                tf.cond(tf.reduce_all(is_own_read), lambda: read, again), self.source.fields, strict=True
            )
            decoded = tf.nest.flatten(
                self.source.decode([tf.ensure_shape(one, [None, *field.shape]) for one, field in whole])
            )
            with tf.control_dependencies(self._called("store", [own, *decoded], [tf.bool])):
                return [
                    tf.tensor_scatter_nd_update(all_, missing, some)
                    for all_, some in zip(kept, decoded, strict=True)
                ]

        batch = [
            tf.ensure_shape(one, [numbers.shape[0], *field.shape])
            for one, field in zip(
                tf.cond(tf.size(missing) > 0, filled, lambda: kept), self._kept_fields, strict=True
            )
        ]
        return tf.nest.pack_sequence_as(self._spec, batch)

    def _called(self, method: str, inputs: Sequence[Any], types: Sequence[Any]) -> Sequence[Any]:
        """Returns what a method of this class returns in the process that runs the graph."""
        import tensorflow as tf

        from raydist import tf_private

        given = [tf.constant(self._name), tf.constant(method), *inputs]
        return tf_private.call_registered(_FUNCTION, given, types)

    def load(self, numbers: np.ndarray) -> list[np.ndarray]:
        """Returns which examples are kept, bool `[n]`, and these; the others are empty."""
        is_kept = np.zeros(len(numbers), bool)
        arrays = [field.blank(len(numbers)) for field in self._kept_fields]
        for row, number in enumerate(numbers.tolist()):
            if (record := self._records.get(number)) is not None:
                is_kept[row] = True
                for array, value in zip(arrays, _unpacked(record, self._kept_fields, 1), strict=True):
                    array[row] = value[0]
        return [is_kept, *arrays]

    def read_again(self, numbers: np.ndarray, is_read: np.ndarray, *raw: np.ndarray) -> list[np.ndarray]:
        """Returns what the source reads of these examples, some of which were not read: they were kept.

        What was kept then, and is not now, is damaged.
        """
        rows = np.flatnonzero(~is_read)
        if self._firsts is None:
            found = self.source.take(numbers[rows])
        else:
            groups = np.searchsorted(self._firsts, numbers[rows], side="right") - 1
            places = (numbers[rows] - self._firsts[groups]).tolist()
            found = self.source.read(
                [Piece(group, at, at + 1) for group, at in zip(groups.tolist(), places, strict=True)]
            )
        arrays = [array.copy() for array in raw]
        for array, values in zip(arrays, found, strict=True):
            array[rows] = values
        return arrays

    def store(self, numbers: np.ndarray, *arrays: np.ndarray) -> list[np.ndarray]:
        """Keeps decoded examples, one array `[n, ...]` for each tensor."""
        if not (records := self._records).is_full:
            rows = range(len(numbers))
            records.put(numbers.tolist(), [_packed([one[row : row + 1] for one in arrays]) for row in rows])
        return [np.array(True)]


def cached(source: Examples, place: Place) -> Examples:
    """Returns a source whose examples are kept once they were read; the source if it is in memory.

    Raises:
      DataError: What it does to decode an example cannot be told from its graph, or gives tensors of several
        shapes.
    """
    if source.files is None or isinstance(source, CachedExamples):
        return source
    if not source.decodes:
        return CachedExamples(source, place)
    import tensorflow as tf

    with tf.init_scope():
        specs = [
            tf.TensorSpec([None, *field.shape], tf.string if field.dtype.kind == "O" else field.dtype)
            for field in source.fields
        ]
        function = tf.function(lambda *values: source.decode(values), autograph=False)
        traced = function.get_concrete_function(*specs)
    outputs = tf.nest.flatten(traced.structured_outputs)
    if not all(isinstance(one, tf.Tensor | tf.TensorSpec) for one in outputs):
        return CachedExamples(source, place)  # ragged: what was read is cheap to decode
    for one in outputs:
        if not one.shape[1:].is_fully_defined():
            raise DataError(
                f"cached() got examples of the shape {one.shape[1:]}; give all one shape in parse, by "
                "tf.ensure_shape, padding or cutting"
            )
    decoding, unknown = _described(traced)
    if unknown and not place.version:
        raise DataError(
            f"cached() cannot know when the function that decodes an example changes: it has {unknown}, "
            "which runs Python, or depends on more than the example; draw random numbers in map, or give "
            'cached(version="1") and another text with each change'
        )
    spec = tf.nest.map_structure(
        lambda one: tf.TensorSpec([None, *one.shape[1:]], one.dtype), traced.structured_outputs
    )
    return DecodedExamples(source, place, f"TensorFlow {tf.__version__} {decoding}", spec)


def _described(traced: Any) -> tuple[str, str | None]:
    """Returns a text of what a function computes, alike in all processes, and an operation with a state."""
    from raydist import tf_private

    graph = traced.graph.as_graph_def()
    functions = {one.signature.name: one for one in graph.library.function}
    nodes = [*graph.node, *(node for one in functions.values() for node in one.node_def)]
    unknown = {op for node in nodes if tf_private.has_state(op := node.op)} - op_types.OF_INPUTS
    for node in nodes:
        # These name the task.
        node.device = ""
        if "config_proto" in node.attr:
            del node.attr["config_proto"]
    given = [one for one in traced.captured_inputs if one.dtype.is_numpy_compatible]
    if len(given) < len(traced.captured_inputs):
        unknown.add("a table or a variable")
    texts = [repr([one.numpy().tolist() for one in given])]
    # Names of functions, also as parts of others, end in numbers that a process counts: they are numbered as
    # they are met.
    names = re.compile("|".join(map(re.escape, sorted(functions, key=len, reverse=True))) or "$^")
    numbered: dict[str, int] = {}
    waiting = ["".join(map(str, graph.node))]
    while waiting:
        text = waiting.pop(0)
        for name in names.findall(text):
            if name not in numbered:
                numbered[name] = len(numbered)
                waiting.append(str(functions[name]))
        texts.append(names.sub(lambda match: f"<{numbered[match[0]]}>", text))
    # A process counts the functions of Python too.
    return re.sub(r'"pyfunc_\d+"', "", "".join(texts)), min(unknown, default=None)


def _call(name: bytes, method: bytes, *arrays: np.ndarray) -> list[np.ndarray]:
    """What the operation runs."""
    found = DecodedExamples._instances[name.decode()]
    called: list[np.ndarray] = getattr(found, method.decode())(*arrays)
    return called


def _packed(arrays: Sequence[np.ndarray]) -> bytes:
    """Returns arrays as bytes; of texts first their lengths."""
    parts: list[bytes] = []
    for array in arrays:
        if array.dtype.kind == "O":
            texts = [one.encode() if isinstance(one, str) else bytes(one) for one in array.reshape(-1)]
            parts += [np.array([*map(len, texts)], np.int64).tobytes(), *texts]
        else:
            parts.append(array.tobytes())
    return b"".join(parts)


def _unpacked(record: bytes, fields: Sequence[Field], num_examples: int) -> list[np.ndarray]:
    arrays, at = [], 0
    for field in fields:
        shape = (num_examples, *field.shape)
        if field.dtype.kind == "O":
            lengths = np.ndarray(math.prod(shape), np.int64, record, at)
            at += lengths.nbytes
            ends = [at, *(at + np.cumsum(lengths)).tolist()]
            array = np.empty(len(lengths), object)
            array[:] = [record[first:end] for first, end in itertools.pairwise(ends)]
            arrays.append(array.reshape(shape))
            at = ends[-1]
        else:
            arrays.append(np.ndarray(shape, field.dtype, record, at))
            at += arrays[-1].nbytes
    return arrays
