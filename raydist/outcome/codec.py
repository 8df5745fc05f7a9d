"""Dataclasses as plain values and back: the one codec of what raydist keeps as JSON.

A field is kept under its own name, or under the `key` of its metadata; one of `NOT_KEPT` stays out. cattrs
takes 1.2 times as long for the statuses of 2,000 tasks, imports 39 modules, and would need hooks of our own
for strict types, NaN and the place in an error.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import functools
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from raydist.errors import SpecError
from raydist.spec.tasks import TaskId

if sys.version_info >= (3, 11):
    from typing import NotRequired
else:
    from typing_extensions import NotRequired

# Metadata of a field that is not kept.
NOT_KEPT: Mapping[str, Any] = types.MappingProxyType({"is_kept": False})

_Decoder: TypeAlias = Callable[[Any], Any]

_MAX_SHOWN = 60
# What a person calls the types of JSON.
_NAMES: Mapping[Any, str] = {
    str: "a string",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "an object",
    types.NoneType: "null",
}


def nan_where_null(value: Any) -> float:
    """Marks a number, as `Annotated[float, nan_where_null]`, for which JSON has null where it is NaN."""
    return float("nan") if value is None else float(value)


def as_plain(value: Any) -> Any:
    """Returns `value` as dicts, lists and scalars; a dict of a dataclass has each field that is kept."""
    match value:
        case enum.Enum():
            return value.value
        case None | bool() | int() | float() | str():  # most are, and to be a Mapping takes long to rule out
            return value
        case TaskId():
            return str(value)
        case Mapping():
            return {key: as_plain(item) for key, item in value.items()}
        case list() | tuple():
            return [as_plain(item) for item in value]
        case _ if dataclasses.is_dataclass(value):
            fields = _kept(type(value))  # type: ignore[arg-type]  # a class is hashable
            return {key: as_plain(getattr(value, field.name)) for key, field in fields}
        case _:
            return value


@functools.cache
def _kept(dataclass: Any) -> list[tuple[str, dataclasses.Field[Any]]]:
    fields = dataclasses.fields(dataclass)
    return [
        (field.metadata.get("key", field.name), field)
        for field in fields
        if field.metadata.get("is_kept", True)
    ]


def from_plain(value: Any, hint: Any) -> Any:
    """Returns what `as_plain` made `value` of, if that is what `hint` says.

    Args:
      hint: str, bool, int, float, None, Any, an enum, TaskId, `tuple[…, ...]`, `Mapping[str, …]`, a
        dataclass, a TypedDict, a union of them, or Annotated with `nan_where_null`, or with functions that
        raise ValueError or SpecError for what they do not accept. Keys that a TypedDict does not name are
        left as they are.

    Raises:
      ValueError: It is something else; the message names the place, such as `tasks[0].pid`, and the value.
    """
    return _decoder(hint)(value)


class _Mismatch(ValueError):
    """A value that is not what its type says. Its place is found on the way out, so a match pays nothing."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self._place = ""
        self._problem = problem

    def add_outer(self, outer: str) -> None:
        """Puts what the value is in, a field's name or `[index]`, before its place."""
        dot = "." if self._place and not self._place.startswith("[") else ""
        self._place = f"{outer}{dot}{self._place}"

    def __str__(self) -> str:
        return f"{self._place or 'it'} {self._problem}"


