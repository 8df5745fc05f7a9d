"""From the mapping of a config file or of Python code to extra roles."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any

from raydist.errors import SpecError
from raydist.spec.extra_roles.role import ExtraRole
from raydist.spec.near import suggest
from raydist.spec.settings import values
from raydist.spec.tasks import Resources

_EXAMPLE = "features: {command: python serve.py, cpus: 1}"


def _parse_roles(name: str, value: object) -> dict[str, ExtraRole]:
    """Takes a mapping from each role's name to its command and what else is set."""
    if not isinstance(value, Mapping):
        raise SpecError(f"{name} is {value!r}; write a mapping, such as {_EXAMPLE}")
    return {str(role): _parse_role(f"{name}.{role}", str(role), said) for role, said in value.items()}


roles = values.Parser(_parse_roles, Mapping[str, Mapping[str, Any]])


def _parse_role(where: str, role: str, said: object) -> ExtraRole:
    if not isinstance(said, Mapping):
        raise SpecError(f"{where} is {said!r}; write a mapping, such as {_EXAMPLE}")
    for key in said:
        if key not in _PARSERS:
            raise SpecError(f"{where} has {key!r}; {suggest(str(key), _PARSERS)}")
    if "command" not in said:
        raise SpecError(f"{where} has no command; write one, such as {_EXAMPLE}")
    typed = {key: _PARSERS[key](f"{where}.{key}", item) for key, item in said.items()}
    num_cpus = typed.get("cpus", 1.0)
    if num_cpus < 0:
        raise SpecError(f"{where}.cpus is {num_cpus:g}; need at least 0")
    if typed.get("memory") is not None and typed["memory"] < 1:
        raise SpecError(f"{where}.memory is {typed['memory']}; need at least 1 byte, such as 2GiB")
    return ExtraRole(
        name=role,
        command=typed["command"],
        num_tasks=typed.get("count", 1),
        resources=Resources(
            num_cpus=num_cpus,
            memory_bytes=typed.get("memory") or 0,
            custom=tuple(sorted(typed.get("resources", {}).items())),
        ),
    )


def _parse_command(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, str):
        written: tuple[str, ...] = values.texts(name, value)
        return written
    try:
        return tuple(shlex.split(value))
    except ValueError as error:
        raise SpecError(f"{name} is {value!r}: {error}; close the quotes, or write a list") from None


_PARSERS: Mapping[str, Callable[[str, object], Any]] = {
    "command": _parse_command,
    "count": values.whole_number,
    "cpus": values.number,
    "memory": values.optional(values.byte_size),
    "resources": values.amounts,
}
