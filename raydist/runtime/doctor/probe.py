"""Looks at the host that it runs on: hardware, versions, storage, network. Needs no ray or tensorflow."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import secrets
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from importlib import metadata
from pathlib import Path

from raydist.errors import StorageError
from raydist.runtime.doctor.findings import Device, Disk, HostFacts, QuickFacts, StorageSpeed
from raydist.runtime.host.address import proxies_in
from raydist.runtime.host.hardware import text_of
from raydist.runtime.host.software import FreshProcessError, answer_of, installed_versions, lost_parts
from raydist.storage.proof import StorageProof
from raydist.storage.run_storage import open_run

_LISTEN = "0A"
_ANY = {"0" * 8, "0" * 32}
_TASK = "ray::TaskActor"
_CHUNK = b"\0" * 2**20
_MAX_BYTES = 64 * 2**20
_MAX_S = 2.0
_TIMEOUT_S = 10.0


def public_addresses(proc: Path = Path("/proc")) -> tuple[str, ...]:
    """Returns the public addresses of this host; those of a NAT in front of it are unknown."""
    found = set(re.findall(r"\|-- (\S+)\n\s+/32 host LOCAL", text_of(proc / "net/fib_trie")))
    numbers = (int(line.split()[0], 16) for line in text_of(proc / "net/if_inet6").splitlines())
    found.update(str(ipaddress.ip_address(number)) for number in numbers)
    return tuple(sorted(one for one in found if ipaddress.ip_address(one).is_global))


def ports_of_tasks(proc: Path = Path("/proc")) -> tuple[int, ...]:
    """Returns the ports on which tasks of runs listen on all addresses; those of this user's runs."""
    listening = {**_listening(proc / "net/tcp"), **_listening(proc / "net/tcp6")}
    ports: set[int] = set()
    for comm in proc.glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if not comm.read_text().startswith(_TASK):
                continue
            links = [os.readlink(each) for each in (comm.parent / "fd").iterdir()]
            ports.update(listening[link] for link in links if link in listening)
    return tuple(sorted(ports))


class Sink:
    """Accepts one connection and reads it to its end, in a thread."""

    def __init__(self) -> None:
        is_dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if is_dual else socket.AF_INET
        self._server = socket.create_server(("", 0), family=family, backlog=1, dualstack_ipv6=is_dual)
        self._server.settimeout(_TIMEOUT_S)
        self.port: int = self._server.getsockname()[1]
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError), self._server:
            connection, _ = self._server.accept()
            with connection:
                connection.settimeout(_TIMEOUT_S)
                while connection.recv(len(_CHUNK)):
                    pass
                connection.sendall(b"!")


def send(host: str, port: int) -> float:
    """Sends to a Sink for up to 2 s, and returns the bytes a second that have arrived; raises OSError."""
    with socket.create_connection((host, port), timeout=_TIMEOUT_S) as connection:
        begun_s, sent = time.perf_counter(), 0
        while sent < _MAX_BYTES and time.perf_counter() - begun_s < _MAX_S:
            connection.sendall(_CHUNK)
            sent += len(_CHUNK)
        connection.shutdown(socket.SHUT_WR)
        if connection.recv(1) != b"!":
            raise ConnectionResetError("the connection was cut")
        return sent / (time.perf_counter() - begun_s)


def _listening(file: Path) -> dict[str, int]:
    """Returns the ports of sockets that listen on all addresses, by the name that a descriptor links to."""
    found = {}
    for line in text_of(file).splitlines()[1:]:
        fields = line.split()
        address, _, port = fields[1].partition(":")
        if fields[3] == _LISTEN and address in _ANY:
            found[f"socket:[{fields[9]}]"] = int(port, 16)
    return found


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
    return {**installed_versions(), "ray": metadata.version("ray")}


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
    return QuickFacts(versions=versions_here(), disks=disks_here(), storage_error=error)


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
        disks=disks_here(),
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


def disks_here() -> tuple[Disk, ...]:
    """Returns the disks that a task on this host needs."""
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