@functools.cache
def _decoder(hint: Any) -> _Decoder:
    """Returns the function that decodes what `hint` says; made once, as reading 2,000 records takes many."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return lambda value: value
    if hint is TaskId:
        return _checked(_scalar(str), TaskId.parse, keeps=False)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _member_of_enum(hint)
    if dataclasses.is_dataclass(hint):
        return _dataclass(hint)
    if typing.is_typeddict(hint):
        return _typed_dict(hint)
    if origin in (typing.Union, types.UnionType):
        return _union(arguments)
    if origin is typing.Annotated:
        if nan_where_null in arguments:
            number = _decoder(float)
            return lambda value: nan_where_null(value if value is None else number(value))
        decode = _decoder(arguments[0])
        for check in arguments[1:]:
            decode = _checked(decode, check, keeps=True)
        return decode
    if origin is tuple:
        return _tuple(_decoder(arguments[0]))
    if origin in (dict, collections.abc.Mapping):
        return _mapping(_decoder(arguments[1]))
    return _scalar(hint)


def _scalar(hint: Any) -> _Decoder:
    wanted = _NAMES[hint]

    def decode(value: Any) -> Any:
        if type(value) is not hint and not (hint is float and _is_small_int(value)):
            raise _unlike(value, wanted)
        return value

    return decode


def _member_of_enum(hint: type[enum.Enum]) -> _Decoder:
    members = {member.value: member for member in hint}

    def decode(value: Any) -> Any:
        if not isinstance(value, collections.abc.Hashable) or value not in members:
            raise _unlike(value, f"one of {', '.join(members)}")
        return members[value]

    return decode


def _dataclass(hint: Any) -> _Decoder:
    hints = typing.get_type_hints(hint, include_extras=True)
    decoders: dict[str, tuple[str, _Decoder]] = {}
    absent: dict[str, bool] = {}
    for key, field in _kept(hint):
        decoders[key] = field.name, _decoder(hints[field.name])
        if types.NoneType in typing.get_args(hints[field.name]):
            absent[key] = False
        elif field.default is field.default_factory is dataclasses.MISSING:
            absent[key] = True
    decode = _entries(decoders, absent)
    return lambda value: hint(**decode(value))


def _typed_dict(hint: Any) -> _Decoder:
    decoders: dict[str, tuple[str, _Decoder]] = {}
    absent: dict[str, bool] = {}
    for name, inner in typing.get_type_hints(hint, include_extras=True).items():
        # Not from `__optional_keys__`, which is wrong where annotations are strings (PEP 655).
        is_optional = typing.get_origin(inner) is NotRequired
        kept = typing.get_args(inner)[0] if is_optional else inner
        decoders[name] = name, _decoder(kept)
        if hint.__total__ and not is_optional:
            absent[name] = types.NoneType not in typing.get_args(kept)
    decode = _entries(decoders, absent)
    return lambda value: {**_as_dict(value), **decode(value)}


def _entries(
    decoders: Mapping[str, tuple[str, _Decoder]], absent: Mapping[str, bool]
) -> Callable[[Any], dict[str, Any]]:
    """Returns the function that decodes the entries of an object.

    Args:
      decoders: By the entry's key, the name under which its value is returned, and its decoder.
      absent: By the key, whether it is a mistake that there is no such entry; it counts as null if it is not.
        One that is not named here is left out.
    """

    def decode(value: Any) -> dict[str, Any]:
        entries, found, key = _as_dict(value), {}, ""
        try:
            for key, (name, inner) in decoders.items():
                if key in entries:
                    found[name] = inner(entries[key])
                elif key in absent:
                    if absent[key]:
                        raise _Mismatch("is missing")
                    found[name] = None
        except _Mismatch as mismatch:
            mismatch.add_outer(key)
            raise
        return found

    return decode


def _union(hints: tuple[Any, ...]) -> _Decoder:
    takes_null = types.NoneType in hints
    *others, last = [_decoder(hint) for hint in hints if hint is not types.NoneType]

    def decode(value: Any) -> Any:
        if value is None and takes_null:
            return None
        for inner in others:
            try:
                return inner(value)
            except ValueError:
                continue
        return last(value)

    return decode


def _tuple(inner: _Decoder) -> _Decoder:
    def decode(value: Any) -> Any:
        if not isinstance(value, list):
            raise _unlike(value, _NAMES[list])
        found: list[Any] = []
        try:
            for item in value:
                found.append(inner(item))
        except _Mismatch as mismatch:
            mismatch.add_outer(f"[{len(found)}]")
            raise
        return tuple(found)

    return decode


def _mapping(inner: _Decoder) -> _Decoder:
    def decode(value: Any) -> Any:
        found, key = {}, ""
        try:
            for key, item in _as_dict(value).items():
                found[key] = inner(item)
        except _Mismatch as mismatch:
            mismatch.add_outer(key)
            raise
        return found

    return decode


def _checked(inner: _Decoder, check: Callable[[Any], Any], *, keeps: bool) -> _Decoder:
    """Returns `inner` followed by `check`, whose result is taken unless what `inner` found is kept."""

    def decode(value: Any) -> Any:
        found = inner(value)
        try:
            parsed = check(found)
        except (ValueError, SpecError) as error:
            raise _Mismatch(f"is {_shown(found)}: {error}") from error
        return found if keeps else parsed

    return decode


def _as_dict(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _unlike(value, _NAMES[dict])
    return value


def _is_small_int(value: Any) -> bool:
    return type(value) is int and abs(value) < 2**1023


def _unlike(value: Any, wanted: str) -> _Mismatch:
    return _Mismatch(f"is {_shown(value)}, not {wanted}")


def _shown(value: Any) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
