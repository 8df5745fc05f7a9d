"""What a role's tasks ask for: `--cpus worker=4`, and `resources: {worker: {cpus: 4}}` in YAML and Python.

Roles of the user's own, which `roles` declares, use the same words.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypedDict

from raydist.errors import SpecError
from raydist.spec.quantities import ByteSize, write_number
from raydist.spec.settings import values
from raydist.spec.tasks import ExtraRole, Resources, TaskResources, TaskType
from raydist.spec.text import suggest

RESOURCES = "resources"
NAMES = tuple(member.value for member in TaskType)
WITH_GPUS = (TaskType.WORKER.value, TaskType.EVALUATOR.value)
# What a value of the command line is for that names no role.
_UNNAMED = {"gpus": (TaskType.WORKER.value,)}
_TRAINING = tuple(name for name in NAMES if name != TaskType.DATA_WORKER.value)

RoleSettings = Mapping[str, Mapping[str, Any]]  # typed, by role and amount; only what was set


class Amounts(TypedDict, total=False):
    """What each task of a role asks for."""

    cpus: float
    memory: ByteSize | None
    gpus: int | None
    resources: Mapping[str, float]


def amount_name(role: str, amount: str) -> str:
    """Returns `worker.cpus`, for messages and as the key of where the amount was set."""
    return f"{role}.{amount}"


def _at_least(lowest: int, parser: values.Parser) -> Callable[[str, object], Any]:
    def parse(name: str, value: object) -> Any:
        amount = parser(name, value)
        if amount is not None and amount < lowest:
            raise SpecError(f"{name} is {amount:g}; need at least {lowest}")
        return amount

    return parse


AMOUNTS: Mapping[str, Callable[[str, object], Any]] = {
    "cpus": _at_least(0, values.number),
    "memory": _at_least(1, values.optional(values.byte_size, none="none")),
    "gpus": _at_least(0, values.optional(values.whole_number, none="auto")),
    "resources": values.amounts,
}
EXAMPLE = "{worker: {cpus: 4, memory: 8GiB}}"


def _parse_resources(name: str, value: object) -> dict[str, dict[str, Any]]:
    """Takes a mapping from roles to amounts."""
    if not isinstance(value, Mapping):
        raise SpecError(f"{name} is {value!r}; write a mapping, such as {EXAMPLE}")
    return {_role(name, role): _parse_amounts(name, role, amounts) for role, amounts in value.items()}


def _role(name: str, role: object) -> str:
    if role not in NAMES:
        near = suggest(str(role), NAMES)
        raise SpecError(f"{name} has {str(role)!r}, but there is no role {str(role)!r}; {near}")
    return str(role)


def _parse_amounts(name: str, role: str, amounts: object) -> dict[str, Any]:
    if not isinstance(amounts, Mapping):
        raise SpecError(f"{name}.{role} is {amounts!r}; write a mapping, such as {{cpus: 4}}")
    for amount in amounts:
        if amount not in AMOUNTS:
            raise SpecError(f"{name}.{role} has {amount!r}; {suggest(str(amount), AMOUNTS)}")
    typed = {amount: AMOUNTS[amount](amount_name(role, amount), value) for amount, value in amounts.items()}
    if typed.get("gpus") and role not in WITH_GPUS:
        raise SpecError(f"{role}.gpus is {typed['gpus']}; only {' and '.join(WITH_GPUS)} use GPUs")
    return typed


resources = values.Parser(_parse_resources, Mapping[str, Amounts])


def merged(*layers: RoleSettings) -> dict[str, dict[str, Any]]:
    """Returns what the layers say together: for each amount of a role what the last one says."""
    found: dict[str, dict[str, Any]] = {}
    for layer in layers:
        for role, amounts in layer.items():
            found[role] = {**found.get(role, {}), **amounts}
    return found


def by_name(settings: RoleSettings) -> dict[str, Any]:
    """Returns the amounts as `{"worker.cpus": 4}`."""
    return {
        amount_name(role, amount): value
        for role, amounts in settings.items()
        for amount, value in amounts.items()
    }


def settings_of(texts: Mapping[str, Sequence[str]]) -> dict[str, dict[str, Any]]:
    """Returns what the command line's texts, `{"cpus": ["worker=4"]}`, set; the amounts are not read yet.

    A text without a role is for each role that trains, and gives way to one with a role.

    Raises:
      SpecError: A text names no role, or its resource has no amount.
    """
    found: dict[str, dict[str, Any]] = {}
    for amount, given in texts.items():
        parted = [_parted(amount, text) for text in given]
        for is_named in (False, True):
            layer: dict[str, Any] = {}
            for role, value in parted:
                if (role is not None) is is_named:
                    for one in _UNNAMED.get(amount, _TRAINING) if role is None else [role]:
                        layer[one] = {**layer.get(one, {}), **value} if amount == RESOURCES else value
            found = merged(found, {role: {amount: value} for role, value in layer.items()})
    return found


def _parted(amount: str, text: str) -> tuple[str | None, Any]:
    role, equals, value = text.rpartition("=")
    if equals:
        _role(f"--{amount}", role)
    if amount != RESOURCES:
        return role or None, value
    if value == "none":  # takes back what the config or the job says
        return role or None, {}
    name, colon, number = value.rpartition(":")
    if not (colon and name):
        raise SpecError(f"--{amount} is {text!r}; write ROLE=KEY:N, such as worker=ssd:1")
    return role or None, {name: number}


def words_of(settings: RoleSettings, *, defaults: RoleSettings | None) -> Iterator[str]:
    """Yields the command line's words for `settings`, without what is as in `defaults` or built in.

    Args:
      defaults: None where they are not known, so all are written.
    """
    for amount in AMOUNTS:
        for role in NAMES:
            value = settings.get(role, {}).get(amount, _BUILT_IN[amount])
            default = None if defaults is None else defaults.get(role, {}).get(amount, _BUILT_IN[amount])
            if amount in settings.get(role, {}) and (defaults is None or value != default):
                for text in _written(amount, value):
                    yield from (f"--{amount}", f"{role}={text}")


_BUILT_IN = vars(TaskResources())


def set_amounts(settings: RoleSettings) -> dict[str, dict[str, Any]]:
    """Returns the amounts that differ from what is built in, by role."""
    found = {
        role: {amount: value for amount, value in amounts.items() if value != _BUILT_IN.get(amount)}
        for role, amounts in settings.items()
    }
    return {role: amounts for role, amounts in found.items() if amounts}


def _written(amount: str, value: Any) -> list[str]:
    if amount == RESOURCES:
        return [f"{name}:{write_number(number)}" for name, number in value.items()] or ["none"]
    if value is None:
        return ["auto" if amount == "gpus" else "none"]
    return [write_number(value)]


_EXTRA_EXAMPLE = "features: {command: python serve.py, cpus: 1}"


def _parse_roles(name: str, value: object) -> dict[str, ExtraRole]:
    """Takes a mapping from each role's name to its command and what else is set."""
    if not isinstance(value, Mapping):
        raise SpecError(f"{name} is {value!r}; write a mapping, such as {_EXTRA_EXAMPLE}")
    return {str(role): _parse_role(f"{name}.{role}", str(role), said) for role, said in value.items()}


