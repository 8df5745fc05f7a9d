"""Compares the checkpoints of two runs bit by bit: which step, and which variable of it, differs first."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from raydist.errors import MistakeError
from raydist.storage.checkpoint_marker import ARRAYS_NAME, INDEX_NAME, REPLICAS, Checkpoint

Files = Mapping[str, bytes]

# Options of older runs that decided bits, and the values that every run has now.
_NOW = {"reduce_order": "fixed", "threads_per_replica": 1, "sum_embedding_rows": False}


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Where the variables of two runs differ first.

    Attributes:
      variable: Name of the first variable that differs; None if only one of the runs has the step.
      key: Where it stands in the checkpoint, such as `model/00002`; names may occur twice.
      replicas: The virtual replicas whose own value differs; empty for a variable that exists once.
    """

    step: int
    variable: str | None = None
    key: str | None = None
    replicas: tuple[int, ...] = ()

    def __str__(self) -> str:
        if self.variable is None:
            return f"step {self.step}, which only one of them has"
        where = f"step {self.step}, variable {self.variable} ({self.key})"
        if not self.replicas:
            return where
        numbers = ", ".join(map(str, self.replicas))
        return f"{where} of virtual replica{'s' if len(self.replicas) > 1 else ''} {numbers}"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How two runs compare.

    Attributes:
      steps: The steps that were compared and are equal, in order.
      difference: The first difference after them; None if there is none.
    """

    steps: tuple[int, ...]
    difference: Difference | None = None


def check_can_verify(run: str, spec: Mapping[str, Any], *, workers: int) -> None:
    """Raises MistakeError if the run's results may depend on the number of workers, or it has no such number.

    Args:
      spec: What the run was started with, from its record.
    """
    replicas = spec.get("virtual_replicas")
    if replicas is None:
        raise MistakeError(
            f"run {run} has no virtual replicas, so the bits of its results depend on the number of workers; "
            "train it with --virtual-replicas K to have the same bits for any number"
        )
    for name, value in _NOW.items():
        if spec.get(name, value) != value:
            raise MistakeError(
                f"run {run} had {name} {spec[name]}, which this raydist no longer has, so its bits cannot be "
                "repeated; train it again"
            )
    if not spec.get("entry_point", {}).get("function"):
        raise MistakeError(
            f"run {run} is a script, which saves no checkpoint after each step; verify a job with a function "
            "that takes ctx"
        )
    if workers > replicas:
        raise MistakeError(
            f"workers is {workers}, but run {run} has {replicas} virtual replicas, and each worker computes "
            f"at least one; use --verify {replicas} or fewer"
        )


def by_step(checkpoints: Iterable[Checkpoint], *, first: int, last: int) -> dict[int, Checkpoint]:
    """Returns the checkpoints of the steps `first` to `last`, of each step that of the highest attempt."""
    wanted = (one for one in checkpoints if first <= one.step <= last)
    return {one.step: one for one in sorted(wanted, key=lambda one: (one.step, one.attempt))}


def compare(
    one: Mapping[int, Checkpoint],
    other: Mapping[int, Checkpoint],
    *,
    read_one: Callable[[Checkpoint], Files],
    read_other: Callable[[Checkpoint], Files],
    is_partial: bool = False,
) -> Comparison:
    """Returns how the checkpoints of two runs compare, step by step up to the first difference.

    Args:
      read_one, read_other: Return a checkpoint's files.
      is_partial: Whether a step that only one of them has is left out; else it is a difference.
    """
    equal: list[int] = []
    for step in sorted({*one, *other}):
        if step in one and step in other:
            difference = first_difference(read_one(one[step]), read_other(other[step]), step=step)
        elif is_partial:
            continue
        else:
            difference = Difference(step=step)
        if difference is not None:
            return Comparison(steps=tuple(equal), difference=difference)
        equal.append(step)
    return Comparison(steps=tuple(equal))


def first_difference(one: Files, other: Files, *, step: int) -> Difference | None:
    """Returns the first variable whose type, shape or bytes differ in two checkpoints; None without one.

    They are compared in the order in which Keras lists them. If each virtual replica has a value of a
    variable, these values come before their sum or mean.
    """
    indices = [{entry["key"]: entry for entry in json.loads(files[INDEX_NAME])} for files in (one, other)]
    if indices[0] == indices[1] and one[ARRAYS_NAME] == other[ARRAYS_NAME]:
        return None
    with _arrays(one) as arrays, _arrays(other) as other_arrays:
        for key in _in_order({**indices[0], **indices[1]}):
            entries = [index[key] for index in indices if key in index]
            found = Difference(step=step, variable=entries[0]["name"], key=key.removeprefix(REPLICAS))
            if len({(*entry["shape"], entry["dtype"]) for entry in entries}) != 1 or len(entries) < 2:
                return found
            num_rows = entries[0]["shape"][0] if key.startswith(REPLICAS) else 1
            rows = _differing_rows(arrays[key], other_arrays[key], num_rows)
            if rows:
                return dataclasses.replace(found, replicas=rows) if key.startswith(REPLICAS) else found
    return None


def _arrays(files: Files) -> Any:
    return np.load(io.BytesIO(files[ARRAYS_NAME]), allow_pickle=False)


def _in_order(keys: Iterable[str]) -> list[str]:
    """Returns the keys with that of the replicas' own values before that of their variable."""
    known = set(keys)
    own = [key for key in keys if not key.startswith(REPLICAS)]
    pairs = [(f"{REPLICAS}{key}", key) for key in own]
    return [key for pair in pairs for key in pair if key in known]


def _differing_rows(one: np.ndarray, other: np.ndarray, num_rows: int) -> tuple[int, ...]:
    # Bytes, because NaN differs from itself, and -0.0 does not from 0.0.
    bytes_of = [np.ascontiguousarray(array).reshape(num_rows, -1).view(np.uint8) for array in (one, other)]
    return tuple(np.flatnonzero((bytes_of[0] != bytes_of[1]).any(axis=1)).tolist())
