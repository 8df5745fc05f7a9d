"""What is predicted for: Parquet, CSV, TFRecord or pictures, in units that can be read by themselves."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raydist.data.failures import data_error_in
from raydist.data.order.windows import Piece
from raydist.data.sources.arrow import Layout
from raydist.data.sources.columns import Selection, width_of
from raydist.data.sources.csv import ENDINGS, CsvFiles
from raydist.data.sources.files import DataFiles, first_line
from raydist.data.sources.images import ImageSource
from raydist.data.sources.tfrecord import from_tfrecord
from raydist.errors import DataError
from raydist.inference.parts import Part
from raydist.inference.signature import ModelInput, Signature
from raydist.storage.filesystem import Storage

PARQUET, CSV, TFRECORD, IMAGES = FORMATS = ("parquet", "csv", "tfrecord", "images")
_ENDINGS: Mapping[str, tuple[str, ...]] = {
    PARQUET: (".parquet", ".parq", ".pq"),
    CSV: ENDINGS,
    TFRECORD: (".tfrecord", ".tfrecords"),
    IMAGES: (".png", ".jpg", ".jpeg", ".gif", ".bmp"),
}
_WHAT = "predict"
# Returns tables of these columns, with so many rows at most.
_Read = Callable[[Sequence[str], int], Iterator[pa.Table]]


class Batch(NamedTuple):
    """Some rows: what is copied of them beside their predictions, and what the model gets."""

    kept: pa.Table
    values: dict[str, np.ndarray]


class Input(abc.ABC):
    """An input that is read in units.

    Attributes:
      format: One of FORMATS.
      to: The format of the predictions, PARQUET or CSV.
      unit_rows: The rows of each unit.
      unit_files: The file of each unit, numbered.
      batch_size: How many rows a model gets at once, unless told otherwise.
      part_rows: How many rows a part has at most: enough that starting a file costs little, and few enough
        that all workers have some until the end.
    """

    format: str
    to: str = PARQUET
    files: DataFiles
    unit_rows: Sequence[int]
    unit_files: Sequence[int]
    batch_size = 1024
    part_rows = 65536

    @abc.abstractmethod
    def check(self, signature: Signature) -> None:
        """Raises DataError where it does not fit the model, as far as that is known before rows are read."""

    @abc.abstractmethod
    def batches(self, part: Part, inputs: Sequence[ModelInput], *, size: int) -> Iterator[Batch]:
        """Yields the rows of a part in their order.

        Raises DataError where they cannot be read, or do not fit the model's inputs.
        """


class _Table(Input):
    """Rows with named columns."""

    def __init__(self, features: tuple[str, ...] | None, copy: tuple[str, ...] | None) -> None:
        self._features, self._copy = features, copy

    @abc.abstractmethod
    def _schema(self, inputs: Sequence[ModelInput]) -> pa.Schema:
        """Returns the columns of the first unit's file."""

    @abc.abstractmethod
    def _open(self, part: Part, inputs: Sequence[ModelInput]) -> tuple[pa.Schema, _Read]:
        """Returns the columns of a part's file, and what reads them."""

    def check(self, signature: Signature) -> None:
        uri = self.files.uri(self.unit_files[0])
        schema = self._schema(signature.inputs)
        layout, kept = self._columns(schema, signature.inputs, where=uri)
        check_output_names(signature.output_columns, kept)
        if not any(column.needs_width for column in layout.columns):
            _values(schema.empty_table(), layout, signature.inputs, where=uri)

    def batches(self, part: Part, inputs: Sequence[ModelInput], *, size: int) -> Iterator[Batch]:
        uri = self.files.uri(self.unit_files[part.first])
        schema, read = self._open(part, inputs)
        layout, kept = self._columns(schema, inputs, where=uri)
        wanted = dict.fromkeys([*kept, *(column.name for column in layout.columns)])
        for table in read([*wanted], size):
            yield Batch(table.select(kept), _values(table, layout, inputs, where=uri))

    def _columns(
        self, schema: pa.Schema, inputs: Sequence[ModelInput], *, where: str
    ) -> tuple[Layout, list[str]]:
        """Returns what the model gets, and the names of the columns that are copied."""
        layout = _layout(schema, inputs, self._features, where=where)
        fed = {column.name for column in layout.columns}
        if self._copy is not None and (unknown := [name for name in self._copy if name not in schema.names]):
            raise DataError(f"{where} has no column {unknown[0]}, which --copy names")
        kept = [
            name for name in schema.names if (name not in fed if self._copy is None else name in self._copy)
        ]
        return layout, kept


