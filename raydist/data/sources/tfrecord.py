"""from_tfrecord: TFRecord files, whose records are found by an index that is built once."""

from __future__ import annotations

import itertools
import struct
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from isal import isal_zlib

from raydist.data.examples import Field
from raydist.data.failures import asserted
from raydist.data.order.windows import Piece
from raydist.data.sources.files import DataFiles, Uris
from raydist.data.sources.index import GROUP_BYTES, GROUP_ROWS, INDEX_THREADS, READ_BYTES, index_of
from raydist.data.sources.source import GroupedSource
from raydist.errors import DataError

# A record: its length (uint64), a checksum of that (uint32), the content, and a checksum of it (uint32);
# tensorflow/core/lib/io/record_writer.h.
_HEADER = struct.Struct("<QI")
_FOOTER_BYTES = 4


class TFRecordSource(GroupedSource):
    """The records of TFRecord files, parsed by TensorFlow.

    A record's place is its first byte in all files laid end to end.
    """

    files: DataFiles
    decodes = True
    structure = 0
    fields = (Field("record", (), np.dtype(object)), Field("place", (), np.dtype(np.int64)))

    def __init__(self, uris: Uris, *, parse: Callable[[Any], Any] | None) -> None:
        self.files = DataFiles(uris, what="from_tfrecord")
        self._parse = parse
        self._signature: Any = None
        found = self.files.of_each(
            "records",
            lambda number: index_of(self.files, number, "tfrecord-groups", _scan),
            num_threads=INDEX_THREADS if self.files.are_remote else 1,
            part_files=1,
        )
        # Of each group: its file, and where it begins and ends there. Where its records begin shows when it
        # is read: there may be billions of them.
        self._file_of = np.repeat(np.arange(len(found), dtype=np.int32), [len(index) - 1 for index in found])
        self._begins = np.concatenate([index[:-1, 0] for index in found])
        self._ends = np.concatenate([index[1:, 0] for index in found])
        self.group_sizes = np.concatenate([np.diff(index[:, 1]) for index in found])
        self._checksums = np.concatenate([index[1:, 2] for index in found])
        if not len(self.group_sizes):
            raise DataError(f"from_tfrecord found no records in {self.files.uri(0)}")
        self._file_ends = np.cumsum([index[-1, 0] for index in found])
        self._num_bytes = max(1, int(self._file_ends[-1] // self.group_sizes.sum()))

    def __getstate__(self) -> dict[str, Any]:
        # Parsing is part of the graph, and the user's function may be one that cannot be sent.
        return {**self.__dict__, "_parse": None, "_signature": None}

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    @property
    def file_of_group(self) -> np.ndarray:
        """The number of each group's file, int32 `[groups]`."""
        return self._file_of

    def fingerprint(self) -> int:
        return self.files.fingerprint()

    def read_into(self, arrays: Sequence[np.ndarray], piece: Piece) -> None:
        records, places = arrays
        records[:], places[:] = self._records(piece)

    def decode(self, values: Sequence[Any]) -> Any:
        import tensorflow as tf

        records, places = values
        if self._parse is None:
            return records
        if self._signature is None:
            traced = tf.function(self._parse).get_concrete_function(tf.TensorSpec([], tf.string))
            self._signature = tf.nest.map_structure(_spec_of, traced.structured_outputs)
        signature = self._signature
        # A tf.function, so that autograph reads it, as in `tf.data.Dataset.map`.
        parse = tf.function(self._parse)
        if all(spec.shape.is_fully_defined() for spec in tf.nest.flatten(signature)):
            return tf.map_fn(parse, records, fn_output_signature=signature)

        def parsed() -> Any:
            shapes = [tf.shape(value) for value in tf.nest.flatten(parse(records[0]))]

            def one(record_and_place: Any) -> Any:
                record, place = record_and_place
                return self._of_shapes(parse(record), shapes, place)

            return tf.map_fn(one, (records, places), fn_output_signature=signature)

        # A part without examples, of which map_fn would have to know the shape.
        is_empty = tf.equal(tf.size(records), 0)
        return tf.cond(is_empty, lambda: tf.nest.map_structure(_empty, signature), parsed)

    def _of_shapes(self, parsed: Any, shapes: Sequence[Any], place: Any) -> Any:
        """Returns what became of a record; in the graph a DataError where a shape is not the one given."""
        import tensorflow as tf

        values = tf.nest.flatten(parsed)
        checks = []
        for value, shape in zip(values, shapes, strict=True):
            if not value.shape.is_fully_defined():
                checks.append(self._shape_check(tf.shape(value), shape, place))
        with tf.control_dependencies(checks):
            return tf.nest.pack_sequence_as(parsed, [tf.identity(value) for value in values])

    def _shape_check(self, shape: Any, first: Any, place: Any) -> Any:
        import tensorflow as tf

        # Of another rank they are unequal, or of a size that is stretched to the other one's.
        is_equal = tf.raw_ops.Equal(x=shape, y=first, incompatible_shape_error=False)
        is_alike = tf.logical_and(tf.equal(tf.size(shape), tf.size(first)), tf.reduce_all(is_equal))

        def refuse() -> Any:
            number = tf.searchsorted(self._file_ends, [place], side="right")[0]
            begin = tf.gather(np.concatenate([[0], self._file_ends[:-1]]), number)
            uri = tf.gather([self.files.uri(number) for number in range(len(self.files))], number)
            record = tf.strings.format("byte {} of ", place - begin)
            shapes = tf.strings.format("{}, and not {} as another one of its batch", (shape, first))
            told = [asserted("parse makes of the record at "), record, uri, " a tensor of the shape ", shapes]
            message = tf.strings.join([*told, "; give all one shape in parse, by padding or cutting"])
            with tf.control_dependencies([tf.Assert(is_alike, [message])]):
                return tf.identity(is_alike)

        return tf.cond(is_alike, lambda: is_alike, refuse)

    def _records(self, piece: Piece) -> tuple[list[bytes], np.ndarray]:
        """Returns the records of a piece, and the places of their first bytes in all files."""
        number = int(self._file_of[piece.group])
        begin, end = int(self._begins[piece.group]), int(self._ends[piece.group])
        content = self.files.content(number, begin, end)
        starts, at = [0], 0
        for _ in range(self.group_sizes[piece.group]):
            if len(content) < at + _HEADER.size:
                break
            at += _HEADER.unpack_from(content, at)[0] + _HEADER.size + _FOOTER_BYTES
            starts.append(at)
        if not at == len(content) == end - begin or _checksum(starts) != self._checksums[piece.group]:
            raise DataError(
                f"a record from byte {begin} to {end} of {self.files.uri(number)} is not where it was; the "
                "file changed, or was cut off"
            )
        wanted = starts[piece.first : piece.end + 1]
        records = [
            content[start + _HEADER.size : stop - _FOOTER_BYTES] for start, stop in itertools.pairwise(wanted)
        ]
        before = int(self._file_ends[number]) - self.files.size(number) + begin
        return records, np.array(wanted[:-1], np.int64) + before


def from_tfrecord(uri: Uris, *, parse: Callable[[Any], Any] | None = None) -> TFRecordSource:
    """Returns a source of the records of TFRecord files.

    Example:
        source = raydist.data.from_tfrecord("s3://bucket/train", parse=parse_example)

    The first time that a host sees a file, the places of its records are looked up and kept below
    `RAYDIST_CACHE` (default `~/.cache/raydist`). The checksums of the records are not looked at. A window
    of `batches(window_mb=…)` is counted in records of the mean size, over all files.

    Args:
      uri: A file, or a folder of which all files are read, or several of these; text or `pathlib.Path`.
      parse: Turns one record (scalar `tf.string`) into a structure of tensors, as with
        `tf.data.Dataset.map`; None leaves the bytes. All records have to become tensors of one shape.

    Raises:
      DataError: No files, or one that holds no TFRecords; names it.
    """
    return TFRecordSource(uri, parse=parse)


def _scan(files: DataFiles, number: int) -> np.ndarray:
    """Returns where the groups of a file, which are read at once, begin, int64 `[groups + 1, 3]`.

    A row has the first byte and the first record of a group, and a checksum of where the records of the group
    before begin. The last row is the end of the file.
    """
    size, uri = files.size(number), files.uri(number)
    index, at, record = [(0, 0, 0)], 0, 0
    starts = [0]  # in the group
    begin, content = 0, b""

    def close() -> None:
        nonlocal starts
        index.append((at, record, _checksum(starts)))
        starts = [0]

    while at < size:
        if not begin <= at <= begin + len(content) - _HEADER.size:
            begin, content = at, files.content(number, at, at + READ_BYTES)
        if len(content) < at - begin + _HEADER.size:
            raise DataError(_no_record(uri, at))
        length, _ = _HEADER.unpack_from(content, at - begin)
        end = at + _HEADER.size + length + _FOOTER_BYTES
        if end > size:
            raise DataError(_no_record(uri, at))
        num_records = len(starts) - 1
        if num_records and (end - index[-1][0] > GROUP_BYTES or num_records == GROUP_ROWS):
            close()
        at, record = end, record + 1
        starts.append(at - index[-1][0])
    if record:
        close()
    return np.array(index, np.int64)


def _checksum(starts: list[int]) -> int:
    return int(isal_zlib.crc32(array("q", starts)))


def _no_record(uri: str, at: int) -> str:
    if at:
        return f"{uri} is cut off, or damaged: the record at byte {at} does not end in it; write it again"
    return (
        f"{uri} does not begin with a TFRecord; is it one, and not compressed? Compressed files cannot be "
        "read from the middle: write them without, or as Parquet"
    )


def _empty(spec: Any) -> Any:
    import tensorflow as tf

    shape = [] if spec.shape.rank is None else [size or 0 for size in spec.shape]
    return tf.zeros([0, *shape], spec.dtype)


def _spec_of(value: Any) -> Any:
    import tensorflow as tf

    if isinstance(value, tf.Tensor | tf.TensorSpec):
        return tf.TensorSpec(value.shape, value.dtype)
    kind = type(value).__name__.removesuffix("Spec")
    told = f" of {value.dtype.name} {value.shape}" if hasattr(value, "dtype") else ""
    raise DataError(
        f"parse of from_tfrecord returns a {kind}{told}; return tensors of one shape for all records, as "
        "tf.sparse.to_dense or to_tensor(shape=…) make them, padded or cut"
    )
