"""What a driver sends to the process that watches over it: JSON lines through a pipe."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class DrivenRun:
    """What has to be known of a run to clear up after the process that drove it.

    Attributes:
      storage: The storage that holds the runs, absolute.
      owner: Marks what the run's tasks leave on their hosts (runtime.host.leftovers).
      driver: The process, as raydist.storage.claims describes it and run.json contains it.
      session: The embedded Ray's folder; None for a Ray that is not the run's own.
      is_study: Whether it is a search, whose runs others drive, and `name` the study's.
    """

    name: str
    storage: str
    owner: str
    driver: Mapping[str, Any]
    session: str | None = None
    is_study: bool = False


@dataclass(frozen=True, kw_only=True)
class DriverFacts:
    """What a driver has sent so far.

    Attributes:
      run: The run that it drives; None before it begins, and once it is over.
      has_begun: Whether it has begun a run.
      exit_code: What the command ends with; None until it is done.
    """

    run: DrivenRun | None = None
    has_begun: bool = False
    exit_code: int | None = None

    @property
    def is_over(self) -> bool:
        return self.has_begun and self.run is None

    @classmethod
    def of(cls, data: bytes) -> DriverFacts:
        """Reads what came through the pipe; a line that was cut off is left out."""
        facts = cls()
        for line in data.splitlines(keepends=True):
            if line.endswith(b"\n"):
                facts = facts._with(json.loads(line))
        return facts

    def _with(self, message: Mapping[str, Any]) -> DriverFacts:
        if "exit_code" in message:
            return dataclasses.replace(self, exit_code=message["exit_code"])
        run = None if message["run"] is None else DrivenRun(**message["run"])
        return dataclasses.replace(self, run=run, has_begun=True)


def begun(run: DrivenRun) -> bytes:
    return _line({"run": dataclasses.asdict(run)})


def over() -> bytes:
    return _line({"run": None})


def exiting(exit_code: int) -> bytes:
    return _line({"exit_code": exit_code})


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"