class _Parquet(_Table):
    """The rows of Parquet files."""

    format = PARQUET

    def __init__(self, data: str, features: tuple[str, ...] | None, copy: tuple[str, ...] | None) -> None:
        super().__init__(features, copy)
        self.files = DataFiles(data, what=_WHAT, is_wanted=lambda key: format_of(key) == PARQUET)
        groups = self.files.of_each("rows", self._groups)
        found = [(file, group, rows) for file, sizes in enumerate(groups) for group, rows in sizes]
        self.unit_files = [file for file, _, _ in found]
        self._group_in_file = [group for _, group, _ in found]
        self.unit_rows = [rows for _, _, rows in found]

    def _groups(self, number: int) -> list[tuple[int, int]]:
        footer = self._reading(number, lambda: pq.ParquetFile(self.files.open(number))).metadata
        sizes = [(group, footer.row_group(group).num_rows) for group in range(footer.num_row_groups)]
        return [(group, size) for group, size in sizes if size]

    def _reading(self, number: int, read: Any) -> Any:
        try:
            return self.files.reading(number, read)
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"cannot read the Parquet of {self.files.uri(number)}: {first_line(error)}"
            ) from error

    def _schema(self, inputs: Sequence[ModelInput]) -> pa.Schema:
        number = self.unit_files[0]
        return self._reading(number, lambda: pq.read_schema(self.files.open(number)))

    def _open(self, part: Part, inputs: Sequence[ModelInput]) -> tuple[pa.Schema, _Read]:
        number = self.unit_files[part.first]
        file = self._reading(number, lambda: pq.ParquetFile(self.files.open(number), pre_buffer=True))
        groups = self._group_in_file[part.first : part.end]

        def read(names: Sequence[str], size: int) -> Iterator[pa.Table]:
            batches = file.iter_batches(size, row_groups=groups, columns=names)
            while (rows := self._reading(number, lambda: next(batches, None))) is not None:
                yield pa.Table.from_batches([rows])

        return file.schema_arrow, read


class _Csv(_Table):
    """The rows of CSV files."""

    format = CSV

    def __init__(
        self, data: str, features: tuple[str, ...] | None, copy: tuple[str, ...] | None, *, delimiter: str
    ) -> None:
        super().__init__(features, copy)
        self._rows = CsvFiles(data, what=_WHAT, delimiter=delimiter)
        self.files = self._rows.files
        self.unit_rows = self._rows.group_sizes.tolist()
        self.unit_files = self._rows.file_of_group.tolist()

    def _schema(self, inputs: Sequence[ModelInput]) -> pa.Schema:
        """Returns the types that the model wants; what is copied to CSV stays as it is written."""
        wanted = dict.fromkeys(self._features or (), inputs[0]) or {one.name: one for one in inputs}
        kinds = {}
        for name, kind in zip(self._rows.schema.names, self._rows.schema.types, strict=True):
            is_number = pa.types.is_floating(kind) or pa.types.is_boolean(kind)
            if name not in wanted:
                kinds[name] = pa.string() if self.to == CSV or pa.types.is_null(kind) else kind
            elif wanted[name].dtype.kind == "O":
                kinds[name] = pa.string()
            elif wanted[name].dtype.kind in "iub":  # a text is told with its line when it is read
                kinds[name] = kind if is_number else pa.int64()
            else:
                kinds[name] = pa.float64() if not pa.types.is_boolean(kind) else kind
        return pa.schema(kinds)

    def _open(self, part: Part, inputs: Sequence[ModelInput]) -> tuple[pa.Schema, _Read]:
        schema = self._schema(inputs)
        fed = self._features or [one.name for one in inputs]

        def read(names: Sequence[str], size: int) -> Iterator[pa.Table]:
            kinds = {name: schema.field(name).type for name in names}
            for unit in range(part.first, part.end):
                table = self._rows.table(unit, kinds, full=fed)
                for first in range(0, len(table), size):
                    yield table.slice(first, size)

        return schema, read


