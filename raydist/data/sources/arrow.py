"""Tables of Arrow as examples: which columns make up an example, and sources whose groups are tables."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from raydist.data.examples import Field
from raydist.data.order.windows import Piece
from raydist.data.sources.columns import Column, Selection, type_of, width_of
from raydist.data.sources.source import GroupedSource
from raydist.errors import DataError
from raydist.spec.text import suggest

# What is transposed at once: it stays in the cache, and yet the interpreter is seldom needed.
_BLOCK_BYTES = 2e6
# Between columns of a block: at a distance of a power of two one would drive the other out of the cache.
_PADDING_BYTES = 128


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Which columns go into which field.

    Attributes:
      groups: The columns of each field; several are stacked to one tensor.
      structure: Of the fields.
      dtype: Of stacked columns.
    """

    groups: tuple[tuple[Column, ...], ...]
    is_stacked: tuple[bool, ...]
    structure: Any
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, schema: pa.Schema, selection: Selection, *, where: str) -> Layout:
        """Returns the layout of what is chosen of tables; raises DataError for what cannot be."""
        columns, label = _chosen(schema, selection, where=where), selection.label
        is_stacked, dtype = selection.features is not None, selection.stacked_type()
        inputs = tuple(column for column in columns if column.name != label)
        labels = tuple(column for column in columns if column.name == label)
        if is_stacked:
            is_one_list = len(inputs) == 1 and inputs[0].is_list
            if is_one_list and inputs[0].ragged is not None:
                inputs = (dataclasses.replace(inputs[0], ragged=dtype),)
            for column in inputs:
                if column.dtype.kind == "O" or (column.is_list and not is_one_list):
                    raise DataError(
                        f"column {column.name} is {column.type} and cannot be stacked with others to one "
                        "tensor; give columns=[…] for a dict of tensors"
                    )
            groups: list[tuple[Column, ...]] = [inputs]
            structure: Any = 0
        else:
            inputs = tuple(sorted(inputs, key=lambda column: column.name))
            groups = [(column,) for column in inputs]
            structure = {column.name: number for number, column in enumerate(inputs)}
        stacked = [is_stacked] + [False] * (len(groups) - 1)
        if labels:
            structure = (structure, len(groups))
            groups.append(labels)
            stacked.append(False)
        return cls(groups=tuple(groups), is_stacked=tuple(stacked), structure=structure, dtype=dtype)

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(column for group in self.groups for column in group)

    @property
    def texts(self) -> tuple[str, ...]:
        """The names of the columns of text or bytes, and of ragged ones, which are kept as bytes."""
        columns = self.columns
        return tuple(one.name for one in columns if one.dtype.kind == "O" or one.ragged is not None)

    @property
    def ragged(self) -> tuple[np.dtype[Any] | None, ...]:
        """The types of ragged fields; None for others."""
        return tuple(group[0].ragged for group in self.groups)

    def fields(self, widths: Mapping[str, int]) -> tuple[Field, ...]:
        return tuple(
            Field("features", (len(group),) if len(group) > 1 else group[0].shape(widths) or (1,), self.dtype)
            if is_stacked and ragged is None
            else Field(group[0].name, group[0].shape(widths), np.dtype(object) if ragged else group[0].dtype)
            for group, is_stacked, ragged in zip(self.groups, self.is_stacked, self.ragged, strict=True)
        )

    def fill(
        self, arrays: Sequence[np.ndarray], table: pa.Table, *, widths: Mapping[str, int], where: str
    ) -> None:
        """Writes a table's rows into one array `[rows, ...]` for each field."""
        for array, group, is_stacked in zip(arrays, self.groups, self.is_stacked, strict=True):
            parts = [
                column.values(table.column(column.name), shape=column.shape(widths), where=where)
                for column in group
            ]
            if is_stacked and not group[0].is_list:
                _stack([_joined(chunks) for chunks in parts], array)
            else:
                at = 0
                for chunk in parts[0]:
                    array[at : at + len(chunk)] = chunk
                    at += len(chunk)


