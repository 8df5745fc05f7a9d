"""Looks at the host that it runs on. Imports neither ray nor tensorflow."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from importlib import metadata

from raydist.errors import StorageError
from raydist.runtime.checkup.facts import Device, Disk, HostFacts, StorageSpeed
from raydist.runtime.checkup.network import ports_of_tasks, public_addresses
from raydist.runtime.host.lost_parts import lost_parts
from raydist.runtime.host.versions import installed_versions
from raydist.storage.proof import StorageProof
from raydist.storage.run_storage import open_run

PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", "no_proxy")

_DEVICES_TIMEOUT_S = 120.0
_SMI_TIMEOUT_S = 20.0
_SPEED_BYTES = 16 * 2**20
_SIDE = 1024
# In a process of its own: TensorFlow stays, and Ray has hidden the GPUs from this one.
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


def look(proof: StorageProof) -> HostFacts:
    """Returns what this host tells; takes some seconds, for TensorFlow and the storage.

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
        proxies=tuple(name for name in (*PROXIES, *map(str.upper, PROXIES)) if os.environ.get(name)),
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
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    for name in ("CUDA_VISIBLE_DEVICES", "TF_CONFIG"):
        environ.pop(name, None)
    try:
        done = subprocess.run(
            [sys.executable, "-c", _DEVICES],
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_DEVICES_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return (), f"it took longer than {_DEVICES_TIMEOUT_S:g} s"
    if done.returncode != 0:
        return (), (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    found = json.loads(done.stdout.splitlines()[-1])
    return tuple(Device(kind=kind, name=name, gflops=rate) for kind, name, rate in found), None


def _disks() -> tuple[Disk, ...]:
    folder = tempfile.gettempdir()
    usage = shutil.disk_usage(folder)
    return (Disk(path=folder, free_bytes=usage.free, total_bytes=usage.total),)


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
