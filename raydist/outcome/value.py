"""What a train function returns, as plain JSON and back.

JSON has no tuples, arrays, infinities or keys that are not texts. Each is an object with one key that begins
with `$`: `{"$tuple": […]}`, `{"$array": {"dtype", "shape", "base64"}}`, `{"$float": ".nan"}`, `{"$dict":
[{"text": value}, [key, value], …]}`. A dict of the user's with such a key is kept as `$dict` as well.
"""

from __future__ import annotations

import binascii
import math
import reprlib
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from raydist.spec.params import number_text, parse_number
from raydist.spec.quantities import write_bytes

if TYPE_CHECKING:
    import numpy as np

# run.json is replaced as a whole, and `raydist list` reads those of all runs.
MAX_BYTES = 2**20
_MAX_DEPTH = 64
_MAX_INT_BITS = 4096  # Python itself refuses to write an int of more than 4300 digits
_TUPLE, _ARRAY, _FLOAT, _DICT = "$tuple", "$array", "$float", "$dict"
# Those of NumPy alone: the driver may lack the package that defines another one, such as bfloat16.
_DTYPES = frozenset(
    {
        *("bool", "float16", "float32", "float64", "complex64", "complex128"),
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    }
)


class NotKeptError(ValueError):
    """A value that cannot be kept; the message says why, as in `its ['model'] is a Sequential`."""


def encode_value(value: object, *, hide: Callable[[str], str]) -> Any:
    """Returns `value` as JSON's types.

    Scalars of NumPy become Python's numbers, tensors and variables become arrays, and a Keras `History`
    becomes its dict. Subclasses of Python's types become these types.

    Args:
      hide: Returns a text without the run's secrets.

    Raises:
      NotKeptError: It holds something else, or is larger than `MAX_BYTES`: an array counts with its bytes,
        the rest about as JSON.
    """
    return _Encoder(hide).encode(value, "", 0)


def decode_value(kept: Any) -> Any:
    """Returns the value that `encode_value` returned `kept` for; each call returns new arrays.

    Raises:
      ValueError: `encode_value` returns nothing like it.
    """
    match kept:
        case list():
            return [decode_value(item) for item in kept]
        case dict() if any(key.startswith("$") for key in kept):
            if len(kept) > 1:
                raise ValueError(f"an object with {next(iter(kept))!r} has further keys")
            [(tag, content)] = kept.items()
            return _decode_tagged(tag, content)
        case dict():
            return {key: decode_value(item) for key, item in kept.items()}
        case _:
            return kept


def check_value(kept: Any) -> None:
    """Raises ValueError for what `encode_value` does not return."""
    decode_value(kept)


