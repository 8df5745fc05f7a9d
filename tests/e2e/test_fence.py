"""--fence and --allow-public-ports, with TensorFlow's real servers on hosts of their own."""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import WaitUntil
from tests.support.hosts import Host, Hosts
from tests.support.netns import Machine, why_unavailable

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable())),
]

JOB = """
import os
import time

import tensorflow as tf

import raydist


@raydist.job(workers=2, params={"hold": ""})
def train(ctx: raydist.TrainContext):
    # Says that TensorFlow's servers are up.
    open(os.path.join(ctx.params["hold"], f"up-{ctx.attempt}-{ctx.task.index}"), "w").close()
    while os.path.exists(os.path.join(ctx.params["hold"], "hold")):
        time.sleep(0.05)
    total = ctx.strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0)))
    ctx.report({"total": float(total)}, step=1)
"""
CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5).close()
    print("accepted")
except OSError as error:
    print(type(error).__name__)
"""
PORT = 21000


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with Hosts.started(1, 1) as hosts:
        hosts.head.write("code/job.py", JOB)
        (hosts.shared / "hold").touch()
        yield hosts


def submit(hosts: Hosts, name: str, *arguments: str) -> subprocess.Popen[str]:
    job = hosts.head.disk / "code" / "job.py"
    place = ("--storage", str(hosts.shared / "runs"), "--name", name, "-p", f"hold={hosts.shared}")
    address = ("--address", f"{hosts.head.address}:6379", "--ports", f"{PORT}-{PORT + 9}")
    return hosts.raydist("submit", job, "--json", *place, *address, *arguments)


def wait_for_servers(
    hosts: Hosts, process: subprocess.Popen[str], wait_until: WaitUntil, attempt: int
) -> None:
    up = [hosts.shared / f"up-{attempt}-{index}" for index in range(2)]
    wait_until(lambda: process.poll() is not None or all(map(Path.exists, up)), timeout_s=200)
    assert process.poll() is None, process.communicate()


def connect(machine: Machine, host: Host) -> str:
    return machine.run(sys.executable, "-c", CONNECT, host.address, str(PORT)).strip()


def rules_of(host: Host) -> str:
    tools = ("nft list ruleset", "iptables-save", "ip6tables-save")
    return host.run("sh", "-c", "; ".join(f"PATH=$PATH:/usr/sbin {tool}" for tool in tools))


@pytest.mark.skipif(
    shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin") is None, reason="nftables is not installed"
)
def test_outsider_is_refused_and_the_run_goes_on(hosts: Hosts, wait_until: WaitUntil) -> None:
    outsider = hosts.outsider()
    process = submit(hosts, "fenced", "--fence", "--max-failures", "1")
    wait_for_servers(hosts, process, wait_until, 0)
    for host in hosts.all:
        assert connect(outsider, host) == "ConnectionRefusedError"
        for peer in hosts.all:
            assert connect(peer.machine, host) == "accepted"
    # A killed task leaves its rules behind; the run clears up after it, and the next attempt has new ones.
    other = hosts.all[1]
    other.run("kill", "-KILL", *map(str, other.task_pids()))
    wait_for_servers(hosts, process, wait_until, 1)
    assert [connect(outsider, host) for host in hosts.all] == 2 * ["ConnectionRefusedError"]
    assert [rules_of(host).count("chain input") for host in hosts.all] == [1, 1]
    (hosts.shared / "hold").unlink()
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    result = json.loads(out)
    assert (result["attempts"], result["metrics"]["total"]) == (2, 2.0)
    assert not [note for note in result["notes"] if "--fence" in note]
    assert not [rules for rules in map(rules_of, hosts.all) if "raydist" in rules]


def test_host_that_may_not_have_rules_gets_a_note_once(hosts: Hosts) -> None:
    for host in hosts.all:
        hidden = host.write("nothing", "#!/bin/sh\nexit 1\n")
        host.machine.inside(hidden).chmod(0o755)
        for tool in ("nft", "iptables-restore"):
            found = shutil.which(tool, path="/usr/sbin:/sbin:/usr/bin")
            if found is not None:
                host.run("mount", "--bind", hidden, Path(found).resolve())
    (hosts.shared / "hold").unlink(missing_ok=True)
    out, err = submit(hosts, "open", "--fence").communicate(timeout=200)
    result = json.loads(out)
    assert result["state"] == "SUCCEEDED", err
    [note] = [note for note in result["notes"] if "--fence" in note]
    addresses = ", ".join(host.address for host in hosts.all)
    assert f"ip saddr {{ {addresses} }} accept; tcp dport {{ {PORT} }} reject" in note


PUBLIC = "8.8.4.4"
# Its exit code, what it printed as JSON, and stderr.
Submit = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def submit_in_public(tmp_path: Path) -> Iterator[Submit]:
    """Submits the job to a Ray on a host whose only address is public."""
    (tmp_path / "job.py").write_text(JOB)
    machine = Machine.start("public", private={Path("/dev/shm"): 256})
    short = Path(f"/tmp/rdp{machine.init_pid}")  # Ray's sockets lie in it
    try:
        machine.run("ip", "addr", "add", f"{PUBLIC}/32", "dev", "lo")
        bin_ = Path(sys.executable).parent
        token = f"RAY_AUTH_TOKEN={secrets.token_hex(32)}"
        environ = ("env", f"RAY_TMPDIR={short}", "RAY_USAGE_STATS_ENABLED=0", token)
        start = ["start", "--head", f"--node-ip-address={PUBLIC}", "--port=6379", "--num-cpus=2"]
        machine.run(*environ, bin_ / "ray", *start, "--include-dashboard=false", timeout_s=120)
        command = [*environ, bin_ / "raydist", "submit", tmp_path / "job.py", "--address", f"{PUBLIC}:6379"]
        command += ["--storage", tmp_path / "runs", "-p", f"hold={tmp_path}", "--json"]

        def submit(*more: str) -> tuple[int, dict[str, Any], str]:
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            process = machine.popen(*command, *more, **pipes)
            out, err = process.communicate(timeout=200)
            return process.returncode, json.loads(out), err

        yield submit
    finally:
        machine.kill()
        shutil.rmtree(short, ignore_errors=True)


def test_server_at_a_public_address_is_refused_unless_it_is_allowed(
    submit_in_public: Submit, tmp_path: Path
) -> None:
    code, result, err = submit_in_public()
    assert (code, result["error"]["type"]) == (3, "ClusterError"), err
    assert f"worker/0 would listen at {PUBLIC}:" in result["error"]["message"]
    assert "--allow-public-ports" in result["error"]["message"]
    assert "Traceback" not in err
    assert not list(tmp_path.glob("up-*"))
    assert submit_in_public("--workers", "1")[0] == 0  # which has no server
    assert submit_in_public("--allow-public-ports")[1]["state"] == "SUCCEEDED"
