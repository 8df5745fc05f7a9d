"""Machines made of Linux namespaces, and the network between them: root and iproute2 are all it takes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

_RELAY = Path(__file__).with_name("slow_link.py")
_START_TIMEOUT_S = 20.0
_DEATH_TIMEOUT_S = 20.0
_BRIDGE = "br0"
_GATEWAY = "10.77.0.254"

# The first process of a machine, which inherits orphans: ignored, they leave no zombies. It ends with its
# standard input, so that a test session that is killed leaves no machine behind.
_INIT = "echo ready; exec env --ignore-signal=CHLD cat >/dev/null"


@cache
def why_unavailable() -> str | None:
    """Returns why no machines can be made here; None where they can."""
    command = ["unshare", "--net", "--pid", "--mount", "--uts", "--ipc", "--fork", "--mount-proc"]
    command += ["sh", "-c", "ip link add v0 type veth peer name v1 && ip link add br0 type bridge"]
    try:
        tried = subprocess.run(command, capture_output=True, text=True, timeout=_START_TIMEOUT_S)
    except OSError as error:
        return f"machines of Linux namespaces cannot be made here: {error}"
    if tried.returncode == 0:
        return None
    return f"machines of Linux namespaces cannot be made here: {tried.stderr.strip() or tried.returncode}"


class Machine:
    """Namespaces of its own for network, processes, mounts and host name, held by one process.

    What runs in it is started by `popen` and `run`, and dies with it.
    """

    def __init__(self, name: str, *, holder: subprocess.Popen[bytes]) -> None:
        self.name = name
        self._holder = holder
        self._init_pid: int | None = None
        self._entered: list[subprocess.Popen[Any]] = []

    @classmethod
    def start(cls, name: str, *, private: Mapping[Path, int] | None = None) -> Machine:
        """Starts a machine of that host name.

        Args:
          private: Folders that only this machine's processes see, empty at first, each with its size in MB.
        """
        mounts = [f"mount -t tmpfs -o size={size}m tmpfs {path}" for path, size in (private or {}).items()]
        script = "; ".join(
            ["set -e", f"echo {name} >/proc/sys/kernel/hostname", "ip link set lo up", *mounts, _INIT]
        )
        command = ["unshare", "--net", "--pid", "--mount", "--uts", "--ipc", "--fork", "--kill-child"]
        holder = subprocess.Popen(
            [*command, "--mount-proc", "sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # out of reach of the terminal's Ctrl-C
        )
        machine = cls(name, holder=holder)
        try:
            machine._await_init()
        except BaseException:
            machine.kill()
            raise
        return machine

    def _await_init(self) -> None:
        line = self._holder.stdout.readline()
        assert line == b"ready\n", f"{self.name} did not start: {line!r}"
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children").read_text()
        self._init_pid = int(children)

    @property
    def is_alive(self) -> bool:
        return self._holder.poll() is None

    @property
    def init_pid(self) -> int:
        """The pid, as seen from outside, of the process that holds the namespaces."""
        assert self._init_pid is not None, f"{self.name} never started"
        return self._init_pid

    @property
    def root(self) -> Path:
        """The machine's file system, as seen from outside."""
        return Path(f"/proc/{self.init_pid}/root")

    def inside(self, path: Path) -> Path:
        """Returns where the machine's `path` is, as seen from outside."""
        return self.root / path.relative_to("/")

    def popen(self, *command: str | Path, cwd: Path = Path("/"), **options: Any) -> subprocess.Popen[Any]:
        """Starts a process in the machine; `options` are Popen's."""
        enter = ["nsenter", f"--target={self.init_pid}", "--net", "--pid", "--mount", "--uts", "--ipc", "--"]
        # Where nft and iptables are, which only root's PATH has.
        change = ["sh", "-c", 'PATH="$PATH:/usr/sbin:/sbin"; cd "$0" && exec "$@"', str(cwd)]
        process = subprocess.Popen([*enter, *change, *map(str, command)], start_new_session=True, **options)
        self._entered.append(process)
        return process

    def run(self, *command: str | Path, timeout_s: float = 30.0) -> str:
        """Runs a command in the machine to its end and returns what it printed; asserts that it succeeds."""
        process = self.popen(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        out, _ = process.communicate(timeout=timeout_s)
        assert process.returncode == 0, f"{self.name}: {command} ended with {process.returncode}: {out}"
        return str(out)

    def pids_of(self, name: str) -> list[int]:
        """Returns the machine's own pids of the processes whose names begin with `name` (15 characters)."""
        found = []
        for comm in (self.root / "proc").glob("[0-9]*/comm"):
            with contextlib.suppress(OSError):
                if comm.read_text().startswith(name):
                    found.append(int(comm.parent.name))
        return found

    def kill(self) -> None:
        """Kills all that runs in the machine at once, without a word, and the machine with it. Idempotent."""
        if self._init_pid is not None and self.is_alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._init_pid, signal.SIGKILL)
        elif self.is_alive:
            self._holder.kill()
        for process in (self._holder, *self._entered):
            process.wait(timeout=_DEATH_TIMEOUT_S)
        for pipe in (self._holder.stdin, self._holder.stdout):
            pipe.close()


