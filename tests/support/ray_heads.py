"""Real Rays of `ray start`, beside any other Ray of this machine."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.environ import inherited
from tests.support.processes import PATIENCE

RAY = Path(sys.executable).with_name("ray")
_START_TIMEOUT_S = 120.0 * PATIENCE


@dataclass(frozen=True, kw_only=True)
class RayHead:
    """A running head and how to reach it from a process whose environment is `environ`."""

    address: str
    client_address: str
    environ: Mapping[str, str]


@contextmanager
def ray_head(*, num_cpus: int = 2, **environ: str) -> Iterator[RayHead]:
    """Starts a head in a home and a folder of its own; ends exactly its processes.

    Args:
      environ: Variables of the head's environment, which its workers inherit. Without RAY_AUTH_MODE the head
        has a token, which is found by its home.
    """
    with ExitStack() as stack:
        # Short, because Ray's sockets lie in it and their paths are limited to 107 bytes.
        folder = Path(tempfile.mkdtemp(prefix="rd-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        base = {**inherited(), "HOME": str(folder), "RAY_TMPDIR": str(folder)}
        if "RAY_AUTH_MODE" not in environ:
            base["RAY_AUTH_MODE"] = "token"
            (folder / ".ray").mkdir()
            (folder / ".ray" / "auth_token").write_text(secrets.token_hex(32))
        port, client_port, agent_port = free_ports(3)
        command = [str(RAY), "start", "--head", "--block", f"--port={port}", f"--num-cpus={num_cpus}"]
        command += [f"--ray-client-server-port={client_port}", f"--dashboard-agent-listen-port={agent_port}"]
        command += ["--include-log-monitor=false"]  # tasks keep their own logs
        command += ["--include-dashboard=false", "--min-worker-port=0", "--max-worker-port=0"]
        output = stack.enter_context((folder / "output").open("wb"))
        process = subprocess.Popen(
            command,
            env={**base, **environ},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=folder,
        )
        stack.callback(_end, process)
        _wait_for_start(process, folder)
        address = (folder / "ray" / "ray_current_cluster").read_text().strip()
        host = address.rpartition(":")[0]
        _wait_for_client_server(process, host, client_port)
        yield RayHead(address=address, client_address=f"ray://{host}:{client_port}", environ=base)


def _wait_for_start(process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while b"Ray runtime started" not in (folder / "output").read_bytes():
        assert process.poll() is None, (folder / "output").read_text()
        assert time.monotonic() < deadline, (folder / "output").read_text()
        time.sleep(0.1)


def _wait_for_client_server(process: subprocess.Popen[bytes], host: str, port: int) -> None:
    """`ray start` says that Ray has started before Ray's client server listens."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        try:
            socket.create_connection((host, port), timeout=1).close()
            return
        except OSError:
            assert process.poll() is None, f"the head ended before anything listened at {host}:{port}"
            assert time.monotonic() < deadline, f"nothing listens at {host}:{port}"
        time.sleep(0.1)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)  # `ray start --block` then ends all that it has started
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _lose(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):  # it did not even start
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def free_ports(count: int) -> list[int]:
    """Returns TCP ports that nothing listens at."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for unbound in sockets:
            unbound.bind(("", 0))
        return [bound.getsockname()[1] for bound in sockets]


@contextmanager
def ray_node(
    address: str,
    *,
    num_cpus: int,
    is_lost: bool = False,
    behind: Sequence[str] = (),
    options: Sequence[str] = (),
    **environ: str,
) -> Iterator[None]:
    """Joins one more node of this machine to the Ray at `address`, with this process's token.

    Leaving the context ends the node with all that runs on it; where it `is_lost`, without a word, so that
    Ray counts on it until heartbeats are missed.

    Args:
      options: More of `ray start`.
      behind: A command that runs the one that follows it, as `unshare` does.
    """
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="rd-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        (agent_port,) = free_ports(1)
        command = [*behind, str(RAY), "start", f"--address={address}", "--block", f"--num-cpus={num_cpus}"]
        command += [f"--dashboard-agent-listen-port={agent_port}", "--include-log-monitor=false"]
        command += ["--min-worker-port=0", "--max-worker-port=0", *options]
        output = stack.enter_context((folder / "output").open("wb"))
        process = subprocess.Popen(
            command,
            env={**os.environ, **environ},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=folder,
        )
        stack.callback(_lose if is_lost else _end, process)
        _wait_for_start(process, folder)
        yield


def drain(node_id: str) -> None:
    """Has Ray say of a node that it is about to be taken away."""
    from ray._raylet import GcsClient

    reason_preemption, deadline_ms = 2, int((time.time() + 300) * 1000)
    accepted, why = GcsClient(address=gcs_address()).drain_node(
        node_id, reason_preemption, "a test", deadline_ms
    )
    assert accepted, why


def wait_for_lost_nodes(left: int = 1) -> None:
    """Ray counts on the nodes of the test before until their heartbeats are missed."""
    import ray

    deadline = time.monotonic() + 90 * PATIENCE
    while sum(node["Alive"] for node in ray.nodes()) > left:
        assert time.monotonic() < deadline, ray.nodes()
        time.sleep(0.1)


def gcs_address() -> str:
    """Returns the address of the Ray that this process has joined."""
    import ray

    return str(ray.get_runtime_context().gcs_address)
