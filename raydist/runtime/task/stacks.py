"""Where the threads of this process are in their code: for the log, and to say who waits for whom."""

from __future__ import annotations

import dataclasses
import os
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from raydist.outcome.status import CodePlace, Collective
from raydist.spec.text import as_submitted

# What calls the user's code, and where a task is that waits for others.
_ENGINES = ("tensorflow", "keras", "tf_keras", "ray", "raydist")
_PACKAGES = ("site-packages", "dist-packages")
_STANDARD = sysconfig.get_path("stdlib") + os.sep
_OURS = str(Path(__file__).parents[2]) + os.sep
# What AutoGraph makes of a user's function while it is traced.
_GENERATED = "__autograph_generated_file"

# From the innermost call on.
Stack = Sequence[traceback.FrameSummary]


def place_in_code() -> CodePlace:
    """Returns where this process is in the user's code."""
    stacks = _stacks()
    main = stacks.pop(threading.main_thread().ident, [])
    return place_of(main, list(stacks.values()))


class Standing:
    """In which line of the user's this process stands, once it has been in one collective for a second."""

    _AFTER_S = 1.0

    def __init__(self) -> None:
        self._last: Collective | None = None  # with the line
        self._since_s = 0.0

    def located(self, newest: Collective | None) -> Collective | None:
        """Returns `newest` with the line, where it has been the newest for that long."""
        last, now_s = self._last, time.monotonic()
        if newest is None or last is None or dataclasses.replace(last, where=None) != newest:
            self._last, self._since_s = newest, now_s
        elif last.where is None and now_s - self._since_s >= self._AFTER_S:
            self._last = dataclasses.replace(newest, where=_line_of_user())
        return self._last


def _line_of_user() -> str | None:
    """Returns the innermost line of the user's in which the main thread is, such as `job.py:21 (train)`."""
    frame = next(filter(_is_users, _stacks().get(threading.main_thread().ident, [])), None)
    return None if frame is None else as_submitted(_line(frame))


def dump_stacks() -> str:
    """Returns the stacks of all threads; of those of raydist and Ray, which come last, a line each."""
    stacks, names = _stacks(), {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    whole = [ident for ident, stack in stacks.items() if ident == main or not all(map(_is_ours, stack))]
    texts = []
    for ident in sorted(whole, key=lambda ident: ident != main):
        lines = "".join(f"  {_shown(frame)}\n" for frame in _from_users_code(stacks[ident]))
        texts.append(f"Thread {names.get(ident, ident)} (most recent call first):\n{lines}\n")
    for ident in stacks.keys() - set(whole):
        innermost = next(filter(_is_code, stacks[ident]), stacks[ident][0])
        texts.append(f"Thread {names.get(ident, ident)}: {_shown(innermost)}\n")
    return as_submitted("".join(texts))


def place_of(main: Stack, others: Sequence[Stack]) -> CodePlace:
    """Returns where a process is in the user's code, from the stacks of its threads.

    If the main thread waits in TensorFlow, another thread may be in code of the user's that TensorFlow has
    called: a generator or function that feeds a dataset.
    """
    called = list(_called_by_engine(main))
    if called:
        return _place(next(filter(_is_users, called), called[-1]), main, is_waiting=False)
    for stack in others:
        is_called = any(_package(frame.filename) in _ENGINES for frame in stack)
        frame = next(filter(_is_users, _called_by_engine(stack)), None) if is_called else None
        if frame is not None:
            return _place(frame, stack, is_waiting=False)
    frame = next(filter(_is_users, main), None)
    return CodePlace(is_waiting=True) if frame is None else _place(frame, main, is_waiting=True)


def _place(frame: traceback.FrameSummary, stack: Stack, *, is_waiting: bool) -> CodePlace:
    told = [one for one in stack[1:] if _is_code(one) and _package(one.filename) not in _ENGINES]
    lines = traceback.StackSummary.from_list([*told[::-1], stack[0]]).format()
    return CodePlace(
        where=as_submitted(_line(frame)), stack=as_submitted("".join(lines)), is_waiting=is_waiting
    )


def _line(frame: traceback.FrameSummary) -> str:
    return f"{_short(frame.filename)}:{frame.lineno} ({frame.name})"


def _called_by_engine(stack: Stack) -> Iterator[traceback.FrameSummary]:
    """Yields the frames of the innermost code that is not the engine's; none where that is innermost."""
    for frame in filter(_is_code, stack):
        if _package(frame.filename) in _ENGINES:
            return
        yield frame


def _from_users_code(stack: Stack) -> Stack:
    """Returns a stack without the frames that lead to the user's code."""
    users = [index for index, frame in enumerate(stack) if _is_users(frame)]
    return stack[: users[-1] + 1] if users else stack


def _is_users(frame: traceback.FrameSummary) -> bool:
    return _is_code(frame) and _package(frame.filename) is None


def _is_ours(frame: traceback.FrameSummary) -> bool:
    return not _is_code(frame) or _package(frame.filename) in ("ray", "raydist")


def _is_code(frame: traceback.FrameSummary) -> bool:
    """Whether a frame is none of Python's own library, and none that AutoGraph has made."""
    name = frame.filename
    is_standard = name.startswith((_STANDARD, "<frozen ")) and not any(part in name for part in _PACKAGES)
    return not is_standard and _GENERATED not in name


def _package(filename: str) -> str | None:
    """Returns the name of the installed package that a file belongs to; None for the user's own file."""
    if filename.startswith(_OURS):
        return "raydist"
    parts = Path(filename).parts
    places = [index for index, part in enumerate(parts[:-1]) if part in _PACKAGES]
    return parts[places[-1] + 1] if places else None


def _short(filename: str) -> str:
    """Returns the name of a file from the folder of installed packages on."""
    parts = Path(filename).parts
    package = _package(filename)
    return filename if package is None else "/".join(parts[len(parts) - parts[::-1].index(package) - 1 :])


def _stacks() -> dict[int | None, Stack]:
    """Returns the stack of each thread but this one, by the thread's number."""
    return {
        ident: traceback.StackSummary.extract(traceback.walk_stack(frame), lookup_lines=False)
        for ident, frame in sys._current_frames().items()
        if ident != threading.get_ident()
    }


def _shown(frame: traceback.FrameSummary) -> str:
    return f'File "{frame.filename}", line {frame.lineno} in {frame.name}'