class Network:
    """A bridge in a machine of its own, and a link from it to each machine that was joined.

    With IPv6 it has no other addresses, and no gateway.
    """

    def __init__(self, hub: Machine, *, is_ipv6: bool = False) -> None:
        self._hub = hub
        self._is_ipv6 = is_ipv6
        self._relays: dict[str, subprocess.Popen[bytes]] = {}

    @classmethod
    def start(cls, *, is_ipv6: bool = False) -> Network:
        network = cls(Machine.start("hub"), is_ipv6=is_ipv6)
        try:
            network._build_bridge()
        except BaseException:
            network.stop()
            raise
        return network

    def _build_bridge(self) -> None:
        self._ip(f"link add {_BRIDGE} type bridge")
        self._ip(f"addr add {_GATEWAY}/24 dev {_BRIDGE}")
        self._ip(f"link set {_BRIDGE} up")
        # What is outside of this network is refused at once, as by a router, not waited for.
        self._ip("route add unreachable default metric 1")
        self._hub.run("sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")

    def address_of(self, number: int) -> str:
        """Returns the address of the machine that joins by this number, 1 to 99."""
        return f"fd00:77::{number}" if self._is_ipv6 else f"10.77.0.{number}"

    def join(self, machine: Machine, *, number: int) -> str:
        """Links a machine to the bridge and returns its address."""
        port, address = _port(number), self.address_of(number)
        # By pid from outside: the hub does not see other machines' processes.
        command = ["nsenter", f"--target={self._hub.init_pid}", "--net", "ip", "link", "add", port]
        command += ["type", "veth", "peer", "name", "eth0", "netns", str(machine.init_pid)]
        subprocess.run(command, check=True)
        self._ip(f"link set {port} master {_BRIDGE} up")
        machine.run("ip", "link", "set", "eth0", "up")
        if self._is_ipv6:
            machine.run("ip", "addr", "add", f"{address}/64", "dev", "eth0", "nodad")
            return address
        machine.run("ip", "addr", "add", f"{address}/24", "dev", "eth0")
        machine.run("ip", "route", "add", "default", "via", _GATEWAY)
        return address

    def leave(self, number: int) -> None:
        """Removes the link of a machine that was killed; the kernel does so only some time later."""
        self.heal(number)
        self._ip(f"link del {_port(number)}")

    def cut(self, number: int) -> None:
        """Takes a link down: what is sent over it is lost, in both directions, and nobody is told."""
        self._ip(f"link set {_port(number)} down")

    def heal(self, number: int) -> None:
        """Makes a link as it was, whether it was cut or slow."""
        relay = self._relays.pop(_port(number), None)
        if relay is not None:
            _end(relay)
        self._ip(f"link set {_port(number)} master {_BRIDGE} up")

    def slow(self, number: int, machine: Machine, *, delay_s: float, loss: float) -> None:
        """Makes each frame on a link take `delay_s`, and loses the part `loss` of them, in both directions.

        By a relay of ours between link and bridge, because the kernels of small virtual machines have no
        sch_netem. The machine itself has to cut its data into frames for it, as without offload hardware.
        """
        port = _port(number)
        machine.run(sys.executable, _RELAY, "no-offload", "eth0")
        self._ip(f"link set {port} nomaster")
        relay = self._hub.popen(
            *(sys.executable, _RELAY, "relay", port, f"{port}-slow", delay_s, loss),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._relays[port] = relay
        assert relay.stdout.readline() == b"ready\n"
        self._ip(f"link set {port}-slow master {_BRIDGE} up")

    def stop(self) -> None:
        """Ends the network with all its links; idempotent."""
        for relay in self._relays.values():
            _end(relay)
        self._relays.clear()
        self._hub.kill()

    def _ip(self, command: str) -> None:
        self._hub.run("ip", *command.split())


def _port(number: int) -> str:
    return f"port{number}"


def _end(relay: subprocess.Popen[bytes]) -> None:
    for pipe in (relay.stdin, relay.stdout):
        pipe.close()  # it ends with its standard input
    relay.wait(timeout=10)
