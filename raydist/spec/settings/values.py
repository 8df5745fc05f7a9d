"""From what was written, text or a typed value, to one option's value."""

from __future__ import annotations

import enum
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from raydist.errors import SpecError
from raydist.spec.quantities import ByteSize, Duration, parse_bytes, parse_duration
from raydist.spec.tasks import TaskType
from raydist.spec.text import suggest
from raydist.spec.variables import parse_variables

_Read = Callable[[str, object], Any]

_ROLES = tuple(member.value for member in TaskType)
# What Ray has a name of its own for.
_OWN_AMOUNTS = {
    "CPU": "cpus",
    "GPU": "gpus",
    "memory": "memory",
    "TPU": "--strategy tpu",
    "object_store_memory": "nothing: Ray reserves none of it for tasks, leave it out",
}
# As Ray takes them: Kubernetes' labels.
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
_SELECTOR = re.compile(r"!?(?:[A-Za-z0-9][A-Za-z0-9._-]*|in\([A-Za-z0-9._, -]+\))")

_ADDRESS_PATTERN = re.compile(r"local|auto|ray://\S+|simulated:\S*|[^\s/]+:[0-9]{1,5}")

# As MLflow takes them. An error does not repeat what was written: it may hold a password.
_TRACKING_PATTERN = re.compile(r"databricks(://\S+)?|[a-z][a-z0-9+]*://\S+")


@dataclass(frozen=True)
class Parser:
    """Reads one option's value.

    Attributes:
      read: Takes the option's name and what was written; returns the typed value or raises SpecError.
      takes: The type of what Python code gives. The command line's text for it is read, too.
      metavar: What stands for the value in the help.
      write: Returns the command line's text for a value; what `read` makes of it is the value.
      none: The command line's word for no value, which takes back what a config or the job says.
    """

    read: _Read
    takes: Any
    metavar: str = ""
    write: Callable[[Any], str] = str
    none: str | None = None

    def __call__(self, name: str, value: object) -> Any:
        return self.read(name, value)


def _takes(
    kind: Any, metavar: str = "", *, write: Callable[[Any], str] = str, none: str | None = None
) -> Callable[[_Read], Parser]:
    return lambda read: Parser(read, kind, metavar, write, none)


@_takes(str)
def text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise SpecError(f"{name} is {value!r}; write some text")
    return value


@_takes(str | os.PathLike[str])
def path(name: str, value: object) -> str:
    return str(text(name, os.fspath(value) if isinstance(value, os.PathLike) else value))


@_takes(Sequence[str])
def texts(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise SpecError(f"{name} is {value!r}; write a list of texts, such as ['--epochs', '3']")
    for each in value:
        # YAML makes numbers of `3`, and nobody means that the script gets one.
        if not isinstance(each, str | int | float | os.PathLike) or isinstance(each, bool):
            raise SpecError(f"{name} has {each!r}; write text, in quotes")
    return tuple(os.fspath(each) if isinstance(each, os.PathLike) else str(each) for each in value)


@_takes(bool)
def boolean(name: str, value: object) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise SpecError(f"{name} is {value!r}; write true or false")
    return value


def boolean_or(word: str) -> Parser:
    @_takes(bool | Literal[word], word)
    def parse(name: str, value: object) -> bool | str:
        if value == word:
            return word
        try:
            return bool(boolean(name, value))
        except SpecError:
            raise SpecError(f"{name} is {value!r}; write true, false or {word}") from None

    return parse


@_takes(int, "N")
def whole_number(name: str, value: object) -> int:
    if isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]{1,18}", value):
        return int(value)
    # True is an int to Python, but nobody means 1 worker by it.
    if not isinstance(value, int) or isinstance(value, bool):
        raise SpecError(f"{name} is {value!r}; write a whole number")
    return value


@_takes(float, "N")
def number(name: str, value: object) -> float:
    try:
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            parsed = float(value)
            if math.isfinite(parsed):
                return parsed
    except (ValueError, OverflowError):
        pass
    raise SpecError(f"{name} is {value!r}; write a number")


duration = Parser(parse_duration, Duration, "DURATION")


