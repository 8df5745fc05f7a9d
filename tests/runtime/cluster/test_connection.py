"""Connections to real Rays, each from a fresh process: ray.init leaves too much behind to share one."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from raydist.runtime.cluster import ray_internals
from raydist.runtime.cluster.authentication import ensure_token
from raydist.runtime.cluster.connection import Connection, connect
from tests.support.ray_heads import RayHead, ray_head
from tests.support.shared_ray import SharedRay

TOKEN = "0123456789abcdef0123456789abcdef"

_CONNECT = """
import json, os, signal, sys
from raydist.errors import ClusterError
from raydist.runtime.cluster.connection import EmbeddedSize, connect
address = json.loads(sys.argv[1])
signal.signal(signal.SIGTERM, signal.default_int_handler)
def state():
    names = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")
    return [*map(os.environ.get, names), signal.getsignal(signal.SIGTERM)]
before = state()
try:
    with connect(address, embedded=lambda: EmbeddedSize(num_cpus=3)) as connection:
        import ray
        from raydist.runtime.cluster.inventory import probe_inventory
        double = ray.remote(num_cpus=0)(lambda x: 2 * x)
        actor = ray.remote(num_cpus=0)(type("Echo", (), {"echo": lambda self, x: x})).remote()
        answer = {
            "source": connection.source, "is_embedded": connection.is_embedded, "owns": connection.owns,
            "answers": [ray.get(double.remote(21)), ray.get(actor.echo.remote("actor"))],
            "cpus": probe_inventory(connection).num_cpus,
            "is_ended_by_sigterm_as_before": before[-1] == signal.getsignal(signal.SIGTERM),
        }
    connection.close()
    answer["is_initialized"] = ray.is_initialized()
    answer["is_restored"] = before == state()
except ClusterError as error:
    answer = {"error": str(error)}
print(json.dumps(answer))
"""


def try_to_connect(address: str | None, environ: Mapping[str, str], **more: str) -> dict[str, Any]:
    process = subprocess.run(
        [sys.executable, "-c", _CONNECT, json.dumps(address)],
        env={**environ, **more, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        timeout=120,  # "in time": ray.init itself would wait without end
    )
    assert process.returncode == 0, process.stderr
    # stdout is the answer and nothing else: Ray's own messages would spoil `--json`.
    answer: dict[str, Any] = json.loads(process.stdout)
    return answer


@pytest.fixture(scope="module")
def guarded_head() -> Iterator[RayHead]:
    with ray_head(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN) as head:
        yield head


# Ray's proxy of clients; the signal comes between fork and exec, as it does in gRPC's code there.
_FORK_DIES_ONCE = """
import os, signal
def die_once():
    try:
        os.mkdir({died!r})
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGSEGV)
if b"--mode=proxy" in open("/proc/self/cmdline", "rb").read():
    os.register_at_fork(after_in_child=die_once)
"""


@pytest.fixture(scope="module")
def died(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is there once the proxy of `open_head` has died of a fork."""
    return tmp_path_factory.mktemp("fork") / "died"


@pytest.fixture(scope="module")
def open_head(died: Path) -> Iterator[RayHead]:
    (died.parent / "sitecustomize.py").write_text(_FORK_DIES_ONCE.format(died=str(died)))
    with ray_head(RAY_AUTH_MODE="disabled", PYTHONPATH=str(died.parent)) as head:
        yield head


def assert_joined(answer: dict[str, Any], head: RayHead) -> None:
    assert answer == {
        "source": f"Ray at {head.address}",
        "is_embedded": False,
        "owns": True,
        "answers": [42, "actor"],
        "cpus": 2.0,
        "is_ended_by_sigterm_as_before": True,
        "is_initialized": False,
        "is_restored": True,
    }


