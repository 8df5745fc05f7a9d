"""Columns of Arrow's tables: which are read, and how their values become arrays for tensors."""

from __future__ import annotations

import dataclasses
import itertools
import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydist.errors import DataError
from raydist.spec.text import suggest


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What the user chose of a table; see `from_parquet`.

    Attributes:
      what: The function that was given it, as errors name it.
      dtype: Of the stacked features; anything that NumPy makes a type of.
      defaults: What stands in for nulls, by column.
      ragged, padded_shapes, padding_values: Of columns whose lists differ in length.
    """

    what: str
    features: Sequence[str] | None
    label: str | None
    columns: Sequence[str] | None
    dtype: Any
    defaults: Mapping[str, Any]
    ragged: Sequence[str] = ()
    padded_shapes: Mapping[str, Any] = field(default_factory=dict)
    padding_values: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.features is not None and self.columns is not None:
            raise DataError(
                f"{self.what} got features and columns; give features for one tensor, or columns for a dict"
            )
        for option in ("defaults", "padded_shapes", "padding_values"):
            if not isinstance(value := getattr(self, option), Mapping):
                raise DataError(f"{option} is {value!r}; give a dict by column, such as {{'age': 0}}")
        if isinstance(self.ragged, str):
            raise DataError(f"ragged is {self.ragged!r}; give a list of names")
        for name in self.padded_shapes:
            if name in self.ragged:
                raise DataError(f"column {name} is named in ragged and in padded_shapes; name it in one")
        for name in self.padding_values:
            if name not in self.padded_shapes:
                raise DataError(
                    f"padding_values names column {name}, which padded_shapes does not; give "
                    f"padded_shapes={{{name!r}: …}}, the length of its lists"
                )

    @property
    def wanted(self) -> Sequence[str] | None:
        """The columns that are named besides the label; None where all are wanted."""
        return self.columns if self.features is None else self.features

    def stacked_type(self) -> np.dtype[Any]:
        """Returns the type of stacked features; raises DataError for a type that is not numeric."""
        try:
            found: np.dtype[Any] = np.dtype(self.dtype)
        except TypeError:
            found = np.dtype(object)
        if found.kind not in "biuf":
            raise DataError(f"dtype is {self.dtype!r}; give a type of numbers, such as 'float32' or 'int64'")
        return found


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column that is read.

    Attributes:
      type: The Arrow type; of a dictionary column (pandas' categories) that of its values, of a tensor
        column (Arrow's own, and Ray Data's of NumPy arrays) that of the lists that it is stored as.
      tensor_shape: Of a tensor column's rows; None for others.
      default: An Arrow scalar of this type that stands in for nulls; None where a null is an error.
      ragged: Of the values of lists that differ in length; None for other columns.
      padded: The length to which lists are padded, and with what; None for other columns.
    """

    name: str
    type: pa.DataType
    tensor_shape: tuple[int, ...] | None = None
    default: Any = None
    ragged: np.dtype[Any] | None = None
    padded: tuple[int, Any] | None = None

    @classmethod
    def of(cls, name: str, kind: pa.DataType, selection: Selection, *, where: str) -> Column:
        """Returns the column; raises DataError if its type is not a tensor type, or its default not of it."""
        column = cls(name=name, type=_plain(kind), tensor_shape=_tensor_shape(kind))
        inner = column.type.value_type if column.is_list else column.type
        is_number = pa.types.is_integer(inner) or pa.types.is_floating(inner) or pa.types.is_boolean(inner)
        if not is_number and (column.is_list or not _is_text(inner)):
            raise DataError(
                f"column {name} of {where} is {kind}, which has no tensor type; name the other columns in "
                "columns=[…], or write it as numbers, booleans, text, bytes, or lists of numbers"
            )
        default, changed = selection.defaults.get(name), dict[str, Any]()
        if default is not None:
            changed["default"] = column._scalar("defaults", default, column.type)
        if name in selection.ragged or name in selection.padded_shapes:
            option = "ragged" if name in selection.ragged else "padded_shapes"
            if not column.is_list or len(column.tensor_shape or ()) > 1:
                raise DataError(f"{option} names column {name} of {where}, which is {kind}; name lists there")
            if option == "ragged":
                changed["ragged"] = column.dtype
            else:
                value = column._scalar("padding_values", selection.padding_values.get(name, 0), inner)
                changed["padded"] = _length(name, selection.padded_shapes[name]), value.as_py()
            changed["tensor_shape"] = None
        return dataclasses.replace(column, **changed)

    def _scalar(self, option: str, value: Any, kind: pa.DataType) -> pa.Scalar:
        try:
            scalar = pa.scalar(bool(value) if pa.types.is_boolean(kind) and value == 0 else value, kind)
            if pa.types.is_integer(kind) and scalar.as_py() != value:
                raise ValueError(value)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise DataError(
                f"{option} has {value!r} for column {self.name}, which is {self.type}; give one of that type"
            ) from error
        return scalar

    @property
    def is_list(self) -> bool:
        return pa.types.is_list(self.type) or pa.types.is_large_list(self.type) or self._is_fixed_list

    @property
    def needs_width(self) -> bool:
        """Whether the length of its lists shows only in the data."""
        is_fixed = self._is_fixed_list or self.tensor_shape is not None
        return self.is_list and not is_fixed and not self._takes_any_length

    @property
    def _takes_any_length(self) -> bool:
        return self.ragged is not None or self.padded is not None

    @property
    def _is_fixed_list(self) -> bool:
        return bool(pa.types.is_fixed_size_list(self.type))

    def shape(self, widths: Mapping[str, int]) -> tuple[int, ...]:
        if self.tensor_shape is not None:
            return self.tensor_shape
        if not self.is_list or self.ragged is not None:
            return ()
        if self.padded is not None:
            return (self.padded[0],)
        return (self.type.list_size if self._is_fixed_list else widths[self.name],)

    @property
    def dtype(self) -> np.dtype[Any]:
        kind = self.type.value_type if self.is_list else self.type
        if _is_text(kind):
            return np.dtype(object)
        dtype: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
        return dtype

    def check(self, schema: pa.Schema, *, where: str) -> None:
        """Raises DataError unless a schema has the column, with a type that makes the same tensors."""
        kind = type_of(self.name, schema, where)
        is_alike = (_tensor_type(kind), _tensor_shape(kind)) == (_tensor_type(self.type), self.tensor_shape)
        if self._takes_any_length and len(_tensor_shape(kind) or ()) < 2:
            # Ray Data has another type for a block whose arrays happen to be of one length.
            is_alike = getattr(_plain(kind), "value_type", None) == self.type.value_type
        if not is_alike:
            raise DataError(
                f"column {self.name} is {kind} in {where}, and {self.type} where the data begin; write all "
                "with one schema"
            )

    def refuse_nulls(self, count: int, *, where: str) -> NoReturn:
        raise DataError(
            f"column {self.name} has {count} {'null' if count == 1 else 'nulls'} in {where}; give "
            f"defaults={{{self.name!r}: …}}, or write the file without"
        )

    def values(self, column: pa.ChunkedArray, *, shape: tuple[int, ...], where: str) -> list[np.ndarray]:
        """Returns the values, one array for each chunk."""
        if pa.types.is_dictionary(column.type):
            column = column.cast(self.type)
        column = _stored(column)
        if column.null_count:
            if self.default is None:
                self.refuse_nulls(column.null_count, where=where)
            column = column.fill_null(self.default)
        return [self._array(chunk, shape, where) for chunk in column.chunks]

    def _array(self, chunk: pa.Array, shape: tuple[int, ...], where: str) -> np.ndarray:
        if not self.is_list:
            return np.asarray(chunk.to_numpy(zero_copy_only=False))
        values = chunk.flatten()
        if values.null_count:
            raise DataError(
                f"column {self.name} has nulls ({values.null_count}) inside of its lists in {where}; write "
                "numbers there"
            )
        lengths = pc.list_value_length(chunk).to_numpy(zero_copy_only=False)
        flat = np.asarray(values.to_numpy(zero_copy_only=False))
        if self.ragged is not None:
            return _rows_of_bytes(flat.astype(self.ragged), lengths)
        if self.padded is not None:
            return self._padded(flat, lengths, where)
        length = math.prod(shape)
        if (lengths != length).any():
            told = ", ".join(map(str, sorted({*lengths.tolist(), length})))
            raise DataError(
                f"column {self.name} has lists of {told} values in {where}; every row needs as many: give "
                f"ragged=[{self.name!r}], or padded_shapes={{{self.name!r}: …}}, the length to pad them to"
            )
        return flat.reshape(len(chunk), *shape)

    def _padded(self, flat: np.ndarray, lengths: np.ndarray, where: str) -> np.ndarray:
        assert self.padded is not None
        size, value = self.padded
        if len(lengths) and lengths.max() > size:
            raise DataError(
                f"column {self.name} has a list of {lengths.max()} values in {where}, more than its padded "
                f"shape {size}; give padded_shapes={{{self.name!r}: …}} the length of the longest one"
            )
        found = np.full((len(lengths), size), value, self.dtype)
        found[np.arange(size) < lengths[:, None]] = flat
        return found


