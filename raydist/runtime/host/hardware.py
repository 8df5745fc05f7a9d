"""What this host is made of, read from /proc without starting a program."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

from raydist.storage.provenance import Machine

_GIB = 2**30


def read_machine(proc: Path = Path("/proc")) -> Machine:
    """Returns what the host's kernel and drivers report; takes about a millisecond."""
    return Machine(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=_found(r"model name\s*:\s*(.+)", proc / "cpuinfo"),
        num_cpus=os.cpu_count(),
        memory_bytes=_memory_bytes(proc),
        gpus=_gpus(proc / "driver/nvidia/gpus"),
    )


def peak_memory_bytes(proc: Path = Path("/proc")) -> int | None:
    """Returns the most memory that this process has had resident; None where the kernel does not show it."""
    kilobytes = _found(r"VmHWM:\s*(\d+) kB", proc / "self/status")
    return None if kilobytes is None else int(kilobytes) * 1024


def _memory_bytes(proc: Path) -> int | None:
    kilobytes = _found(r"MemTotal:\s*(\d+) kB", proc / "meminfo")
    return None if kilobytes is None else round(int(kilobytes) * 1024 / _GIB) * _GIB


def _gpus(folder: Path) -> tuple[str, ...]:
    models = (_found(r"Model:\s*(.+)", file) for file in sorted(folder.glob("*/information")))
    return tuple(model for model in models if model is not None)


def _found(pattern: str, file: Path) -> str | None:
    match = re.search(pattern, text_of(file))
    return match[1].strip() if match else None


def text_of(file: Path) -> str:
    """Returns what the kernel has in a file of /proc or /sys; nothing where it cannot be read."""
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