def _layout(
    schema: pa.Schema, inputs: Sequence[ModelInput], features: Sequence[str] | None, *, where: str
) -> Layout:
    """Returns which columns make up the model's inputs; raises DataError where they cannot."""
    missing = [one.name for one in inputs if one.name not in schema.names]
    if features is None and missing:
        told = f"{where} has no column {missing[0]}, an input of the model ({_all(inputs)})"
        remedy = "name the columns that make it up with --features" if len(inputs) == 1 else "rename a column"
        raise DataError(f"{told}; {remedy}")
    _check_features(inputs, features)
    selection = Selection(
        what=_WHAT,
        features=features,
        label=None,
        columns=None if features is not None else [one.name for one in inputs],
        dtype="float32" if features is None else inputs[0].dtype,
        defaults={},
    )
    layout = Layout.of(schema, selection, where=where)
    for column in layout.columns if features is not None else ():  # which become one tensor of that type
        if not np.can_cast(column.dtype, inputs[0].dtype, "same_kind"):
            raise DataError(
                f"column {column.name} of {where} is {column.type}, and the model's input is {inputs[0]}"
            )
    return layout


def _check_features(inputs: Sequence[ModelInput], features: Sequence[str] | None) -> None:
    if features is not None and len(inputs) != 1:
        raise DataError(f"--features is for a model of one input, and it has {_all(inputs)}")
    if features is not None and inputs[0].dtype.kind == "O":
        raise DataError(f"--features is for a model of numbers, and it has {_all(inputs)}")


def _values(
    table: pa.Table, layout: Layout, inputs: Sequence[ModelInput], *, where: str
) -> dict[str, np.ndarray]:
    widths = {column.name: width_of(column, table) for column in layout.columns if column.needs_width}
    arrays = [np.empty((len(table), *field.shape), field.dtype) for field in layout.fields(widths)]
    layout.fill(arrays, table, widths=widths, where=where)
    return {one.name: _fitted(array, one, where=where) for one, array in zip(inputs, arrays, strict=True)}


def _fitted(array: np.ndarray, wanted: ModelInput, *, where: str) -> np.ndarray:
    """Returns the values with the type and shape of an input; raises DataError where they have others."""
    sizes = [size for size in wanted.shape if size is not None]
    row = math.prod(array.shape[1:])
    has_shape = array.shape[1:] == wanted.shape or (
        row == math.prod(sizes) if len(sizes) == len(wanted.shape) else array.ndim == 1 + len(wanted.shape)
    )
    is_text = (array.dtype.kind == "O", wanted.dtype.kind == "O")
    has_type = is_text[0] == is_text[1] and np.can_cast(array.dtype, wanted.dtype, "same_kind")
    if not (has_shape and has_type):
        kind = "string" if is_text[0] else array.dtype.name
        raise DataError(
            f"the columns for input {wanted} of the model are {kind}{[*array.shape[1:]]} in {where}; give "
            "columns of that type and size"
        )
    if len(sizes) == len(wanted.shape):
        array = array.reshape(len(array), *sizes)
    given = array.astype(wanted.dtype, copy=False)
    if array.dtype.kind in "iu" and given is not array and (given != array).any():
        raise DataError(
            f"a value for input {wanted} of the model in {where} is {array[given != array][0]}, which "
            f"{wanted.dtype.name} cannot hold; give values within its range"
        )
    return given


