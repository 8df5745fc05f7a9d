"""What this machine has, for an embedded Ray and for `raydist plan`; asks neither ray nor tensorflow."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from raydist.planning.inventory import Host, Inventory


def this_machine(
    *,
    environ: Mapping[str, str] | None = None,
    dev: Path = Path("/dev"),
    num_cores: int | None = None,
    memory: Sequence[Path] = (Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")),
) -> Inventory:
    """Returns this machine as the one host of an embedded Ray.

    Args:
      environ: os.environ when omitted.
      dev: Where GPUs show as `nvidia0`, ….
      num_cores: The cores that this process may use when omitted.
      memory: Where the kernel tells the memory of the machine, and of a container.
    """
    environ = os.environ if environ is None else environ
    num_cores = usable_cores() if num_cores is None else num_cores
    host = Host(
        name="this machine",
        num_cpus=float(num_cores),
        num_gpus=_num_gpus(environ, dev),
        memory_bytes=_memory_bytes(memory),
    )
    return Inventory(hosts=(host,), is_embedded=True, tpu_name=tpu_name(environ), source="this machine")


def tpu_name(environ: Mapping[str, str]) -> str | None:
    """Returns the TPU to connect to as TPUClusterResolver takes it; None without one."""
    if environ.get("TPU_NAME"):
        return environ["TPU_NAME"]
    address = environ.get("COLAB_TPU_ADDR")
    if not address:
        return None
    return address if "://" in address else f"grpc://{address}"


def usable_cores(cgroups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """Returns the cores that this process may use, at least 1: by its affinity and its container's limit.

    Args:
      cgroups: Where the kernel tells the limits. `own`: The group of this process, in version 2.
    """
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    group = re.search(r"^0::/(.*)$", _text_of(own), flags=re.MULTILINE)
    place = cgroups / (group[1] if group else "")
    limits = [
        _text_of(folder / "cpu.max") for folder in (place, *place.parents) if folder.is_relative_to(cgroups)
    ]
    limits.append(
        f"{_text_of(cgroups / 'cpu/cpu.cfs_quota_us')} {_text_of(cgroups / 'cpu/cpu.cfs_period_us')}"
    )
    for limit in limits:
        if (found := re.fullmatch(r"(\d+)\s+(\d+)\s*", limit)) is not None:  # else "max", or -1, or none
            count = min(count, int(found[1]) // int(found[2]))
    return max(1, count)


def _text_of(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:  # macOS, or no container
        return ""


def _memory_bytes(files: Sequence[Path]) -> int:
    """Returns the least of what the files tell, in bytes; 0 where none does."""
    found = []
    for text in map(_text_of, files):
        match = re.search(r"^MemTotal:\s*(\d+) kB|^(\d+)$", text, flags=re.MULTILINE)
        if match is not None:
            found.append(int(match[1]) * 1024 if match[1] else int(match[2]))
    return min(found, default=0)


def _num_gpus(environ: Mapping[str, str], dev: Path) -> int:
    present = [entry for entry in dev.glob("nvidia*") if re.fullmatch(r"nvidia[0-9]+", entry.name)]
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return len(present)
    # CUDA ends the list at the first invalid one.
    devices = itertools.takewhile(
        lambda device: device.strip() not in ("", "-1", "NoDevFiles"), visible.split(",")
    )
    return min(len(list(devices)), len(present))