def _unless_text(write: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: value if isinstance(value, str) else write(value)


byte_size = Parser(parse_bytes, ByteSize, "SIZE")

variables = Parser(parse_variables, Mapping[str, str | None] | Sequence[str], "KEY=VALUE")


@_takes(str | os.PathLike[str] | Mapping[str, Any], "FILE", write=_unless_text(json.dumps))
def runtime_env(name: str, value: object) -> str | Mapping[str, Any]:
    """A mapping is kept as it is; text is a file, or a mapping in JSON."""
    return value if isinstance(value, Mapping) else path(name, value)


@_takes(float | str, "FACTOR")
def factor(name: str, value: object) -> float:
    """Takes `1.5x`, and 1.5."""
    written = value.removesuffix("x") if isinstance(value, str) else value
    try:
        return float(number(name, written))
    except SpecError:
        raise SpecError(f"{name} is {value!r}; write a factor such as 1.5x") from None


@_takes(Mapping[str, float] | Sequence[str], "KEY=N", none="none")
def amounts(name: str, value: object) -> dict[str, float]:
    """Takes a mapping, or a list of `KEY=N`."""
    found = {key: number(f"{name}.{key}", amount) for key, amount in _pairs(name, value, "KEY=N")}
    for key, amount in found.items():
        if key in _OWN_AMOUNTS:
            raise SpecError(f"{name} has {key}; write {_OWN_AMOUNTS[key]} instead")
        if amount <= 0 or (amount > 1 and amount != int(amount)):
            raise SpecError(f"{name}.{key} is {amount:g}; write a part of 1, or a whole number")
    return found


@_takes(Mapping[str, str] | Sequence[str], "[ROLE:]KEY=VALUE", none="none")
def label_selector(name: str, value: object) -> dict[str, str]:
    """Takes a mapping, or a list of `KEY=VALUE`; a key may begin with a role and `:`."""
    found: dict[str, str] = {}
    for key, wanted in _pairs(name, value, "KEY=VALUE"):
        role, colon, label = key.rpartition(":")
        if colon and role not in _ROLES:
            raise SpecError(f"{name} has {key!r}, but there is no role {role!r}; {suggest(role, _ROLES)}")
        if not _LABEL.fullmatch(label) or not isinstance(wanted, str) or not _SELECTOR.fullmatch(wanted):
            raise SpecError(f"{name} has {key!r}: {wanted!r}; write a, !a, in(a,b) or !in(a,b) for a label")
        found[key] = wanted
    return found


def _pairs(name: str, value: object, example: str) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(str(key), item) for key, item in value.items()]
    if not isinstance(value, list | tuple):
        raise SpecError(f"{name} is {value!r}; write {example}, in a config file a mapping")
    if list(value) == ["none"]:  # takes back what the config or the job says
        return []
    parted = [(item, *str(item).partition("=")) for item in value]
    for item, key, equals, _ in parted:
        if not equals or not key:
            raise SpecError(f"{name} has {item!r}; write {example}")
    return [(key, text) for _, key, _, text in parted]


@_takes(str, "ADDRESS")
def address(name: str, value: object) -> str:
    written: str = text(name, value)
    if not _ADDRESS_PATTERN.fullmatch(written):
        raise SpecError(f"{name} is {written!r}; write local, auto, host:port, or ray://host:port")
    return written


@_takes(str, "URI")
def tracking_uri(name: str, value: object) -> str:
    written: str = text(name, value)
    if not _TRACKING_PATTERN.fullmatch(written):
        raise SpecError(f"{name} is not the URI of a tracking server; write one such as http://host:5000")
    return written


def optional(parser: Parser, *, none: str | None = None) -> Parser:
    """Also takes None, and the word `none` for it where the command line needs one."""

    @_takes(parser.takes | None, parser.metavar, write=parser.write, none=none)
    def parse(name: str, value: object) -> Any:
        return None if value is None or (none is not None and value == none) else parser(name, value)

    return parse


def choice(kind: type[enum.Enum]) -> Parser:
    """Takes a member of `kind`, or its value as text (or as a number, where YAML made it one)."""
    by_text = {str(member.value): member for member in kind}

    @_takes(kind | Literal[tuple(by_text)], "|".join(by_text))
    def parse(name: str, value: object) -> enum.Enum:
        if isinstance(value, kind):
            return value
        written = str(value)
        if isinstance(value, bool) or written not in by_text:
            raise SpecError(f"{name} is {value!r}; {suggest(written, by_text)}")
        return by_text[written]

    return parse


def one_of(*words: str) -> Parser:
    @_takes(Literal[words], "|".join(words))
    def parse(name: str, value: object) -> str:
        if not isinstance(value, str) or value not in words:
            raise SpecError(f"{name} is {value!r}; {suggest(str(value), words)}")
        return value

    return parse


def written_as(kind: type[Any], example: str, *, also: Any = str, takes: Any = None) -> Parser:
    """Takes a `kind`, or what its `parse` reads: text, and `also` where YAML makes a number of it.

    Args:
      takes: What type checkers are told of `also`; None for that itself.
    """

    @_takes(kind | str | (takes or also))
    def parse(name: str, value: object) -> Any:
        if isinstance(value, kind):
            return value
        if isinstance(value, str | also) and not isinstance(value, bool):
            return kind.parse(str(value))
        raise SpecError(f"{name} is {value!r}; write {example}")

    return parse
