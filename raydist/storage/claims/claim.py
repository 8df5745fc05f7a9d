"""Claim: who drives a run, as a file of the run's folder says it, and whether that still is so."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from raydist.spec.process import is_alive, is_this_host
from raydist.storage.plain_json import dump_plain_json
from raydist.storage.run_record import RunRecord

# A controller that lives replaces run.json every second, that of a large run every third one.
LIVES_WITHIN_S = 10.0
# From the claim to the first run.json: starts or joins a Ray, asks it what it has, packs the code.
BEGINS_WITHIN_S = 300.0
# What kill(2) takes, and what a date can be made of.
_MAX_PID = 2**31
_MAX_UNIX_S = 1e11


# The claims of this process by their ids. Its pid alone would not tell that a run of it has ended.
_held_here: set[str] = set()


def hold(id_: str) -> None:
    _held_here.add(id_)


def let_go(id_: str) -> None:
    _held_here.discard(id_)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One submit or resume of a run.

    Attributes:
      number: How many claims of the run there were before it. The highest one says who drives the run.
      id: Marks the submit or resume, also after Ray has brought back a detached run's controller.
      holder: The process, as raydist.spec.process describes it; with `actor` and `address` for a
        controller in a Ray.
      at_s: Unix time.
    """

    number: int
    id: str
    holder: Mapping[str, Any]
    at_s: float

    @classmethod
    def parse(cls, text: str, *, number: int) -> Claim:
        """Raises ValueError where `text` is no claim."""
        match json.loads(text):
            case {
                "id": str(id_),
                "holder": {"host": str(), "pid": int(pid)} as holder,
                "at_s": int() | float() as at_s,
            }:
                if 0 < pid < _MAX_PID and 0 <= at_s < _MAX_UNIX_S:
                    return cls(number=number, id=id_, holder={"start": None, **holder}, at_s=at_s)
        raise ValueError("it names no process")

    def dump(self) -> str:
        return dump_plain_json({"id": self.id, "holder": self.holder, "at_s": self.at_s}, indent=1)

    @property
    def is_detached(self) -> bool:
        return "actor" in self.holder

    @property
    def who(self) -> str:
        """For messages: the process, its host, and since when."""
        where = f", in the Ray at {self.holder.get('address')}," if self.is_detached else ""
        since = describe_time(self.at_s)
        return f"process {self.holder['pid']} of host {self.holder['host']}{where} since {since}"


def is_driven(claim: Claim | None, record: RunRecord | None, *, now_s: float) -> bool:
    """Whether somebody drives the run, or is about to.

    A process of this host is looked for. Of one elsewhere, and of a controller that Ray may bring back,
    run.json tells, and before there is one of this claim the time of the claim.

    Args:
      claim: The run's newest; None for a run of a raydist that made none.
      record: run.json; None where there is none.
      now_s: Unix time.
    """
    if claim is not None and record is not None and number_of(record) > claim.number:
        claim = None  # that of the record was given up
    begun = record if record is not None and is_of(claim, record) else None
    if begun is not None and begun.state.is_terminal:
        return False
    if claim is not None and not claim.is_detached and is_this_host(claim.holder):
        is_here = claim.holder["pid"] == os.getpid()
        return is_alive(claim.holder) and (not is_here or claim.id in _held_here)
    if begun is not None:
        return now_s - (begun.updated_at_s or 0.0) < LIVES_WITHIN_S
    return claim is not None and now_s - claim.at_s < BEGINS_WITHIN_S


def is_of(claim: Claim | None, record: RunRecord) -> bool:
    """Whether the holder of the claim has written the record, and not the holder of an earlier one."""
    return claim is None or number_of(record) == claim.number


def number_of(record: RunRecord) -> int:
    """Returns the number of the claim that a record was written under; -1 for one of an older raydist."""
    return -1 if record.claim is None else record.claim


def describe_time(at_s: float) -> str:
    """Returns a Unix time as people write it, in this host's time zone."""
    return datetime.fromtimestamp(at_s).astimezone().isoformat(sep=" ", timespec="seconds")