def _chosen(schema: pa.Schema, selection: Selection, *, where: str) -> list[Column]:
    """Returns the columns that are read; raises DataError for one that is missing or no tensor's."""
    wanted, label = selection.wanted, selection.label
    names = [name for name in schema.names if name != label] if wanted is None else list(wanted)
    if isinstance(wanted, str) or not names:
        raise DataError(f"{where}: features and columns are lists of names, and not empty; got {wanted!r}")
    if len(set(names)) < len(names):
        raise DataError(f"{where}: a column is named twice in {names}")
    if label is not None and wanted is not None and label in names:
        raise DataError(f"{where}: column {label} is the label, and named among {names} too; name it once")
    if label is not None:
        names.append(label)
    for option in ("defaults", "ragged", "padded_shapes"):
        for name in getattr(selection, option):
            if name not in names:
                raise DataError(f"{option} names column {name}, which is not read; {suggest(name, names)}")
    return [Column.of(name, type_of(name, schema, where), selection, where=where) for name in names]


def _ragged_tensor(rows: Any, dtype: np.dtype[Any]) -> Any:
    """Returns a RaggedTensor of rows of bytes. Runs in a TensorFlow graph."""
    import tensorflow as tf

    # TensorFlow decodes no unsigned numbers of four or eight bytes.
    decoded = tf.io.decode_raw(
        tf.strings.reduce_join(rows), f"int{dtype.itemsize * 8}" if dtype.kind == "u" else dtype
    )
    flat = tf.bitcast(decoded, dtype) if dtype.kind == "u" else decoded
    lengths = tf.cast(tf.strings.length(rows), tf.int64) // dtype.itemsize
    return tf.RaggedTensor.from_row_lengths(flat, lengths, validate=False)


def _joined(chunks: Sequence[np.ndarray]) -> np.ndarray:
    return chunks[0] if len(chunks) == 1 else np.concatenate(chunks)


def _stack(values: Sequence[np.ndarray], out: np.ndarray) -> None:
    """Writes columns `[rows]` side by side into `[rows, columns]`.

    NumPy transposes a block in half of the time that it takes to write its columns one by one.
    """
    num_blocks = max(1, math.ceil(out.nbytes / _BLOCK_BYTES))
    size = max(1, -(-len(out) // num_blocks))
    block = np.empty((len(values), size + _PADDING_BYTES // out.itemsize), out.dtype)
    for first in range(0, len(out), size):
        end = min(first + size, len(out))
        for number, column in enumerate(values):
            block[number, : end - first] = column[first:end]
        out[first:end] = block[:, : end - first].T


class ArrowSource(GroupedSource):
    """A source whose groups are tables."""

    def __init__(self, layout: Layout, group_sizes: Sequence[int] | np.ndarray, *, text_bytes: int) -> None:
        """Takes what the tables hold, and reads the first one where the lengths of lists show only there.

        Args:
          group_sizes: At least one, and none of them 0.
          text_bytes: The size of a row's texts, estimated.
        """
        self._layout = layout
        self._text_bytes = text_bytes
        self.group_sizes = np.array(group_sizes, np.int64)
        self.structure = layout.structure
        self.decodes = any(layout.ragged)
        lists = [column for column in layout.columns if column.needs_width]
        first = self._table(0, [column.name for column in lists]) if lists else None
        self._widths = {column.name: width_of(column, first) for column in lists}
        self.fields: tuple[Field, ...] = layout.fields(self._widths)
        self.options = f"{layout} {self._widths}"

    @abc.abstractmethod
    def _table(self, group: int, names: Sequence[str]) -> pa.Table:
        """Returns the rows of a group, with these columns at least. Raises DataError."""

    @abc.abstractmethod
    def _where(self, group: int) -> str:
        """Returns what errors call a group."""

    @property
    def num_bytes(self) -> int:
        return super().num_bytes + self._text_bytes

    def decode(self, values: Sequence[Any]) -> Any:
        parts = zip(values, self._layout.ragged, strict=True)
        return super().decode([one if dtype is None else _ragged_tensor(one, dtype) for one, dtype in parts])

    def read_into(self, arrays: Sequence[np.ndarray], piece: Piece) -> None:
        table = self._table(piece.group, [column.name for column in self._layout.columns])
        rows = table.slice(piece.first, piece.num_rows)
        self._layout.fill(arrays, rows, widths=self._widths, where=self._where(piece.group))
