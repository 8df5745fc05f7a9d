"""Hosts of a Ray cluster: each a machine of its own with its own address, disk and `ray start`.

They share this computer's kernel and its installed packages, and one folder; nothing else.
"""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from raydist.runtime.host.address import join_address
from tests.support.environ import inherited
from tests.support.netns import Machine, Network
from tests.support.records import record_of

_BIN = Path(sys.executable).parent
_GCS_PORT = 6379
_REDIS_NUMBER = 90
_START_TIMEOUT_S = 90.0
_OBJECT_STORE_MB = 80
_DISK_MB = 512


class Host:
    """One host; what it is told lasts until it is started anew.

    Attributes:
      address: Its IP address, the same after each restart.
      disk: Its own disk, a path that is the same on each host: only its own processes see what is there.
    """

    def __init__(self, number: int, *, network: Network, base: Path, environ: Mapping[str, str]) -> None:
        self._number = number
        self._network = network
        self._base = base
        self._environ = environ
        self._machine: Machine | None = None
        self.name = f"host-{number}"
        self.address = network.address_of(number)
        self.disk = base / "disk"

    @property
    def machine(self) -> Machine:
        assert self._machine is not None, f"{self.name} was never started"
        return self._machine

    @property
    def is_alive(self) -> bool:
        return self._machine is not None and self._machine.is_alive

    @property
    def gcs_address(self) -> str:
        """Where the Ray is whose head is this host."""
        return join_address(self.address, _GCS_PORT)

    def boot(self) -> None:
        """Starts the machine and links it to the others; nothing runs on it yet."""
        private = {self.disk: _DISK_MB, Path("/dev/shm"): 2 * _OBJECT_STORE_MB}
        self._machine = Machine.start(self.name, private=private)
        assert self._network.join(self.machine, number=self._number) == self.address
        self.machine.inside(self.disk / "tmp").mkdir()

    def replace(self) -> None:
        """Boots a machine of the same name and address in the place of a killed one, with an empty disk."""
        with suppress(AssertionError):  # the kernel was quicker
            self._network.leave(self._number)
        self.boot()

    def start_ray(self, *, num_cpus: int, head: Host | None, redis: str | None = None) -> Callable[[], None]:
        """Starts Ray's processes; as the head where `head` is None. Returns what waits until they are up.

        Args:
          redis: Where the head keeps its state, `host:port`; None keeps it in the head's memory.
        """
        command = [_BIN / "ray", "start", "--block", f"--node-ip-address={self.address}"]
        command += ["--include-log-monitor=false"]  # tasks keep their own logs
        if head is None:
            command += ["--head", f"--port={_GCS_PORT}", "--include-dashboard=false"]
            command += ["--ray-client-server-port=10001"]
        else:
            command += [f"--address={head.gcs_address}"]
        command += [f"--num-cpus={num_cpus}", f"--object-store-memory={_OBJECT_STORE_MB * 2**20}"]
        output = self.machine.inside(self.disk / "ray-start.txt")
        environ = {**self._environ, **({} if redis is None else {"RAY_REDIS_ADDRESS": redis})}
        with output.open("wb") as sink:
            process = self.popen(*command, stdout=sink, stderr=sink, stdin=subprocess.DEVNULL, env=environ)

        def wait() -> None:
            deadline = time.monotonic() + _START_TIMEOUT_S
            while b"Ray runtime started" not in output.read_bytes():
                assert process.poll() is None, output.read_text()
                assert time.monotonic() < deadline, output.read_text()
                time.sleep(0.1)

        return wait

    def popen(self, *command: str | Path, **options: Any) -> subprocess.Popen[Any]:
        """Starts a process on the host, on its own disk; `options` are Popen's."""
        options = {"cwd": self.disk, "env": dict(self._environ), **options}
        return self.machine.popen(*command, **options)

    def run(self, *command: str | Path) -> str:
        return self.machine.run(*command)

    def write(self, name: str, text: str) -> Path:
        """Writes a file on the host's own disk and returns its path there."""
        path = self.disk / name
        outside = self.machine.inside(path)
        outside.parent.mkdir(parents=True, exist_ok=True)
        outside.write_text(text)
        return path

    def kill(self) -> None:
        """Takes the host away as a power cut does: nobody on the network hears of it. Idempotent."""
        if self.is_alive:
            self.cut()
            self.machine.kill()

    def cut(self) -> None:
        """Pulls the host's cable: what is sent is lost, and nobody is told."""
        self._network.cut(self._number)

    def heal(self) -> None:
        """Makes the host's link as it was before `cut` or `slow`."""
        self._network.heal(self._number)

    def slow(self, *, delay_s: float, loss: float) -> None:
        """Delays what is sent in both directions, and loses the part `loss` of it."""
        self._network.slow(self._number, self.machine, delay_s=delay_s, loss=loss)

    def task_pids(self) -> list[int]:
        """Returns the host's own pids of the actors that are raydist's tasks."""
        return self.machine.pids_of("ray::TaskActor")


