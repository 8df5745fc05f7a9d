"""What somebody writes into a storage who wants to do harm, by the schema of what raydist keeps there.

Values have the types that raydist expects, so that they get as far as they can, or others. Each draw comes
from a seeded `random.Random`.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import functools
import json
import random
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from isal import isal_zlib

from raydist.errors import SpecError
from raydist.outcome.codec import nan_where_null
from raydist.outcome.result import Pid
from raydist.planning.describe import describe_job, describe_plan
from raydist.spec.tasks import TaskId
from raydist.storage.claims import this_process
from raydist.storage.run_record import RunRecord, Time
from tests.support.fakes import make_plan
from tests.support.page_runs import events

RUN_TAGS = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
CONTROLS = "\x1b]0;pwn\x07\x1b[2J\x9b31m\u202eevil\x08\x7f\r"
INTEGERS = (0, -1, 1, 3, 2**31 - 1, 2**53 + 1, 2**63, 10**30)
NUMBERS = (*INTEGERS, 0.5, -0.0, 1e308, -1e308, 5e-324, float("inf"), float("-inf"), float("nan"))
WRONG: tuple[Any, ...] = (
    *(None, True, "", "x", [], {}, [None], {"a": None}, [[]], [{}], "\ud800", 10**400, -(10**400)),
    *(
        functools.reduce(lambda inner, _: [inner], range(150), []),
        {RUN_TAGS: RUN_TAGS},
        {"$array": {"dtype": "float64", "shape": [2**40], "base64": ""}},
        *NUMBERS,
    ),
)
KINDS = (
    *("state", "task", "task_failed", "task_back", "task_given_up", "restarting", "restarted", "attempt"),
    *("checkpoint", "straggler", "training", "planned", "note", "progress", "report"),
)
Place = tuple[str | int, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Traps:
    """What tells that something of a storage was executed, joined, followed or signalled.

    Attributes:
      folder: Outside of the storage; `secret` is a file in it, and `canary` is made by whatever is executed.
      address: `host:port` of a socket that listens.
      pid: Of a process that is none of the run's.
    """

    folder: Path
    address: str = "127.0.0.1:9"
    pid: int = 1

    @property
    def secret(self) -> Path:
        return self.folder / "secret"

    @property
    def canary(self) -> Path:
        return self.folder / "canary"

    @property
    def program(self) -> str:
        """Python that makes the canary."""
        return f"open({str(self.canary)!r}, 'a').write('executed')\n"

    @functools.cached_property
    def texts(self) -> tuple[str, ...]:
        touch = f"touch {self.canary}"
        return (
            *(f"$({touch})`{touch}`; {touch} #", f"x\n{touch}\n{touch} &", f"'; {touch}; '", f'";{touch};"'),
            *(
                f"__import__('os').system({touch!r})",
                "%s%n{0}{x!r}",
                "",
                " ",
                "-rf",
                "--help",
                "@latest",
                "a/b",
            ),
            *(RUN_TAGS, CONTROLS, "null\0byte", "x" * 200, "/a" * 60, "a://x" * 40, "worker/0"),
            *("../" * 12 + str(self.secret).lstrip("/"), str(self.secret), f"file://{self.secret}", ".."),
            *(self.address, f"ray://{self.address}", f"http://{self.address}/x", f"sqlite:///{self.canary}"),
            f"s3://b/k?endpoint_override={self.address}&scheme=http&region=x",
        )


class Hostile:
    """Draws hostile values."""

    def __init__(self, draw: random.Random, traps: Traps) -> None:
        self.draw = draw
        self.traps = traps

    def of(self, hint: Any, name: str = "") -> Any:
        """Returns a plain value of the type that a hint says; of some fields, by their names, a trap."""
        origin, inner = typing.get_origin(hint), typing.get_args(hint)
        if hint == Pid:
            return self.traps.pid
        if hint == Time:
            return self.draw.choice((0.0, 1.7e9, 4.0e9, 2.5e11))
        if name in ("address", "host") and self.draw.random() < 0.7:
            return self.traps.address if name == "address" else "127.0.0.1"
        if hint is Any:
            return self.any()
        if hint is TaskId:
            return self.draw.choice(("worker/0", "worker/1", "chief/0", "worker/999999", "evaluator/0"))
        if isinstance(hint, type) and issubclass(hint, enum.Enum):
            return self.draw.choice(list(hint)).value
        if dataclasses.is_dataclass(hint) or typing.is_typeddict(hint):
            return self._fields(hint)
        if origin in (typing.Union, types.UnionType):
            return self.of(self.draw.choice(inner), name)
        if origin is typing.Annotated:
            return self._checked(inner[0], [one for one in inner[1:] if one is not nan_where_null], name)
        if origin is not None and origin.__name__ in ("NotRequired", "Required"):
            return self.of(inner[0], name)
        if origin is tuple:
            return [self.of(inner[0], name) for _ in range(self.draw.randint(0, 3))]
        if origin in (dict, collections.abc.Mapping):
            return {self.text(): self.of(inner[1], name) for _ in range(self.draw.randint(0, 3))}
        return self._scalar(hint)

    def _checked(self, hint: Any, checks: Sequence[Any], name: str) -> Any:
        for _ in range(50):
            found = self.of(hint, name)
            try:
                for check in checks:
                    check(found)
                return found
            except (ValueError, SpecError):
                continue
        raise AssertionError(f"no value of {name} passes {checks}")

    def _fields(self, hint: Any) -> dict[str, Any]:
        hints = typing.get_type_hints(hint, include_extras=True)
        if dataclasses.is_dataclass(hint):
            keys = {
                field.metadata.get("key", field.name): hints[field.name]
                for field in dataclasses.fields(hint)
                if field.metadata.get("is_kept", True)
            }
        else:
            keys = hints
        return {key: self.of(inner, key) for key, inner in keys.items()}

    def _scalar(self, hint: Any) -> Any:
        if hint is str:
            return self.text()
        if hint is bool:
            return self.draw.random() < 0.5
        if hint is int:
            return self.draw.choice(INTEGERS)
        return self.draw.choice(NUMBERS) if hint is float else None

    def text(self) -> str:
        return self.draw.choice(self.traps.texts)

    def any(self) -> Any:
        return self.draw.choice(
            (self.text(), self.draw.choice(NUMBERS), [self.text()], {self.text(): self.text()})
        )

    def like(self, value: Any) -> Any:
        """Returns a value of the same shape with other scalars."""
        match value:
            case dict():
                return {key: self.like(item) for key, item in value.items()}
            case list() | tuple():
                return [self.like(item) for item in value]
            case str():
                return self.text()
            case bool() | None:
                return self.draw.choice((True, False, None, self.text()))
            case _:
                return self.draw.choice(NUMBERS)

    def damaged(self, value: Any) -> Any:
        """Returns the same with something else in one place."""
        places = [place for place in _places(value) if place]
        if not places:
            return self.draw.choice(WRONG)
        return _with(value, self.draw.choice(places), self.draw.choice(WRONG))

    def record(self) -> dict[str, Any]:
        """Returns a run.json, all of whose values have the types that they should have."""
        found = self.of(RunRecord)
        plan = make_plan(working_dir=str(self.traps.folder), params={"epochs": 3})
        options = json.loads(json.dumps(describe_job(plan.job), default=str))
        options |= {"on_end": None, "mlflow": None, "env_file": None, "study": "s", "args": ["a"]}
        found["spec"] = {**self.like(options), **found["spec"], "study": "s"}
        found["plan"] = self.like(json.loads(json.dumps(describe_plan(plan), default=str)))
        found["driver"] = self.draw.choice((None, self.process(), {**self.process(), **self.in_ray()}))
        return found

    def process(self) -> dict[str, Any]:
        """Returns a claim's or a record's word for the process that is none of the run's."""
        return {**this_process(), "pid": self.traps.pid, "start": _start_of(self.traps.pid)}

    def in_ray(self) -> dict[str, Any]:
        return {"actor": self.text(), "address": self.traps.address, "id": self.text()}

    def events(self, num: int = 40) -> Iterator[Any]:
        """Yields events: of each kind with the fields of all, and some that are damaged."""
        fields: dict[str, Any] = {}
        for event in events():
            fields |= event
        fields |= {"error": {"type": "T", "message": "m", "task": "worker/0"}, "to": 1, "checkpoint": "/c"}
        for number in range(num):
            event = self.like({key: fields[key] for key in self.draw.sample(sorted(fields), 8)})
            at_s = self.draw.choice((1.7e9 + number, 1.7e9 + number, *NUMBERS))
            event |= {"event": self.draw.choice(KINDS), "at_s": at_s, "attempt": self.draw.choice((0, 1, 7))}
            if self.draw.random() < 0.7:
                event |= {"task": "worker/0", "state": self.draw.choice(("RUNNING", "STARTING", "FAILED"))}
            yield self.damaged(event) if self.draw.random() < 0.3 else event

    def marker(self, *, step: int, attempt: int) -> bytes:
        """Returns the commit marker of a checkpoint, with the checksum that it should have."""
        names = ("state.json", "variables.npz", "../../../secret", str(self.traps.secret), self.text())
        files = {name: {"size_bytes": self.draw.choice(INTEGERS), "crc32": 0} for name in names[:2]}
        if self.draw.random() < 0.3:
            files[self.draw.choice(names)] = {"size_bytes": 1, "crc32": 0}
        info = {"epoch": 1, "digest": "d", "metrics": {"loss": 0.5}}
        marker = {"step": step, "attempt": attempt, "files": files, "info": self.like(info)}
        if self.draw.random() < 0.5:
            marker = {**marker, **self.damaged({"files": files, "info": info})}
        text = json.dumps(marker, sort_keys=True, separators=(",", ":"))
        return json.dumps({**marker, "crc32": isal_zlib.crc32(text.encode())}).encode()


def dump(value: Any) -> bytes:
    """Returns JSON as Python writes it, with NaN, infinities and halves of characters."""
    return json.dumps(value).encode()


def _places(value: Any, place: Place = ()) -> Iterator[Place]:
    yield place
    items: Sequence[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    for key, item in items:
        yield from _places(item, (*place, key))


def _with(value: Any, place: Place, other: Any) -> Any:
    if not place:
        return other
    first, *rest = place
    changed = dict(value) if isinstance(value, Mapping) else list(value)
    changed[first] = _with(value[first], tuple(rest), other)  # type: ignore[index]
    return changed


def _start_of(pid: int) -> int | None:
    stat = Path(f"/proc/{pid}/stat")
    return int(stat.read_text().rpartition(")")[2].split()[19]) if stat.exists() else None
