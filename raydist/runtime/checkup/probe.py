"""Looks at the host that it runs on. Imports neither ray nor tensorflow."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from importlib import metadata

from raydist.errors import StorageError
from raydist.runtime.checkup.facts import Device, Disk, HostFacts, QuickFacts, StorageSpeed
from raydist.runtime.checkup.network import ports_of_tasks, public_addresses
from raydist.runtime.host.proxies import proxies_in
from raydist.runtime.host.software.fresh_process import FreshProcessError, answer_of
from raydist.runtime.host.software.lost_parts import lost_parts
from raydist.runtime.host.software.versions import installed_versions
from raydist.storage.proof import StorageProof
from raydist.storage.run_storage import open_run

_SMI_TIMEOUT_S = 20.0
_SPEED_BYTES = 16 * 2**20
_BLOCK_BYTES = 4096
_SIDE = 1024
_DEVICES = f"""
import json, time
import tensorflow as tf

found = []
for device in tf.config.list_logical_devices():
    if device.device_type not in ("CPU", "GPU", "TPU"):
        continue
    with tf.device(device.name):
        ones = tf.ones(({_SIDE}, {_SIDE}))
        is_right = float(tf.reduce_sum(tf.matmul(ones, ones))) == {_SIDE}.0 ** 3
        begun_s = time.perf_counter()
        for _ in range(5):
            product = tf.matmul(ones, ones)
        float(tf.reduce_sum(product))
        rate = 10 * {_SIDE}**3 / (time.perf_counter() - begun_s) / 1e9
    name = device.device_type + ":" + device.name.rpartition(":")[2]
    found.append([device.device_type, name, rate if is_right else None])
print()
print(json.dumps(found))
"""


def versions_here() -> dict[str, str]:
    """Returns the versions that have to be the same everywhere, Ray's among them."""
    versions = installed_versions()
    return {**versions, "ray": metadata.version("ray")}


def glance(proof: StorageProof) -> QuickFacts:
    """Returns what this host can report at once: without TensorFlow, and without writing to the storage.

    Args:
      proof: What the driver has left on the storage.
    """
    try:
        proof.check(host=socket.gethostname())
        error = None
    except StorageError as problem:
        error = str(problem)
    return QuickFacts(versions=versions_here(), disks=_disks(), storage_error=error)


def look(proof: StorageProof) -> HostFacts:
    """Returns what this host reports; takes some seconds, for TensorFlow and the storage.

    Args:
      proof: What the driver has left on the storage.
    """
    devices, device_error = _devices()
    speed, storage_error = _storage(proof)
    return HostFacts(
        hostname=socket.gethostname(),
        versions=versions_here(),
        lost=tuple(lost_parts()),
        gpus=_gpus(),
        devices=devices,
        device_error=device_error,
        disks=_disks(),
        proxies=proxies_in(os.environ),
        public_addresses=public_addresses(),
        task_ports=ports_of_tasks(),
        storage=speed,
        storage_error=storage_error,
    )


def _gpus() -> tuple[str, ...]:
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_SMI_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    if done.returncode != 0:
        return ()
    return tuple(line.replace(", ", ", driver ").strip() for line in done.stdout.splitlines() if line.strip())


def _devices() -> tuple[tuple[Device, ...], str | None]:
    # Ray has hidden the GPUs from this process.
    environ = {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "CUDA_VISIBLE_DEVICES": None, "TF_CONFIG": None}
    try:
        found = answer_of(_DEVICES, environ=environ)
    except FreshProcessError as error:
        return (), str(error)
    return tuple(Device(kind=kind, name=name, gflops=rate) for kind, name, rate in found), None


def _disks() -> tuple[Disk, ...]:
    try:
        folder = tempfile.gettempdir()
    except FileNotFoundError:  # it writes as well, and found no folder where it could
        folder = next(filter(os.path.isdir, (os.environ.get("TMPDIR", ""), "/tmp")), "/")
    usage = shutil.disk_usage(folder)
    error = None
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0" * _BLOCK_BYTES)
    except OSError as problem:
        error = problem.strerror or str(problem)
    return (Disk(path=folder, free_bytes=usage.free, total_bytes=usage.total, error=error),)


def _storage(proof: StorageProof) -> tuple[StorageSpeed | None, str | None]:
    host = socket.gethostname()
    try:
        proof.check(host=host)
        storage = open_run(proof.storage_uri, run=proof.run)
        key, data = f"{proof.run}/speed-{secrets.token_hex(4)}", os.urandom(_SPEED_BYTES)
        begun_s = time.perf_counter()
        storage.write_bytes(key, data)
        written_s = time.perf_counter()
        is_same = storage.read_bytes(key) == data
        read_s = time.perf_counter()
        storage.delete(key)
    except StorageError as error:
        return None, str(error)
    if not is_same:
        return None, f"host {host} has read something else than it had written"
    return StorageSpeed(write=len(data) / (written_s - begun_s), read=len(data) / (read_s - written_s)), None
