"""The machines that other tests take for hosts: what they share, and that each verb does what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import WaitUntil
from tests.support.netns import Machine, Network, why_unavailable

pytestmark = pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable()))

_CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], 9), timeout=float(sys.argv[2]))"
_SEND = """
import socket, sys, time
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range(400):
    out.sendto(b"%d" % number, (sys.argv[1], 5000))
    time.sleep(0.001)
"""
_RECEIVE = """
import socket
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
out.bind(("", 5000))
print("ready", flush=True)
out.settimeout(3)
count = 0
try:
    while True:
        out.recv(100)
        count += 1
except TimeoutError:
    print(count)
"""


def children() -> set[str]:
    """Returns this process's children, those of other tests included."""
    return {pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}


class Pair:
    """Two machines on one network."""

    def __init__(self, network: Network, machines: list[Machine], addresses: list[str]) -> None:
        self.network = network
        self.first, self.second = machines
        self.addresses = addresses

    def outcome(self, address: str, *, timeout_s: float = 1.0) -> str:
        """Returns how a connection ends from the first machine to a port where nobody listens."""
        command = [sys.executable, "-c", _CONNECT, address, str(timeout_s)]
        process = self.first.popen(*command, stderr=subprocess.PIPE, text=True)
        _, err = process.communicate(timeout=30)
        return str(err).splitlines()[-1].partition(":")[0]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        network = Network.start()
        stack.callback(network.stop)
        machines = []
        for name in ("first", "second"):
            machine = Machine.start(name, private={tmp_path: 1})
            stack.callback(machine.kill)
            machines.append(machine)
        addresses = [network.join(machine, number=1 + index) for index, machine in enumerate(machines)]
        yield Pair(network, machines, addresses)


def test_machines_have_names_addresses_and_processes_of_their_own(pair: Pair, wait_until: WaitUntil) -> None:
    assert pair.first.run("cat", "/proc/sys/kernel/hostname") == "first\n"
    assert pair.outcome(pair.addresses[1]) == "ConnectionRefusedError"
    sleeper = pair.second.popen("sleep", "100")
    wait_until(lambda: pair.second.pids_of("sleep"))
    assert pair.second.pids_of("sleep")[0] < 100
    assert pair.first.pids_of("sleep") == []
    assert sleeper.poll() is None


def test_private_folder_is_seen_by_one_machine_alone(pair: Pair, tmp_path: Path) -> None:
    pair.first.inside(tmp_path / "file").write_text("mine")
    assert pair.first.run("cat", tmp_path / "file") == "mine"
    assert pair.second.run("ls", tmp_path) == ""
    assert list(tmp_path.iterdir()) == []


def test_what_is_outside_of_the_network_is_refused_at_once(pair: Pair) -> None:
    assert pair.outcome("192.0.2.77", timeout_s=20) == "OSError"


def test_cut_link_loses_everything_and_heals(pair: Pair) -> None:
    pair.network.cut(2)
    assert pair.outcome(pair.addresses[1]) == "TimeoutError"
    pair.network.heal(2)
    assert pair.outcome(pair.addresses[1], timeout_s=20) == "ConnectionRefusedError"


@pytest.mark.slow
def test_slow_link_is_late_and_loses_frames_until_it_heals(pair: Pair) -> None:
    pair.network.slow(2, pair.second, delay_s=0.2, loss=0.0)
    assert pair.outcome(pair.addresses[1], timeout_s=0.2) == "TimeoutError"
    assert pair.outcome(pair.addresses[1], timeout_s=20) == "ConnectionRefusedError"
    pair.network.heal(2)
    pair.network.slow(2, pair.second, delay_s=0.0, loss=0.05)
    receiver = pair.second.popen(sys.executable, "-c", _RECEIVE, stdout=subprocess.PIPE, text=True)
    assert receiver.stdout.readline() == "ready\n"
    pair.first.run(sys.executable, "-c", _SEND, pair.addresses[1])
    out, _ = receiver.communicate(timeout=30)
    assert 200 < int(out) < 400
    pair.network.heal(2)
    assert pair.outcome(pair.addresses[1], timeout_s=20) == "ConnectionRefusedError"


def test_orphan_that_dies_leaves_no_zombie(pair: Pair, wait_until: WaitUntil) -> None:
    pair.second.run("sh", "-c", "sleep 0.1 >/dev/null 2>&1 &")
    wait_until(lambda: pair.second.pids_of("sleep") == [])


def test_killed_machine_leaves_no_process(pair: Pair) -> None:
    sleeper = pair.second.popen("sh", "-c", "sleep 100 & sleep 100")
    pair.second.kill()
    pair.second.kill()
    assert (pair.second.is_alive, sleeper.poll() is not None) == (False, True)
    pair.network.heal(1)  # the network continues


def test_machine_that_cannot_start_leaves_no_process() -> None:
    before = children()
    with pytest.raises(AssertionError, match="half did not start"):
        Machine.start("half", private={Path("/nonexistent/folder"): 1})
    assert children() == before


def test_session_that_is_killed_takes_its_machines_along(wait_until: WaitUntil) -> None:
    code = (
        "import time\n"
        "from tests.support.netns import Machine\n"
        "print(Machine.start('orphan').init_pid, flush=True)\n"
        "time.sleep(100)\n"
    )
    root = Path(__file__).parents[3]
    session = subprocess.Popen([sys.executable, "-c", code], cwd=root, stdout=subprocess.PIPE, text=True)
    init_pid = int(session.stdout.readline())
    assert os.path.exists(f"/proc/{init_pid}")
    session.kill()
    session.communicate()
    wait_until(lambda: not os.path.exists(f"/proc/{init_pid}"))
