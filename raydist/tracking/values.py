"""What another tool is told of a run's metrics: each global value once, as soon as it is on storage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raydist.errors import StorageError
from raydist.metrics.reading import read_new
from raydist.metrics.records import Scope
from raydist.storage.run_storage import RunStorage

_EVALUATOR = "evaluator/"


@dataclass(frozen=True, kw_only=True)
class Value:
    """A value that holds for the whole run.

    Attributes:
      source: Whose it is, such as `0 chief/0`: the attempt and the task.
      name: As it was reported; an evaluator's begins with `evaluator/`.
      wall_time: Unix time, seconds.
    """

    source: str
    name: str
    value: float
    step: int
    wall_time: float


class NewValues:
    """Reads the values that have not been taken yet, each file of them once.

    Attributes:
      taken: By source, the time of the newest value that was taken. What one report holds has one time.
      damages: Sentences about files that cannot be read.
    """

    def __init__(self, storage: RunStorage, *, taken: Mapping[str, float]) -> None:
        self._storage = storage
        self._files: frozenset[str] = frozenset()
        self._waiting: list[Value] = []
        self.taken = dict(taken)
        self.damages: list[str] = []

    def read(self) -> list[Value]:
        """Returns all values that are not taken, the oldest first; raises StorageError."""
        found = read_new(
            self._storage, scope=Scope.GLOBAL, known=self._files, on_damage=lambda e: self._damaged(e)
        )
        newest = dict(self.taken)
        for value in self._waiting:
            newest[value.source] = max(newest.get(value.source, 0.0), value.wall_time)
        # Files are joined: what is older is there again.
        new = [value for value in map(_value, found.rows) if value.wall_time > newest.get(value.source, 0.0)]
        self._files = found.files
        self._waiting = sorted([*self._waiting, *_once(new)], key=lambda value: value.wall_time)
        return list(self._waiting)

    def take(self, count: int) -> None:
        """Notes that the first `count` of what `read` returned have been told."""
        for value in self._waiting[:count]:
            self.taken[value.source] = max(self.taken.get(value.source, 0.0), value.wall_time)
        del self._waiting[:count]

    def _damaged(self, error: StorageError) -> None:
        self.damages.append(str(error))


def _value(row: Mapping[str, object]) -> Value:
    task, name = str(row["task"]), str(row["name"])
    return Value(
        source=f"{row['attempt']} {task}",
        name=_EVALUATOR + name if task.startswith(_EVALUATOR) else name,
        value=float(row["value"]),  # type: ignore[arg-type]
        step=int(row["step"]),  # type: ignore[call-overload]
        wall_time=float(row["wall_time"]),  # type: ignore[arg-type]
    )


def _once(values: list[Value]) -> list[Value]:
    """Returns the values without those that a file and the one that took its place both have."""
    return list(dict.fromkeys(values))
