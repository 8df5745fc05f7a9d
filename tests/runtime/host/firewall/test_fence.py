"""A fence in the kernel of a machine of its own: who gets in, who does not, and that it goes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from raydist.runtime.host import firewall
from raydist.runtime.host.firewall import lift_fences, set_fence
from tests.support.netns import Machine, Network, why_unavailable

TOOLS = {"nft": "nft list ruleset", "iptables": "iptables-save; ip6tables-save"}
ENVIRON = ("env", "TMPDIR=/mnt", "PATH=/usr/bin:/bin")
# Sets a fence as a task does, listens, and continues until it is killed.
TASK = """
import os, socket, sys, threading
from raydist.runtime.host.firewall import set_fence
from raydist.runtime.host.scratch import Scratch
os.umask(0o077)
scratch = Scratch.create(sys.argv[1])
is_set = set_fence(scratch.path, 21000, hosts=sys.argv[2:])
listening = socket.create_server(("::", 21000), family=socket.AF_INET6, dualstack_ipv6=True)
print(is_set, flush=True)
for line in sys.stdin:
    scratch.remove()
    print("removed", flush=True)
"""
SWEEP = "from raydist.runtime.host.scratch import *; sweep(scratch_root(), stale_after_s=0)"
CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 21000), timeout=5).close()
    print("accepted")
except OSError as error:
    print(type(error).__name__)
"""


@pytest.fixture(params=TOOLS)
def tool(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    is_installed = shutil.which(name, path="/usr/sbin:/sbin:/usr/bin") is not None
    if (reason := why_unavailable()) is not None or not is_installed:
        pytest.skip(reason or f"{name} is not installed")
    return name


class Hosts:
    """Three machines: the task's, a peer's and an outsider's."""

    def __init__(self, stack: ExitStack, folder: Path, tool: str) -> None:
        network = Network.start()
        stack.callback(network.stop)
        self.machines = []
        for number in (1, 2, 3):
            machine = Machine.start(f"m{number}", private={Path("/mnt"): 8})
            stack.callback(machine.kill)
            network.join(machine, number=number)
            self.machines.append(machine)
        self.task, self.peer, self.outsider = self.machines
        self._list = TOOLS[tool]
        if tool == "iptables":  # as on a host without nft
            hidden = folder / "nft"
            hidden.write_text("#!/bin/sh\nexit 1\n")
            hidden.chmod(0o755)
            for place in ("/usr/sbin/nft", "/sbin/nft"):
                if Path(place).exists():
                    self.task.run("mount", "--bind", hidden, place)

    def python(self, machine: Machine, code: str, *arguments: str) -> str:
        return machine.run(*ENVIRON, sys.executable, "-c", code, *arguments)

    def start_task(self, name: str, *hosts: str) -> subprocess.Popen[str]:
        started = self.task.popen(
            *(*ENVIRON, sys.executable, "-c", TASK, name, *hosts),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert started.stdout.readline() == "True\n"
        return started

    def connect(self, machine: Machine) -> str:
        return self.python(machine, CONNECT, "10.77.0.1").strip()

    def rules(self) -> str:
        return self.task.run("sh", "-c", self._list)

    def fences(self) -> int:
        return len(set(re.findall(r"raydist-21000-\w+", self.rules())))


@pytest.fixture
def hosts(tool: str, tmp_path: Path) -> Iterator[Hosts]:
    with ExitStack() as stack:
        yield Hosts(stack, tmp_path, tool)


@pytest.mark.slow
def test_outsider_is_refused_until_the_task_ends(hosts: Hosts) -> None:
    task = hosts.start_task("run-0-worker-0-a-0", "10.77.0.1", "10.77.0.2")
    assert "raydist-21000-" in hosts.rules()
    connected = [hosts.connect(machine) for machine in hosts.machines]
    assert connected == ["accepted", "accepted", "ConnectionRefusedError"]
    task.stdin.write("remove\n")
    task.stdin.flush()
    assert task.stdout.readline() == "removed\n"
    assert "raydist" not in hosts.rules()
    assert hosts.connect(hosts.outsider) == "accepted"
    task.stdin.close()
    task.stdout.close()


@pytest.mark.slow
def test_fence_of_a_killed_task_goes_with_the_sweep_and_that_of_another_stays(hosts: Hosts) -> None:
    killed = hosts.start_task("run-0-worker-0-a-0", "10.77.0.1")
    for pid in hosts.task.pids_of("python"):
        hosts.task.run("kill", "-KILL", str(pid))
    killed.wait()
    again = hosts.start_task("run-0-worker-0-a-1", "10.77.0.1")
    assert hosts.fences() == 2
    hosts.python(hosts.task, SWEEP)
    assert hosts.fences() == 1
    assert hosts.connect(hosts.outsider) == "ConnectionRefusedError"
    for process in (killed, again):
        process.stdin.close()
        process.stdout.close()


def test_without_a_tool_nothing_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    assert not set_fence(tmp_path, 21000, hosts=["10.0.0.1"])
    lift_fences(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_the_rights_nothing_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    refused = tmp_path / "bin"
    refused.mkdir()
    for name in ("nft", "iptables", "iptables-restore", "ip6tables", "ip6tables-restore"):
        (refused / name).write_text(f"#!/bin/sh\necho {name} >>{tmp_path}/called; exit 1\n")
        (refused / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{refused}:/usr/bin:/bin")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    assert not set_fence(scratch, 21000, hosts=["10.0.0.1"])
    assert {"nft", "iptables-restore", "iptables"} <= set((tmp_path / "called").read_text().split())


def test_host_name_is_no_rule(tmp_path: Path) -> None:
    assert not set_fence(tmp_path, 21000, hosts=["worker-0.local"])


def test_damaged_note_in_a_scratch_folder_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "fence.json").write_text(json.dumps([["rm", 1, "x"]]))
    lift_fences(tmp_path)
    (tmp_path / "fence.json").write_text("{")
    lift_fences(tmp_path)


def test_advice_has_a_rule_that_nft_reads() -> None:
    sentence = firewall.advice(ports={20001, 20000}, hosts=["10.0.0.1", "fd00::1"])
    assert "\n" not in sentence
    assert "ip saddr { 10.0.0.1 } accept; ip6 saddr { fd00::1 } accept;" in sentence
    assert "tcp dport { 20000, 20001 } reject" in sentence