class _TFRecord(Input):
    """The records of TFRecord files, which are of the type `tf.train.Example`."""

    format = TFRECORD

    def __init__(self, data: str, features: tuple[str, ...] | None) -> None:
        self._source = from_tfrecord(data)
        self._features = features
        self.files = self._source.files
        self.unit_rows = self._source.group_sizes.tolist()
        self.unit_files = self._source.file_of_group.tolist()
        before = np.cumsum([0, *self.unit_rows[:-1]])
        firsts = {file: before[unit] for unit, file in reversed(list(enumerate(self.unit_files)))}
        self._first_in_file = [
            int(first - firsts[file]) for first, file in zip(before, self.unit_files, strict=True)
        ]

    def check(self, signature: Signature) -> None:
        self._shapes(signature.inputs)

    def batches(self, part: Part, inputs: Sequence[ModelInput], *, size: int) -> Iterator[Batch]:
        number = self.unit_files[part.first]
        name = self.files.key(number) or self.files.uri(number).rpartition("/")[2]
        at = self._first_in_file[part.first]
        for unit in range(part.first, part.end):
            for first in range(0, self.unit_rows[unit], size):
                end = min(first + size, self.unit_rows[unit])
                records, _ = self._source.read([Piece(group=unit, first=first, end=end)])
                kept = pa.table({"file": [name] * len(records), "record": range(at, at + len(records))})
                at += len(records)
                yield Batch(kept, self._parsed(records, inputs, where=self.files.uri(number)))

    def _shapes(self, inputs: Sequence[ModelInput]) -> dict[str, list[int]]:
        """Returns the shape of each feature that is read."""
        _check_features(inputs, self._features)
        if self._features is not None:
            return {name: [] for name in self._features}
        for one in inputs:
            if None in one.shape:
                raise DataError(f"input {one} of the model has no fixed size, which TFRecords need")
        return {one.name: [size for size in one.shape if size is not None] for one in inputs}

    def _parsed(
        self, records: np.ndarray, inputs: Sequence[ModelInput], *, where: str
    ) -> dict[str, np.ndarray]:
        import tensorflow as tf

        shapes = self._shapes(inputs)
        kinds = _kinds(records[0], where=where)
        for feature in shapes:
            if feature not in kinds:
                known = ", ".join(sorted(kinds))
                raise DataError(f"the first record of {where} has no feature {feature}; it has {known}")
        specs = {name: tf.io.FixedLenFeature(shape, kinds[name]) for name, shape in shapes.items()}
        try:
            parsed = tf.io.parse_example(tf.constant(records), specs)
        except tf.errors.InvalidArgumentError as error:
            raise DataError(f"a record of {where} does not fit the model: {_told(error)}") from error
        arrays = {name: value.numpy() for name, value in parsed.items()}
        if self._features is not None:
            arrays = {inputs[0].name: np.stack([arrays[name] for name in self._features], axis=-1)}
        return {one.name: _fitted(arrays[one.name], one, where=where) for one in inputs}


def _kinds(record: bytes, *, where: str) -> dict[str, Any]:
    """Returns the types of the features of a record."""
    import tensorflow as tf
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    types = {"bytes_list": tf.string, "float_list": tf.float32, "int64_list": tf.int64}
    try:
        features = tf.train.Example.FromString(record).features.feature
    except DecodeError as error:
        raise DataError(f"the records of {where} are not of the type tf.train.Example") from error
    kinds = {name: feature.WhichOneof("kind") for name, feature in features.items()}
    return {name: types[kind] for name, kind in kinds.items() if kind is not None}


def _told(error: Any) -> str:
    return str(error.message).strip().partition("\n")[0].partition(" [Op:")[0]


