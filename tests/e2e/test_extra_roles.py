"""A feature server alongside the training, from a config file to its log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import Ended, status_of

pytestmark = pytest.mark.slow

SERVER = """
import os, socket, sys
server = socket.create_server(("", int(sys.argv[1])))
open("up", "w").close()
print("serves as", os.environ["RAYDIST_ROLE"], os.environ["RAYDIST_INDEX"], flush=True)
while True:
    server.accept()[0].sendall(b"features")
"""
TRAINING = """
import os, socket, sys, time
address = (os.environ["RAYDIST_HOSTS_FEATURES"], int(sys.argv[1]))
for _ in range(300):
    try:
        print("got", socket.create_connection(address).recv(100).decode())
        break
    except ConnectionRefusedError:
        time.sleep(0.1)
else:
    sys.exit("nobody serves")
"""
CONFIG = """
roles:
  features: {{command: python serve.py {port} --api-key hush, cpus: 0.5}}
"""


def free_port() -> int:
    import socket

    with socket.create_server(("", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


def write(folder: Path, server: str) -> tuple[str, ...]:
    code, port = folder / "code", free_port()
    code.mkdir()
    (code / "serve.py").write_text(server)
    (code / "main.py").write_text(TRAINING)
    (folder / "c.yaml").write_text(CONFIG.format(port=port))
    return ("submit", "code/main.py", "-c", "c.yaml", "--json", "--name", "r", "--", str(port))


def with_options(command: tuple[str, ...], *options: str) -> tuple[str, ...]:
    return (*command[:2], *options, *command[2:])


def test_training_uses_a_server_of_the_run(raydist: Callable[..., Ended], tmp_path: Path) -> None:
    ended = raydist(*write(tmp_path, SERVER))
    assert ended.code == 0, ended.out + ended.err
    log = raydist("logs", "r", "--task", "features/0")
    assert log.out == "serves as features 0\n"
    assert "got features" in raydist("logs", "r", "--task", "worker/0").out
    record = status_of(tmp_path, "r")
    assert [task["task"] for task in record["tasks"]] == ["worker/0"]
    assert record["spec"]["roles"]["features"]["command"][-2:] == ["--api-key", "***"]
    stored = [path for path in (tmp_path / "raydist_runs" / "r").rglob("*") if path.is_file()]
    assert not [path for path in stored if b"hush" in path.read_bytes()]


def test_server_that_dies_is_the_error_of_the_run(raydist: Callable[..., Ended], tmp_path: Path) -> None:
    ended = raydist(*with_options(write(tmp_path, "raise SystemExit('no data')"), "--max-failures", "0"))
    assert ended.code == 1, ended.out + ended.err
    error = ended.json["error"]
    assert error["type"] == "TaskFailedError"
    assert "features/0 ended by itself on " in error["message"]
    assert "ended with exit code 1; the end of its log: no data; not retried" in error["message"]
    assert "hush" not in ended.out + ended.err