class _Encoder:
    def __init__(self, hide: Callable[[str], str]) -> None:
        self._hide = hide
        self._left_bytes = MAX_BYTES

    def encode(self, value: Any, place: str, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise NotKeptError(f"it is nested more than {_MAX_DEPTH} deep")
        match value:
            case None | bool():
                self._spend(4, value, place)
                return value
            case str():
                return self._text(value, place)
            case int():
                if value.bit_length() > _MAX_INT_BITS:
                    raise NotKeptError(f"{_its(place)} is an int of {value.bit_length()} bits")
                self._spend(len(repr(int(value))), value, place)
                return int(value)
            case float():
                self._spend(len(repr(float(value))), value, place)
                return float(value) if math.isfinite(value) else {_FLOAT: number_text(float(value))}
            case list() | tuple():
                self._spend(2 * len(value), value, place)
                items = [
                    self.encode(item, f"{place}[{index}]", depth + 1) for index, item in enumerate(value)
                ]
                return {_TUPLE: items} if isinstance(value, tuple) else items
            case dict():
                return self._dict(value, place, depth)
            case _:
                return self._object(value, place, depth)

    def _spend(self, num_bytes: int, value: object, place: str) -> None:
        self._left_bytes -= num_bytes
        if self._left_bytes < 0:
            shape = getattr(value, "shape", None)
            what = type(value).__name__ + ("" if shape is None else f" of shape {tuple(shape)}")
            so = "with which it is" if place else "which is"
            raise NotKeptError(f"{_its(place)} is a {what}, {so} larger than {write_bytes(MAX_BYTES)}")

    def _text(self, value: str, place: str) -> str:
        self._spend(len(value), value, place)  # before it is searched for secrets
        text = self._hide(str(value))
        try:
            text.encode()
        except UnicodeEncodeError:
            raise NotKeptError(f"{_its(place)} is a text with half a character") from None
        return text

    def _dict(self, value: dict[Any, Any], place: str, depth: int) -> dict[str, Any]:
        self._spend(4 * len(value), value, place)
        found: list[tuple[Any, Any]] = []
        for key, item in value.items():
            at = f"{place}[{reprlib.repr(key)}]"
            found.append((self.encode(key, f"key {at}", depth + 1), self.encode(item, at, depth + 1)))
        if all(isinstance(key, str) and not key.startswith("$") for key, _ in found):
            return dict(found)
        entries = [{key: item} if isinstance(key, str) else [key, item] for key, item in found]
        return {_DICT: entries}

    def _object(self, value: Any, place: str, depth: int) -> Any:
        """Encodes what Python itself does not have."""
        import numpy as np

        if isinstance(value, np.generic) and value.dtype.name in _DTYPES and value.dtype.kind != "c":
            return self.encode(value.item(), place, depth)
        if type(value) is np.ndarray:
            if value.dtype.name not in _DTYPES:
                raise NotKeptError(f"{_its(place)} is an array of {value.dtype.name}")
            return self._array(value, place)
        if type(value).__name__ == "History" and isinstance(getattr(value, "history", None), dict):
            return self.encode(value.history, place, depth)
        if callable(getattr(value, "numpy", None)) and hasattr(value, "shape"):
            # What is too large is refused before it is copied from a device.
            self._spend(0 if _num_items(value) <= self._left_bytes else MAX_BYTES + 1, value, place)
            return self.encode(value.numpy(), place, depth + 1)
        raise NotKeptError(f"{_its(place)} is a {type(value).__name__}")

    def _array(self, array: np.ndarray[Any, Any], place: str) -> dict[str, Any]:
        self._spend(array.nbytes, array, place)
        little = array.astype(array.dtype.newbyteorder("<"))
        content = b64encode(little.tobytes()).decode()
        return {_ARRAY: {"dtype": array.dtype.name, "shape": list(array.shape), "base64": content}}


def _num_items(tensor: Any) -> int:
    # Of a ragged tensor some sizes are None.
    return math.prod(size for size in tuple(tensor.shape) if size is not None)


def _its(place: str) -> str:
    return f"its {place}" if place else "it"


def _decode_tagged(tag: str, content: Any) -> Any:
    try:
        match tag:
            case "$tuple":
                return tuple(decode_value(item) for item in _list(content))
            case "$float":
                return parse_number(content)
            case "$dict":
                return dict(map(_entry, _list(content)))
            case "$array":
                return _decode_array(**content)
    except (TypeError, AttributeError, binascii.Error) as error:
        raise ValueError(f"{tag} has a content that it never has: {error}") from error
    raise ValueError(f"{tag} is not a tag")


def _list(content: Any) -> list[Any]:
    if not isinstance(content, list):
        raise TypeError(f"{type(content).__name__} instead of a list")
    return content


def _entry(entry: Any) -> tuple[Any, Any]:
    if isinstance(entry, dict):
        [(key, item)] = entry.items()
        return key, decode_value(item)
    key, item = entry
    return decode_value(key), decode_value(item)


def _decode_array(*, dtype: str, shape: list[int], base64: str) -> np.ndarray[Any, Any]:
    import numpy as np

    if dtype not in _DTYPES:
        raise ValueError(f"dtype is {dtype!r}, none of an array's")
    stored = np.dtype(dtype).newbyteorder("<")
    flat = np.frombuffer(b64decode(base64, validate=True), stored)
    return flat.astype(dtype).reshape(shape)