@pytest.mark.slow
def test_auto_finds_the_ray_that_ray_start_left(guarded_head: RayHead, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    answer = try_to_connect("auto", guarded_head.environ, RAY_AUTH_TOKEN_PATH=str(tmp_path / "token"))
    assert_joined(answer, guarded_head)


@pytest.mark.slow
def test_no_address_takes_ray_address(guarded_head: RayHead) -> None:
    answer = try_to_connect(
        None,
        guarded_head.environ,
        RAY_ADDRESS=guarded_head.address,
        RAY_AUTH_TOKEN=TOKEN,
        RAY_TMPDIR="/nowhere",
    )
    assert_joined(answer, guarded_head)


@pytest.mark.slow
def test_no_address_takes_a_running_ray(open_head: RayHead) -> None:
    assert_joined(try_to_connect(None, open_head.environ), open_head)


@pytest.mark.slow
def test_token_in_the_home_does_no_harm_to_a_cluster_without_authentication(open_head: RayHead) -> None:
    # In token mode the driver would refuse the cluster's calls, and its actors would die.
    assert_joined(try_to_connect(open_head.address, open_head.environ, RAY_AUTH_TOKEN=TOKEN), open_head)


@pytest.mark.slow
def test_client_address_reaches_a_cluster_from_outside(guarded_head: RayHead) -> None:
    answer = try_to_connect(guarded_head.client_address, guarded_head.environ, RAY_AUTH_TOKEN=TOKEN)
    assert "error" not in answer, answer
    assert answer["source"] == f"Ray at {guarded_head.client_address.removeprefix('ray://')}"
    assert answer["answers"] == [42, "actor"]


@pytest.mark.slow
def test_client_server_that_dies_of_its_fork_is_asked_again(open_head: RayHead, died: Path) -> None:
    assert not died.exists()
    answer = try_to_connect(open_head.client_address, open_head.environ)
    assert died.exists()
    assert "error" not in answer, answer
    assert answer["answers"] == [42, "actor"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "environ", "complaint"),
    [
        ("client_address", {"RAY_AUTH_TOKEN": "f" * 32}, "wants another token than the one found here"),
        ("address", {"RAY_AUTH_TOKEN": "f" * 32}, "wants another token than the one found here"),
        ("address", {}, "wants a token, and there is none here"),
    ],
    ids=["wrong-client", "wrong", "missing"],
)
def test_wrong_or_missing_token_is_one_sentence_in_time(
    guarded_head: RayHead, form: str, environ: dict[str, str], complaint: str
) -> None:
    answer = try_to_connect(getattr(guarded_head, form), guarded_head.environ, **environ)
    assert complaint in answer["error"]
    assert "RAY_AUTH_TOKEN" in answer["error"]


@pytest.mark.slow
def test_token_mode_on_a_cluster_without_authentication_is_refused(open_head: RayHead) -> None:
    answer = try_to_connect(open_head.address, open_head.environ, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN)
    assert "runs without authentication; unset it" in answer["error"]


@pytest.mark.slow
def test_dead_address_is_one_sentence_in_time(tmp_path: Path) -> None:
    answer = try_to_connect("127.0.0.1:1", {"HOME": str(tmp_path)})
    assert answer["error"].startswith("no Ray answers at 127.0.0.1:1; start one there")


@pytest.mark.slow
def test_server_that_is_no_ray_is_one_sentence_in_time(tmp_path: Path) -> None:
    # It accepts and says nothing, on which ray.init would hang.
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        answer = try_to_connect(address, {"HOME": str(tmp_path)})
    assert answer["error"].startswith(f"what answers at {address} is not Ray")


def test_auto_without_any_ray_here_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # This machine may run Rays of its own, which `auto` rightly finds by their processes.
    monkeypatch.setattr("raydist.runtime.cluster.connection._unrecorded_address", lambda: None)
    monkeypatch.setattr("raydist.runtime.cluster.connection._existing", lambda: None)
    with pytest.raises(Exception, match="address is auto, but no Ray runs on this machine"):
        connect("auto", environ={"RAY_TMPDIR": str(tmp_path)})


