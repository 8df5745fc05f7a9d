"""Checks what was read from JSON against a type, so that whoever uses it need not."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from raydist.errors import SpecError

_MAX_SHOWN = 60
# What a person calls the types of JSON.
_NAMES: Mapping[Any, str] = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "an object",
    None: "null",
}


def checked(value: Any, hint: Any, where: str) -> Any:
    """Returns `value` if it is what `hint` says, with None for each key that is missing and may be None.

    Args:
      hint: str, int, float, None, Any, Literal, `list[…]`, `dict[str, …]`, a TypedDict, a union of them, or
        Annotated with functions that raise ValueError or SpecError for what they do not accept. Keys that a
        TypedDict does not name are left as they are.
      where: Names the value in messages, such as `tasks[0].pid`.

    Raises:
      ValueError: It is something else; the message names the place and the value.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if typing.is_typeddict(hint):
        return _checked_object(value, hint, where)
    if origin in (typing.Union, types.UnionType):
        return _checked_union(value, arguments, where)
    if origin is typing.Literal:
        return _accepted(value, value in arguments, f"one of {', '.join(map(str, arguments))}", where)
    if origin is typing.Annotated:
        return _checked_by(arguments[1:], checked(value, arguments[0], where), where)
    if origin is list:
        items = _accepted(value, isinstance(value, list), _NAMES[list], where)
        return [checked(item, arguments[0], f"{where}[{index}]") for index, item in enumerate(items)]
    if origin is dict:
        entries = _accepted(value, isinstance(value, dict), _NAMES[dict], where)
        return {key: checked(item, arguments[1], f"{where}.{key}") for key, item in entries.items()}
    return _accepted(value, _is_plain(value, hint), _NAMES[_without_class(hint)], where)


def _checked_object(value: Any, hint: Any, where: str) -> dict[str, Any]:
    entries = dict(_accepted(value, isinstance(value, dict), _NAMES[dict], where))
    for name, inner in typing.get_type_hints(hint, include_extras=True).items():
        place = f"{where}.{name}" if where else name
        # Not from `__optional_keys__`, which is wrong where annotations are strings (PEP 655).
        is_optional = typing.get_origin(inner) is typing.NotRequired
        if is_optional:
            [inner] = typing.get_args(inner)
        is_optional = is_optional or not hint.__total__
        if name in entries:
            entries[name] = checked(entries[name], inner, place)
        elif is_optional:
            pass
        elif type(None) in typing.get_args(inner):
            entries[name] = None
        else:
            raise ValueError(f"{place} is missing")
    return entries


def _checked_union(value: Any, hints: tuple[Any, ...], where: str) -> Any:
    *others, last = [hint for hint in hints if hint is not type(None)]
    if value is None and type(None) in hints:
        return None
    for hint in others:
        try:
            return checked(value, hint, where)
        except ValueError:
            continue
    return checked(value, last, where)


def _checked_by(checks: tuple[Callable[[Any], object], ...], value: Any, where: str) -> Any:
    for check in checks:
        try:
            check(value)
        except (ValueError, SpecError) as error:
            raise ValueError(f"{where} is {_shown(value)}: {error}") from error
    return value


def _is_plain(value: Any, hint: Any) -> bool:
    if isinstance(value, bool):  # which Python takes for an int
        return False
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


def _without_class(hint: Any) -> Any:
    return None if hint is type(None) else hint