extra_roles = values.Parser(_parse_roles, Mapping[str, Mapping[str, Any]])


def _parse_role(where: str, role: str, said: object) -> ExtraRole:
    if not isinstance(said, Mapping):
        raise SpecError(f"{where} is {said!r}; write a mapping, such as {_EXTRA_EXAMPLE}")
    for key in said:
        if key not in _OF_EXTRA_ROLES:
            raise SpecError(f"{where} has {key!r}; {suggest(str(key), _OF_EXTRA_ROLES)}")
    if "command" not in said:
        raise SpecError(f"{where} has no command; write one, such as {_EXTRA_EXAMPLE}")
    typed = {key: _OF_EXTRA_ROLES[key](f"{where}.{key}", item) for key, item in said.items()}
    return ExtraRole(
        name=role,
        command=typed["command"],
        num_tasks=typed.get("count", 1),
        resources=Resources(
            num_cpus=typed.get("cpus", 1.0),
            num_gpus=typed.get("gpus", 0),
            memory_bytes=typed.get("memory") or 0,
            custom=tuple(sorted(typed.get("resources", {}).items())),
        ),
        may_fail=typed.get("may_fail", False),
    )


def _parse_command(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, str):
        return tuple(values.texts(name, value))
    try:
        return tuple(shlex.split(value))
    except ValueError as error:
        raise SpecError(f"{name} is {value!r}: {error}; close the quotes, or write a list") from None


_OF_EXTRA_ROLES: Mapping[str, Callable[[str, object], Any]] = {
    "command": _parse_command,
    "count": values.whole_number,
    **AMOUNTS,
    "gpus": _at_least(0, values.whole_number),  # `auto` is for those that train
    "may_fail": values.boolean,
}
