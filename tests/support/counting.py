"""Counts what a call does, where its time would tell as much of the machine as of the code."""

from __future__ import annotations

import statistics
import sys
import tracemalloc
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

Call = Callable[[], object]


def num_calls(call: Call) -> int:
    """Returns how many functions, of Python and of C, `call` calls."""
    return _num_profiled(call, lambda argument: 1)


class Work(NamedTuple):
    """What one of several calls does: the median, as a container that grows is copied once in a while.

    Attributes:
      instructions: Bytecodes that it runs, which are many where it loops over what it knows.
      entries: How many there are in the containers whose items, keys or values it asks for.
      num_bytes: The most memory that it has taken at one time, which is much where it copies a container.
    """

    instructions: float
    entries: float
    num_bytes: float


def work_of(prepare: Callable[[], Iterable[Call]]) -> Work:
    """Counts what a call does that `prepare` returns, which is asked for as many as a median needs."""
    measures = (_num_instructions, _num_entries, _num_bytes)
    return Work(*(statistics.median(map(measure, prepare())) for measure in measures))


def _num_instructions(call: Call) -> int:
    number = 0

    def count(frame: Any, event: str, argument: Any) -> Any:
        nonlocal number
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        number += event == "opcode"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        call()
    finally:
        sys.settrace(before)
    return number


def _num_entries(call: Call) -> int:
    def size(argument: Any) -> int:
        name = getattr(argument, "__name__", "")
        return len(argument.__self__) if name in ("copy", "items", "keys", "values") else 0

    return _num_profiled(call, size)


def _num_bytes(call: Call) -> int:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def _num_profiled(call: Call, weight: Callable[[Any], int]) -> int:
    """Returns the sum of the weights of all calls, each by the function of C that it is of, if it is."""
    number = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal number
        if event in ("call", "c_call"):
            number += weight(argument)

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(before)
    return number
