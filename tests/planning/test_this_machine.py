from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from raydist.planning.inventory import Host, Inventory
from raydist.planning.this_machine import this_machine, tpu_name, usable_cores


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    """A /dev with two GPUs and NVIDIA's other files."""
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    return tmp_path


def test_machine_is_one_host_of_an_embedded_ray(dev: Path) -> None:
    assert this_machine(environ={"TPU_NAME": "t1"}, dev=dev, num_cores=4, memory=()) == Inventory(
        hosts=(Host(name="this machine", num_cpus=4.0, num_gpus=2),), is_embedded=True, tpu_name="t1"
    )


@pytest.mark.parametrize(
    ("visible", "num_gpus"),
    [("", 0), ("-1", 0), ("0", 1), ("1", 1), ("0,1", 2), ("0,-1,1", 1), ("GPU-a,GPU-b", 2), ("0,1,2,3", 2)],
)
def test_visible_gpus_are_counted_and_never_invented(dev: Path, visible: str, num_gpus: int) -> None:
    inventory = this_machine(environ={"CUDA_VISIBLE_DEVICES": visible}, dev=dev, num_cores=1)
    assert inventory.num_gpus == num_gpus


@pytest.mark.parametrize(
    ("limit", "memory_bytes"),
    [(None, 8 << 30), ("max\n", 8 << 30), (f"{2 << 30}\n", 2 << 30), (f"{99 << 30}\n", 8 << 30)],
)
def test_memory_is_that_of_the_machine_or_of_its_container(
    tmp_path: Path, limit: str | None, memory_bytes: int
) -> None:
    meminfo, cgroup = tmp_path / "meminfo", tmp_path / "memory.max"
    meminfo.write_text(f"MemTotal:       {8 << 20} kB\nMemFree: 5 kB\n")
    if limit is not None:
        cgroup.write_text(limit)
    (host,) = this_machine(environ={}, num_cores=1, memory=(meminfo, cgroup)).hosts
    assert host.memory_bytes == memory_bytes


def test_machine_without_gpu_files_has_none(tmp_path: Path) -> None:
    assert this_machine(environ={}, dev=tmp_path).num_gpus == 0


def test_cores_are_those_of_the_process_affinity() -> None:
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from raydist.planning.this_machine import this_machine\n"
        "print(this_machine(environ={}).num_cpus)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "1.0\n"


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({}, None),
        ({"TPU_NAME": ""}, None),
        ({"TPU_NAME": "t1", "COLAB_TPU_ADDR": "1.2.3.4:8470"}, "t1"),
        ({"COLAB_TPU_ADDR": "1.2.3.4:8470"}, "grpc://1.2.3.4:8470"),
        ({"COLAB_TPU_ADDR": "grpc://1.2.3.4:8470"}, "grpc://1.2.3.4:8470"),
    ],
    ids=str,
)
def test_tpu_is_found_by_the_environment(environ: dict[str, str], name: str | None) -> None:
    assert tpu_name(environ) == name


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, None),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu.max": "100000 100000"}, 1),
        ({"cpu.max": "50000 100000"}, 1),
        ({"a/cpu.max": "100000 100000", "a/b/cpu.max": "max 100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
    ],
)
def test_cores_are_those_of_the_affinity_or_of_the_container(
    tmp_path: Path, files: dict[str, str], limit: int | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    own = tmp_path / "own"
    own.write_text("1:cpu:/x\n0::/a/b\n")
    assert usable_cores(tmp_path, own) == (limit or len(os.sched_getaffinity(0)))