class Hosts:
    """A Ray cluster whose head, with the driver's shell, is the first host."""

    def __init__(self, *, network: Network, base: Path, redis: str | None = None) -> None:
        self._network = network
        self._base = base
        self._redis = redis
        self._environ = _environment(base / "disk")
        self.all: list[Host] = []
        self._outsiders: list[Machine] = []
        self.shared = base / "shared"

    @classmethod
    @contextmanager
    def started(cls, *num_cpus: int, with_redis: bool = False, is_ipv6: bool = False) -> Iterator[Hosts]:
        """Starts a host for each number of CPUs; in the end, however it comes, nothing of them is left.

        Args:
          with_redis: Whether the head keeps its state in a Redis on a machine of its own.
        """
        with ExitStack() as stack:
            # Short, because Ray's sockets lie in it and their paths are limited to 107 bytes.
            base = Path(tempfile.mkdtemp(prefix="rd-"))
            stack.callback(shutil.rmtree, base, ignore_errors=True)
            for name in ("disk", "shared"):
                (base / name).mkdir()
            network = Network.start(is_ipv6=is_ipv6)
            stack.callback(network.stop)
            redis = _start_redis(network, stack) if with_redis else None
            hosts = cls(network=network, base=base, redis=redis)
            stack.callback(hosts.kill)
            hosts.add(*num_cpus)
            yield hosts

    @property
    def head(self) -> Host:
        return self.all[0]

    def add(self, *num_cpus: int) -> list[Host]:
        """Starts more hosts, all at once, and waits until they have joined Ray."""
        number = len(self.all) + 1
        added = [
            Host(number + index, network=self._network, base=self._base, environ=self._environ)
            for index in range(len(num_cpus))
        ]
        self.all += added
        waits = []
        for host, cpus in zip(added, num_cpus, strict=True):
            host.boot()
            is_head = host is self.head
            wait = host.start_ray(
                num_cpus=cpus, head=None if is_head else self.head, redis=self._redis if is_head else None
            )
            if is_head:
                wait()
            waits.append(wait)
        for wait in waits:
            wait()
        return added

    def outsider(self) -> Machine:
        """Returns a machine on the same network that is none of the cluster's; `kill` ends it."""
        machine = Machine.start("outsider")
        self._outsiders.append(machine)
        self._network.join(machine, number=90 + len(self._outsiders))
        return machine

    def replace_head(self, *, num_cpus: int) -> None:
        """Starts a new head in the place of a killed one, at its address and with its Redis."""
        self.head.replace()
        self.head.start_ray(num_cpus=num_cpus, head=None, redis=self._redis)()

    def kill(self) -> None:
        for one in (*self.all, *self._outsiders):
            one.kill()

    def raydist(self, *arguments: str | Path) -> subprocess.Popen[str]:
        """Starts a raydist command in a shell on the head's own disk."""
        return self.head.popen(
            _BIN / "raydist",
            *arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def status(self, run: str) -> dict[str, Any]:
        """Returns what `run.json` has on the shared folder; an empty run before there is one."""
        return record_of(self.shared, run)


def _start_redis(network: Network, stack: ExitStack) -> str:
    """Starts a Redis on a machine of its own and returns its address."""
    machine = Machine.start("redis")
    stack.callback(machine.kill)
    address = network.join(machine, number=_REDIS_NUMBER)
    options = ["--bind", address, "--protected-mode", "no", "--save", ""]
    machine.popen("redis-server", *options, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + _START_TIMEOUT_S
    while "PONG" not in machine.run("sh", "-c", f"redis-cli -h {address} ping 2>&1 || true"):
        assert time.monotonic() < deadline, "redis-server did not answer"
        time.sleep(0.1)
    return f"{address}:6379"


def _environment(disk: Path) -> dict[str, str]:
    """Returns the environment of every process on every host."""
    return {
        **inherited(),
        "HOME": str(disk),
        "TMPDIR": str(disk / "tmp"),
        "RAY_TMPDIR": str(disk),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        # A proxy that reaches none of the hosts, as in many companies.
        **dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9"),
    }