@pytest.mark.slow
def test_embedded_ray_has_the_cpus_asked_for_and_leaves_nothing(tmp_path: Path) -> None:
    folder = Path("/tmp") / f"rd-embedded-{os.getpid()}"  # short: Ray's sockets lie in it
    folder.mkdir()
    environ = {"HOME": str(tmp_path), "RAY_TMPDIR": str(folder), "RAY_AUTH_MODE": "token"}
    answer = try_to_connect("local", environ)
    assert answer == {
        "source": "embedded Ray",
        "is_embedded": True,
        "owns": True,
        "answers": [42, "actor"],
        "cpus": 3.0,
        "is_ended_by_sigterm_as_before": True,
        "is_initialized": False,
        "is_restored": True,
    }
    assert [path.name for path in (folder / "ray").iterdir() if path.name.startswith("session")] == []
    (folder / "ray").rmdir()
    folder.rmdir()
    assert list(tmp_path.iterdir()) == []  # Ray would keep a token there


def pids_naming(text: str, *, program: str = "") -> list[int]:
    """Returns the processes whose command has `text` in it, and a program that ends with `program`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (process / "cmdline").read_bytes().decode()
            if text in command and command.partition("\0")[0].endswith(program):
                found.append(int(process.name))
    return found


@pytest.mark.slow
def test_embedded_ray_that_is_too_slow_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    folder = Path("/tmp") / f"rd-slow-{os.getpid()}"
    folder.mkdir()
    (tmp_path / "job.py").write_text("def main(ctx):\n    ctx.report({'loss': 1.0})\n")
    options = ["--json", "--address", "local", "--storage", str(tmp_path / "runs")]
    process = subprocess.Popen(
        [sys.executable, "-m", "raydist.cli.main", "submit", f"{tmp_path}/job.py:main", *options],
        env={**os.environ, "RAY_TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    while not (raylets := pids_naming(str(folder), program="/raylet")):
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(raylets[0], signal.SIGSTOP)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 3
    error = json.loads(out)["error"]
    assert error["type"] == "ClusterError"
    assert re.match(r"cannot start embedded Ray: it was not up after \d+ s; try", error["message"])
    assert pids_naming(str(folder)) == []
    assert list((folder / "ray").glob("session_2*")) == []
    shutil.rmtree(folder)


@pytest.mark.slow
def test_own_token_of_an_embedded_ray_is_kept_nowhere(shared_ray: SharedRay) -> None:
    shared_ray.opened()
    import ray

    ask = ray.remote(num_cpus=0)(lambda: os.environ.get("RAY_AUTH_TOKEN"))
    token = ray.get(ask.remote(), timeout=60)
    assert token == os.environ["RAY_AUTH_TOKEN"]
    assert not (shared_ray.home / ".ray").exists()


@pytest.mark.parametrize(
    ("environ", "has_token", "is_made"),
    [
        ({}, False, True),
        ({"RAY_AUTH_MODE": "token"}, False, True),
        ({"RAY_AUTH_MODE": "token"}, True, False),
        ({"RAY_AUTH_MODE": "disabled"}, False, False),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/nowhere"}, False, False),  # Ray says so
    ],
)
def test_own_token_is_made_where_the_user_has_none(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], has_token: bool, is_made: bool
) -> None:
    monkeypatch.setattr(ray_internals, "reload_authentication", lambda: None)
    monkeypatch.setattr(ray_internals, "has_token", lambda: has_token)
    tokens = []
    for _ in range(2):
        given = dict(environ)
        ensure_token(given)
        tokens.append(given.pop("RAY_AUTH_TOKEN", None))
        assert given == environ
    assert [token is not None and len(token) == 64 for token in tokens] == [is_made] * 2
    assert not is_made or tokens[0] != tokens[1]


@pytest.mark.slow
def test_driver_that_has_ray_already_keeps_it(ray_cluster: Connection) -> None:
    import ray

    with connect("127.0.0.1:1") as connection:
        assert (connection.owns, connection.is_embedded) == (False, False)
        assert connection.source == "this process's embedded Ray"
    assert ray.is_initialized()


@pytest.mark.slow
def test_inside_a_ray_worker_its_own_ray_is_taken(ray_cluster: Connection) -> None:
    import ray

    @ray.remote(num_cpus=0)
    def in_task() -> tuple[bool, str]:
        with connect(None) as connection:
            return connection.owns, connection.source

    found = ray.get(in_task.remote(), timeout=60)
    assert found == (False, f"Ray at {ray.get_runtime_context().gcs_address}")
