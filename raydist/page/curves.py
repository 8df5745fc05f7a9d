"""A run's curves as its page takes them: thinned to what a page can hold, and packed."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from isal import isal_zlib

from raydist.metrics.curves import Series, thinned
from raydist.outcome.status import Scope
from raydist.stragglers.step_times import find_stragglers

Numbers = npt.NDArray[Any]

_ALIGNMENT = 8  # what a typed array of JavaScript needs of its offset
_MAX_INT32 = 2**31 - 1
_LEVEL = 1  # half the size of level 0 for steps; the values themselves hardly get smaller


class Packer:
    """Puts arrays one behind the other; equal ones once.

    What `add` returns is what page.js reads: `{"t": "f4", "o": offset, "n": length}`. `d4` are 32-bit
    differences from one number to the next, the first from 0.
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._known: dict[bytes, dict[str, Any]] = {}

    def add_integers(self, numbers: Numbers) -> dict[str, Any]:
        """Adds integers, exact below 2**53."""
        differences = np.diff(numbers.astype(np.int64), prepend=0)
        if len(numbers) and np.abs(differences).max() > _MAX_INT32:
            return self._add("f8", numbers.astype("<f8").tobytes(), len(numbers))
        return self._add("d4", differences.astype("<i4").tobytes(), len(numbers))

    def add_floats(self, numbers: Numbers) -> dict[str, Any]:
        """Adds numbers with 7 digits, or with all where they do not fit into 32 bits."""
        finite = np.abs(numbers[np.isfinite(numbers) & (numbers != 0)])
        fits = not len(finite) or (finite.max() < np.finfo("f4").max and finite.min() > 1e-37)
        kind = "f4" if fits else "f8"
        return self._add(kind, numbers.astype(f"<{kind}").tobytes(), len(numbers))

    def packed(self) -> str:
        """Returns everything that was added: zlib, in base64."""
        return base64.b64encode(isal_zlib.compress(b"".join(self._parts), _LEVEL)).decode()

    def _add(self, kind: str, content: bytes, length: int) -> dict[str, Any]:
        key = kind.encode() + content
        if key not in self._known:
            self._known[key] = {"t": kind, "o": self._size, "n": length}
            padding = bytes(-len(content) % _ALIGNMENT)
            self._parts += [content, padding]
            self._size += len(content) + len(padding)
        return self._known[key]


STEP_TIME = "step_time"
INPUT_WAIT = "input_wait"
COLLECTIVE_WAIT = "collective_wait"
_OF_WORKERS = (STEP_TIME, INPUT_WAIT, COLLECTIVE_WAIT)
# Times are whole numbers of these: they are small then, and compress well.
_TICKS_PER_S = 100
# A task's step time and waits are told of its last reports: what the first steps took is over.
_RECENT = 50
_MAX_SECONDS = 1e9


def with_step_times(series: Sequence[Series]) -> list[Series]:
    """Returns them with the seconds that a step took each task, between one report and the next."""
    longest: dict[str, Series] = {}
    for one in series:
        if one.scope is Scope.LOCAL and not one.is_repeated and len(one) > len(longest.get(one.task, ())):
            longest[one.task] = one
    return [*series, *filter(len, map(_step_times, longest.values()))]


def pack_curves(series: Iterable[Series], *, num_points: int) -> dict[str, Any]:
    """Returns the curves with about `num_points` points in all, as page.js reads them."""
    whole = list(series)
    total = sum(map(len, whole))
    share = min(1.0, num_points / total) if total else 1.0
    begun_s = min((float(one.times.min()) for one in whole), default=0.0)
    packer = Packer()
    packed = []
    for one in whole:
        shown = thinned(one, num_points=max(4, int(share * len(one))))
        packed.append(
            {
                "scope": one.scope.value,
                "name": one.name,
                "task": one.task,
                "attempt": int(one.attempts[0]) if one.is_repeated else None,
                "whole": len(one),
                "odd": int(np.count_nonzero(~np.isfinite(one.values))),
                "step": packer.add_integers(shown.steps),
                "time": packer.add_integers(np.round((shown.times - begun_s) * _TICKS_PER_S)),
                "value": packer.add_floats(shown.values),
            }
        )
    return {
        "points": total,
        "begun_s": begun_s,
        "ticks_per_s": _TICKS_PER_S,
        "series": packed,
        "blob": packer.packed(),
    }


def attempt_starts(series: Iterable[Series]) -> list[dict[str, Any]]:
    """Returns the first step that each attempt's values are of, and when that was reported."""
    firsts: dict[int, tuple[int, float]] = {}
    for one in series:
        if one.is_repeated:
            continue
        found, at = np.unique(one.attempts, return_index=True)
        for attempt, step, time in zip(found.tolist(), one.steps[at], one.times[at], strict=True):
            firsts[attempt] = min(firsts.get(attempt, (int(step), float(time))), (int(step), float(time)))
    return [
        {"attempt": number, "step": step, "at_s": at_s} for number, (step, at_s) in sorted(firsts.items())
    ]


def later_trainings(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns where each training of a run but the first one begins.

    Of one that began again in a later attempt, where it did last. An event of another shape is skipped.
    """
    found: dict[str, int] = {}
    for event in events:
        match event:
            case {"event": "training", "kind": str(kind), "number": int(number), "step": int(step)}:
                found[f"{kind} {number}"] = step
    return [{"name": name, "step": step} for name, step in list(found.items())[1:]]


def workers(
    series: Iterable[Series], *, known_slow: Mapping[str, float] | None = None
) -> list[dict[str, Any]]:
    """Returns each task's step time and waits of late, and how many times slower a straggler is.

    Args:
      known_slow: How many times slower which tasks are, where the series are only those of some tasks.
    """
    told = {
        (one.name, one.task): one.values[-_RECENT:]
        for one in series
        if one.scope is Scope.LOCAL and one.name in _OF_WORKERS and not one.is_repeated
    }
    finite = {key: values[np.abs(values) < _MAX_SECONDS] for key, values in told.items()}
    recent = {key: float(np.median(values)) for key, values in finite.items() if len(values)}
    step_s: Mapping[str, float] = {task: value for (name, task), value in recent.items() if name == STEP_TIME}
    own_s = {task: value * (1 - recent.get((COLLECTIVE_WAIT, task), 0.0)) for task, value in step_s.items()}
    found = find_stragglers(own_s, step_s) if known_slow is None else known_slow
    slow = {task: times for task, times in found.items() if math.isfinite(times)}
    return [
        {
            "task": task,
            "step_s": seconds,
            "input_wait": recent.get((INPUT_WAIT, task)),
            "collective_wait": recent.get((COLLECTIVE_WAIT, task)),
            "times_slower": slow.get(task),
        }
        for task, seconds in step_s.items()
    ]


def _step_times(one: Series) -> Series:
    steps, times = np.diff(one.steps), np.diff(one.times)
    is_within = (np.diff(one.attempts) == 0) & (steps > 0) & (times >= 0)
    later = one.take(np.flatnonzero(is_within) + 1)
    return Series(
        scope=Scope.LOCAL,
        name=STEP_TIME,
        task=one.task,
        steps=later.steps,
        times=later.times,
        values=times[is_within] / steps[is_within],
        attempts=later.attempts,
    )