def width_of(column: Column, table: pa.Table) -> int:
    """Returns the length of the lists of a column, which every row must share, by the first rows."""
    lengths = pc.list_value_length(_stored(table.column(column.name))).drop_null()
    if len(lengths):
        return int(lengths[0].as_py())
    return 0 if column.default is None else len(column.default)


def type_of(name: str, schema: pa.Schema, where: str) -> pa.DataType:
    index = schema.get_field_index(name)
    if index < 0:
        raise DataError(f"{where} has no column {name}; {suggest(name, schema.names)}")
    return schema.field(index).type


def _length(name: str, shape: Any) -> int:
    """Returns the length that `padded_shapes` gives for a column; raises DataError where it is none."""
    [length] = shape if isinstance(shape, (list, tuple)) and len(shape) == 1 else [shape]
    if isinstance(length, bool) or not isinstance(length, numbers.Integral) or length < 1:
        raise DataError(
            f"padded_shapes has {shape!r} for column {name}; give the length of its lists. The longest one "
            f"of a batch depends on the rows of all workers: for that give ragged=[{name!r}] and map the "
            "batches with to_tensor"
        )
    return int(length)


def _rows_of_bytes(flat: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Returns the bytes of each row's values, an array of objects."""
    content, ends = flat.tobytes(), np.cumsum(lengths, dtype=np.int64) * flat.itemsize
    rows = np.empty(len(lengths), object)
    rows[:] = [content[first:end] for first, end in itertools.pairwise([0, *ends.tolist()])]
    return rows


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if _is_variable(kind):
        return kind.storage_type.field("data").type
    return kind if _tensor_shape(kind) is None else kind.storage_type


def _is_variable(kind: pa.DataType) -> bool:
    """Whether it is Ray Data's type of NumPy arrays of one dimension that differ in length."""
    is_extension = isinstance(kind, pa.BaseExtensionType) and pa.types.is_struct(kind.storage_type)
    return is_extension and getattr(kind, "ndim", None) == 1


def _stored(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns a column of tensors as the lists that it is stored as; another one as it is."""
    if not isinstance(column.type, pa.BaseExtensionType):
        return column
    chunks = [chunk.storage for chunk in column.chunks]
    if _is_variable(column.type):
        chunks = [pc.struct_field(chunk, "data") for chunk in chunks]
    return pa.chunked_array(chunks, _plain(column.type))


def _tensor_shape(kind: pa.DataType) -> tuple[int, ...] | None:
    if not isinstance(kind, pa.BaseExtensionType) or _is_variable(kind):
        return None
    permutation = getattr(kind, "permutation", None)
    if permutation is not None and list(permutation) != sorted(permutation):
        return None
    shape = getattr(kind, "shape", None)
    return None if shape is None else tuple(shape)


def _tensor_type(kind: pa.DataType) -> object:
    """Returns what is alike for types that make the same tensors, such as string and large_string."""
    kind = _plain(kind)
    if _is_text(kind):
        return "text"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return "list", kind.value_type
    return kind


def _is_text(kind: pa.DataType) -> bool:
    checks = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(check(kind) for check in checks)
