"""The command line of this process as `ps` shows it to everybody on the host: without its secrets."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Sequence
from pathlib import Path

from raydist.spec.secrecy import redact_arguments

# The numbers of arg_start and arg_end in /proc/PID/stat, counted from 1 (proc(5)).
_ARG_START, _ARG_END = 48, 49


def hide_secrets() -> None:
    """Replaces the secrets in /proc/self/cmdline; what the program itself was given stays as it is.

    Ray copies that line into what it shows of a job, too. Where Linux does not tell the line's place in
    memory, nothing happens.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        shown = Path("/proc/self/cmdline").read_bytes()
        start, end = _place(Path("/proc/self/stat").read_text())
        hidden = redacted_line(shown)
        if hidden != shown and 0 < start and end - start == len(shown):
            ctypes.memmove(start, hidden, len(hidden))


def redacted_line(line: bytes) -> bytes:
    """Returns a command line of the same length, in the format of /proc: a zero byte ends each argument."""
    arguments = line.removesuffix(b"\0").split(b"\0")
    texts = [each.decode(errors="surrogateescape") for each in arguments]
    shown = redact_arguments(texts)
    if shown == texts:
        return line
    hidden = b"\0".join(each.encode(errors="surrogateescape") for each in shown)
    # The last byte has to stay zero, or Linux takes the environment for a part of the line.
    return hidden[: len(line) - 1].ljust(len(line), b"\0")


def _place(stat: str) -> Sequence[int]:
    # The name, in parentheses, may hold spaces.
    fields = stat.rpartition(")")[2].split()
    return [int(fields[number - 3]) for number in (_ARG_START, _ARG_END)]
