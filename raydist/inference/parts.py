"""Parts: how an input is cut. The predictions of a part are one file, written whole or not at all."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from raydist.errors import MistakeError

# Readers of Parquet skip files whose names begin with `_`.
MANIFEST = "_raydist.json"
_VERSION = 3


@dataclass(frozen=True, kw_only=True)
class Part:
    """Some consecutive units of the input: row groups, groups of records, or pictures.

    Attributes:
      first: The first unit.
      end: The unit after the last.
      num_rows: Of all its units.
      to: The format of its file, which is the ending of its name.
    """

    number: int
    first: int
    end: int
    num_rows: int
    to: str = "parquet"

    @property
    def name(self) -> str:
        """The name of the file with its predictions."""
        return f"part-{self.number:06d}.{self.to}"


def cut(rows: Sequence[int], files: Sequence[int], *, most_rows: int, to: str = "parquet") -> list[Part]:
    """Returns the parts of units with so many rows each, in these files; the same for the same input.

    No part has units of two files, or more than `most_rows` rows unless one unit has.
    """
    parts: list[Part] = []
    first, num_rows = 0, 0
    for unit, (size, file) in enumerate(zip(rows, files, strict=True)):
        if unit > first and (file != files[first] or num_rows + size > most_rows):
            parts.append(Part(number=len(parts), first=first, end=unit, num_rows=num_rows, to=to))
            first, num_rows = unit, 0
        num_rows += size
    if len(rows):
        parts.append(Part(number=len(parts), first=first, end=len(rows), num_rows=num_rows, to=to))
    return parts


def missing(parts: Iterable[Part], names: Iterable[str]) -> list[Part]:
    """Returns the parts that have no file among those names."""
    written = set(names)
    return [part for part in parts if part.name not in written]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What the predictions in a folder were made of; stored beside them as `_raydist.json`.

    Attributes:
      model: A number for the exported model's graph and weights.
      data: A number for the names, sizes and times of change of the input files.
      features: The columns that are stacked to the model's only input; None where inputs are columns.
      copy: The columns that are copied; None for all that are not features.
      to: The format of the predictions.
      delimiter: Of CSV; None for a comma.
    """

    run: str
    model: str
    data: int
    format: str
    to: str
    features: tuple[str, ...] | None
    copy: tuple[str, ...] | None
    num_parts: int
    num_rows: int
    delimiter: str | None = None

    def as_json(self) -> str:
        return json.dumps({"version": _VERSION, **dataclasses.asdict(self)}, indent=2) + "\n"

    def check_same(self, stored: str, *, uri: str) -> None:
        """Raises MistakeError where a stored manifest is that of other predictions."""
        try:
            found: dict[str, Any] = dict(json.loads(stored))
        except (ValueError, TypeError) as error:
            raise MistakeError(f"{uri} is damaged; give another -o, or delete the folder") from error
        wanted = json.loads(self.as_json())
        for name, value in wanted.items():
            if found.get(name) == value:
                continue
            difference = (
                "since then a file of the data was written, added or deleted"
                if name == "data"
                else f"{name} was {found.get(name)!r}, and is {value!r}"
            )
            raise MistakeError(
                f"{uri} is that of other predictions: {difference}; give another -o, or delete the folder"
            )
