"""What a SavedModel takes and returns, read from its file: TensorFlow's import would take seconds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

SERVING = "serving_default"
# The column of a model's only output.
PREDICTION = "prediction"
# TensorFlow's DataType; of strings `object`. Models with other types are checked by the actors alone.
_DTYPES: Mapping[int, str] = {
    **{1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 7: "object"},
    **{9: "int64", 10: "bool", 17: "uint16", 19: "float16", 22: "uint32", 23: "uint64"},
}
_MAX_FIELDS = 10_000  # that are looked at; the messages that are read here have far fewer
# Fields of a protobuf message by number: a varint, or the bytes of a text or of a message.
_Fields: TypeAlias = dict[int, list[Any]]


@dataclass(frozen=True, kw_only=True)
class ModelInput:
    """One input of a model.

    Attributes:
      shape: Of one example; None for sizes that may differ between batches.
      dtype: `object` for strings.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: np.dtype[Any]

    def __str__(self) -> str:
        kind = "string" if self.dtype.kind == "O" else self.dtype.name
        return f"{self.name} {kind}{[*self.shape]}"


@dataclass(frozen=True, kw_only=True)
class Signature:
    """What a model is called with, in the order of names, and the names of what it returns."""

    inputs: tuple[ModelInput, ...]
    outputs: tuple[str, ...]

    @property
    def output_columns(self) -> tuple[str, ...]:
        """The columns of the predictions."""
        return self.outputs if len(self.outputs) > 1 else (PREDICTION,)


def read_signature(saved_model: bytes) -> Signature | None:
    """Returns what saved_model.pb says of calls for serving; None where only TensorFlow can tell."""
    try:
        for graph in _fields(memoryview(saved_model)).get(2, ()):
            signatures = _map(_fields(graph).get(5, ()))
            if SERVING in signatures:
                found = _fields(signatures[SERVING])
                inputs = _map(found.get(1, ()))
                return Signature(
                    inputs=tuple(_input(name, _fields(inputs[name])) for name in sorted(inputs)),
                    outputs=tuple(_map(found.get(2, ()))),
                )
    except (IndexError, KeyError, TypeError, UnicodeDecodeError):
        pass  # it is damaged, or has a type or rank that is not known here
    return None


def _input(name: str, tensor: _Fields) -> ModelInput:
    shape = _fields(tensor[3][0])
    if shape.get(3, [0])[0]:
        raise KeyError("a shape of unknown rank")
    sizes = [_size(_fields(dimension).get(1, [0])[0]) for dimension in shape.get(2, ())]
    return ModelInput(name=name, shape=tuple(sizes[1:]), dtype=np.dtype(_DTYPES[tensor[2][0]]))


def _size(number: int) -> int | None:
    return None if number >= 1 << 63 else number  # -1, as an unsigned number of 64 bits


def _map(entries: Any) -> dict[str, Any]:
    found = map(_fields, entries)
    return {str(entry[1][0], "utf-8"): entry[2][0] for entry in found}


def _fields(message: memoryview) -> _Fields:
    found: _Fields = {}
    for number, value in itertools.islice(_each_field(message), _MAX_FIELDS):
        found.setdefault(number, []).append(value)
    return found


def _each_field(message: memoryview) -> Iterator[tuple[int, Any]]:
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        match key & 7:
            case 0:  # a varint
                value, place = _varint(message, place)
                yield key >> 3, value
            case 2:  # a text or a message
                size, place = _varint(message, place)
                if place + size > len(message):
                    raise IndexError("the message ends within a field")
                yield key >> 3, message[place : place + size]
                place += size
            case kind:  # numbers of 64 or 32 bits, of which nothing here is read
                place += {1: 8, 5: 4}[kind]


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):  # of 64 bits
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise IndexError("a number does not end")
