"""Dataclasses as plain values and back: the one codec of what raydist keeps as JSON.

A field is kept under its own name, or under the `key` of its metadata; one of `NOT_KEPT` stays out.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from raydist.errors import SpecError
from raydist.spec.tasks import TaskId

# Metadata of a field that is not kept.
NOT_KEPT: Mapping[str, Any] = types.MappingProxyType({"is_kept": False})

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
        case TaskId():
            return str(value)
        case Mapping():
            return {key: as_plain(item) for key, item in value.items()}
        case list() | tuple():
            return [as_plain(item) for item in value]
        case _ if dataclasses.is_dataclass(value):
            return {key: as_plain(getattr(value, field.name)) for key, field in _kept(type(value))}
        case _:
            return value


@functools.cache
def _hints_of(hint: Any) -> dict[str, Any]:
    """Returns the types of a class's fields. Evaluating them takes most of the time of reading a record."""
    return typing.get_type_hints(hint, include_extras=True)


def _kept(dataclass: Any) -> list[tuple[str, dataclasses.Field[Any]]]:
    fields = dataclasses.fields(dataclass)
    return [
        (field.metadata.get("key", field.name), field)
        for field in fields
        if field.metadata.get("is_kept", True)
    ]


def from_plain(value: Any, hint: Any, where: str = "") -> Any:
    """Returns what `as_plain` made `value` of, if that is what `hint` says.

    Args:
      hint: str, bool, int, float, None, Any, an enum, TaskId, `tuple[…, ...]`, `Mapping[str, …]`, a
        dataclass, a TypedDict, a union of them, or Annotated with `nan_where_null`, or with functions that
        raise ValueError or SpecError for what they do not accept. Keys that a TypedDict does not name are
        left as they are.
      where: Names the value in messages, such as `tasks[0].pid`.

    Raises:
      ValueError: It is something else; the message names the place and the value.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if hint is TaskId:
        return _parsed(TaskId.parse, _accepted(value, isinstance(value, str), _NAMES[str], where), where)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        values = [member.value for member in hint]
        return hint(_accepted(value, value in values, f"one of {', '.join(values)}", where))
    if dataclasses.is_dataclass(hint):
        return _dataclass_from(value, hint, where)
    if typing.is_typeddict(hint):
        return _typed_dict_from(value, hint, where)
    if origin in (typing.Union, types.UnionType):
        return _member_from(value, arguments, where)
    if origin is typing.Annotated:
        if nan_where_null in arguments:
            return nan_where_null(value if value is None else from_plain(value, float, where))
        found = from_plain(value, arguments[0], where)
        for check in arguments[1:]:
            _parsed(check, found, where)
        return found
    if origin is tuple:
        items = _accepted(value, isinstance(value, list), _NAMES[list], where)
        return tuple(from_plain(item, arguments[0], f"{where}[{index}]") for index, item in enumerate(items))
    if origin in (dict, collections.abc.Mapping):
        entries = _accepted(value, isinstance(value, dict), _NAMES[dict], where)
        return {key: from_plain(item, arguments[1], f"{where}.{key}") for key, item in entries.items()}
    return _accepted(value, _is_plain(value, hint), _NAMES[hint], where)


def _dataclass_from(value: Any, hint: Any, where: str) -> Any:
    entries = _accepted(value, isinstance(value, dict), _NAMES[dict], where)
    hints, found = _hints_of(hint), {}
    for key, field in _kept(hint):
        place = f"{where}.{key}" if where else key
        if key in entries:
            found[field.name] = from_plain(entries[key], hints[field.name], place)
        elif types.NoneType in typing.get_args(hints[field.name]):
            found[field.name] = None
        elif field.default is field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{place} is missing")
    return hint(**found)


def _typed_dict_from(value: Any, hint: Any, where: str) -> dict[str, Any]:
    entries = dict(_accepted(value, isinstance(value, dict), _NAMES[dict], where))
    for name, inner in _hints_of(hint).items():
        # Not from `__optional_keys__`, which is wrong where annotations are strings (PEP 655).
        is_optional = typing.get_origin(inner) is typing.NotRequired
        if is_optional:
            [inner] = typing.get_args(inner)
        if name in entries:
            entries[name] = from_plain(entries[name], inner, f"{where}.{name}")
        elif types.NoneType in typing.get_args(inner) and hint.__total__ and not is_optional:
            entries[name] = None
        elif hint.__total__ and not is_optional:
            raise ValueError(f"{where}.{name} is missing")
    return entries


def _member_from(value: Any, hints: tuple[Any, ...], where: str) -> Any:
    *others, last = [hint for hint in hints if hint is not types.NoneType]
    if value is None and types.NoneType in hints:
        return None
    for hint in others:
        try:
            return from_plain(value, hint, where)
        except ValueError:
            continue
    return from_plain(value, last, where)


def _parsed(parse: Callable[[Any], Any], value: Any, where: str) -> Any:
    try:
        return parse(value)
    except (ValueError, SpecError) as error:
        raise ValueError(f"{where} is {_shown(value)}: {error}") from error


def _is_plain(value: Any, hint: Any) -> bool:
    if isinstance(value, bool) or hint is bool:  # which Python takes for an int
        return isinstance(value, bool) and hint is bool
    if hint is float:
        return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**1023)
    return isinstance(value, hint)


def _accepted(value: Any, is_accepted: bool, wanted: str, where: str) -> Any:
    if not is_accepted:
        raise ValueError(f"{where or 'it'} is {_shown(value)}, not {wanted}")
    return value


def _shown(value: Any) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