class _Images(Input):
    """Pictures, one a unit."""

    format = IMAGES
    batch_size = 64
    part_rows = 1024

    def __init__(self, data: str) -> None:
        self._data = data
        self.files = DataFiles(data, what=_WHAT)
        self.unit_rows = [1] * len(self.files)
        self.unit_files = [0] * len(self.files)  # a part may have many
        self._source: ImageSource | None = None

    def check(self, signature: Signature) -> None:
        _picture_input(signature.inputs)

    def batches(self, part: Part, inputs: Sequence[ModelInput], *, size: int) -> Iterator[Batch]:
        import tensorflow as tf

        wanted, channels = _picture_input(inputs)
        if self._source is None:
            height, width, _ = wanted.shape
            fixed = None if height is None or width is None else (height, width)
            self._source = ImageSource(self._data, size=fixed, channels=channels, has_classes=False)
            # Listed here and by the driver: with one file more, all names would be those of other pictures.
            if list(self._source.files.keys()) != list(self.files.keys()):
                raise DataError(
                    f"the files of {self._data} have changed since the predictions began; begin again, with "
                    "another folder for them"
                )
        for first in range(part.first, part.end, size):
            rows = np.arange(first, min(first + size, part.end))
            names = [self.files.key(row) or self.files.uri(row).rpartition("/")[2] for row in rows.tolist()]
            try:
                images, _ = self._source.decode([tf.constant(one) for one in self._source.take(rows)])
            except tf.errors.OpError as error:
                raise data_error_in(error) or DataError(f"cannot decode a picture: {_told(error)}") from error
            yield Batch(pa.table({"file": names}), {wanted.name: images.numpy().astype(wanted.dtype)})


def _picture_input(inputs: Sequence[ModelInput]) -> tuple[ModelInput, int]:
    """Returns a model's only input and its channels; raises DataError where it takes no pictures."""
    channels = inputs[0].shape[2] if len(inputs) == 1 and len(inputs[0].shape) == 3 else None
    if channels is None:
        raise DataError(
            f"the model has {_all(inputs)}, and no single input of pictures [height, width, 1|3|4]"
        )
    return inputs[0], channels


def check_output_names(outputs: Iterable[str], kept: Iterable[str]) -> None:
    """Raises DataError where a column that is copied has the name of an output."""
    if taken := [name for name in outputs if name in kept]:
        raise DataError(f"the data have a column {taken[0]} already; leave it out with --copy")


def _all(inputs: Sequence[ModelInput]) -> str:
    return ", ".join(map(str, inputs))


def format_of(key: str) -> str | None:
    """Returns the format of a file by its name; None where that does not tell it."""
    lower = key.lower()
    return next((each for each, endings in _ENDINGS.items() if lower.endswith(endings)), None)


def open_input(
    data: str,
    *,
    format: str | None,
    features: tuple[str, ...] | None,
    copy: tuple[str, ...] | None,
    to: str | None = None,
    delimiter: str | None = None,
) -> Input:
    """Opens what is predicted for.

    Args:
      format: One of FORMATS; None takes that of the first file whose name tells it.
      features: The columns, or features of records, that are stacked to the model's only input.
      copy: The columns of Parquet or CSV that are copied; None copies all that the model does not get.
      to: The format of the predictions; None for that of the data if that is CSV, and else Parquet.
      delimiter: Between the columns of CSV; None for a comma.

    Raises:
      DataError: There are no files, no rows, or an option does not go with the format.
    """
    if format is None:
        place = Storage.open(data, follows_links=True)
        keys = [file.key or data for file in place.find_files()]
        format = next((found for found in map(format_of, keys) if found is not None), None)
        if format is None:
            told = (
                f"the names of its {len(keys)} files tell no format; give --format"
                if keys
                else "there is no such file, or folder with files"
            )
            raise DataError(f"there is nothing to predict for in {place.uri()}: {told}")
    if copy is not None and format not in (PARQUET, CSV):
        raise DataError(f"--copy names columns of Parquet or CSV, and {data} is {format}")
    if delimiter is not None and format != CSV:
        raise DataError(f"--delimiter is for CSV, and {data} is {format}")
    if features is not None and format == IMAGES:
        raise DataError(f"--features names columns, and {data} is images")
    match format:
        case "parquet":
            opened: Input = _Parquet(data, features, copy)
        case "csv":
            opened = _Csv(data, features, copy, delimiter="," if delimiter is None else delimiter)
        case "tfrecord":
            opened = _TFRecord(data, features)
        case _:
            opened = _Images(data)
    if not sum(opened.unit_rows):
        raise DataError(f"there is nothing to predict for in {data}: its files have no rows")
    opened.to = to or (CSV if format == CSV else PARQUET)
    return opened
