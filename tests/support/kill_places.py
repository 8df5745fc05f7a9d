"""Places in a step's life at which a task dies, and what is done there. Travels with the job of each run.

A place is a function of the product, of TensorFlow or of the job. `Places` wraps those of the run's plan, in
each task. The file `killed` has a line for each place that was reached, so the next one is known. The other
files are what the test compares: what each step has shown, and the variables in the end.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EPOCHS, STEPS_PER_EPOCH, SAVED_EVERY = 6, 20, 7
NUM_STEPS = EPOCHS * STEPS_PER_EPOCH
FOLDER = "KILLS_FOLDER"  # an environment variable


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where it is, who reaches it, and who dies.

    Attributes:
      at: `module:function`, or `module:Class.method`.
      when: Before the function begins, or after its end.
      task: The one that reaches it. `victim`: who dies there; "self", "peer", "both", "agent", "fork server",
        "controller" or a task of the run.
      how: SIGKILL, SIGSTOP, SIGTERM, or "exit".
      text: Words among the arguments. `inside`: a function that is being called. `nth`: of calls with both.
      step: Not before the run has completed as many; None for a place on the way to the first step.
    """

    at: str
    when: str = "before"
    task: int = 1
    victim: str = "self"
    how: str = "SIGKILL"
    text: str = ""
    inside: str = ""
    nth: int = 1
    step: int | None = 0


def passes(what: str) -> None:
    """Is called at places of the job's own code."""


class Places:
    """What one process knows of them."""

    def __init__(self, ctx: Any) -> None:
        self.folder = Path(os.environ[FOLDER])
        self._ctx, self._task = ctx, ctx.task
        self._step = -1
        plan = json.loads((self.folder / "plan.json").read_text())
        killed = lines_of(self.folder / "killed")
        # One place an attempt: another task may have died before this one was here.
        is_over = any(attempt == ctx.attempt for _, attempt, _ in killed)
        (self.folder / f"pid-{self._task.path_name}").write_text(str(os.getpid()))
        for name, fields in [] if is_over else plan[len(killed) :][:1]:
            if fields["task"] == self._task.index:
                self._watch(name, Place(**fields))

    def shown(self, step: int, values: Mapping[str, Any]) -> None:
        """Takes what the training shows of a step, in all of its bits."""
        self._step = step
        told = {name: float(value).hex() for name, value in sorted(values.items())}
        _append(self.folder / f"shown-{self._task.path_name}", [self._ctx.attempt, step, told])

    def end(self, variables: Mapping[str, Any]) -> None:
        """Takes the variables at the training's end."""
        import numpy as np

        np.savez(
            self.folder / f"end-{self._task.path_name}",
            **{name.replace("/", "."): one.numpy() for name, one in variables.items()},
        )

    def _watch(self, name: str, place: Place) -> None:
        owner, attribute = _found(place.at)
        original = getattr(owner, attribute)
        num_calls = 0

        def is_reached(arguments: tuple[object, ...], *, when: str) -> bool:
            nonlocal num_calls
            if when != place.when:
                return False
            if place.step is not None and self._step < place.step:
                return False
            if place.text and not any(place.text in str(one) for one in arguments if not _is_large(one)):
                return False
            if place.inside and not _is_called(place.inside):
                return False
            num_calls += 1
            return num_calls == place.nth

        @functools.wraps(original)
        def wrapper(*args: Any, **options: Any) -> Any:
            arguments = (*args, *options.values())
            if is_reached(arguments, when="before"):
                self._strike(name, place)
            result = original(*args, **options)
            if is_reached(arguments, when="after"):
                self._strike(name, place)
            return result

        setattr(owner, attribute, wrapper)

    def _strike(self, name: str, place: Place) -> None:
        if place.victim in ("peer", "both"):
            time.sleep(0.1)  # the peer comes to where it waits for this one
        pids = self._pids(place.victim)
        _append(self.folder / "killed", [name, self._ctx.attempt, self._step])
        for pid in pids:
            if place.how == "exit":
                os._exit(3)
            os.kill(pid, getattr(signal, place.how))

    def _pids(self, victim: str) -> list[int]:
        if victim == "self":
            return [os.getpid()]
        if victim in ("peer", "both"):
            peer = int((self.folder / f"pid-worker-{1 - self._task.index}").read_text())
            return [peer] if victim == "peer" else [peer, os.getpid()]
        if victim == "agent":
            return [_agent()]
        if victim == "fork server":
            assert b"fork-server" in Path(f"/proc/{os.getppid()}/cmdline").read_bytes()
            return [os.getppid()]
        record = json.loads(Path(self._ctx.storage, "run.json").read_text())
        if victim == "controller":
            return [record["driver"]["pid"]]
        return [one["pid"] for one in record["tasks"] if one["task"] == victim]


def _found(at: str) -> tuple[Any, str]:
    module, _, path = at.partition(":")
    owner: Any = importlib.import_module(module)
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    return owner, name


def _is_called(function: str) -> bool:
    frame: Any = sys._getframe()
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    return frame is not None


def _is_large(argument: object) -> bool:
    return isinstance(argument, bytes | memoryview) or hasattr(argument, "shape")


def _agent() -> int:
    """Returns the process that has made this one's connection to it."""
    for fd in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(fd))) as link:
                pid, _, _ = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        except OSError:
            continue
        if pid and b"TaskActor" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return int(pid)
    raise AssertionError("this process has no agent")


def _append(path: Path, line: object) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
