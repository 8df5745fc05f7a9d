"""A feature server alongside the training, from a config file to its log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import Ended, RunningRay, start_raydist, status_of
from tests.support.processes import PATIENCE

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


FAILING = """
roles:
  broken: {command: [python, -c, "raise SystemExit('no data')"], cpus: 0.5, may_fail: true}
  missing: {command: no-such-program, cpus: 0.5, may_fail: true}
  late: {command: [sh, -c, "trap 'exit 3' TERM; while true; do sleep 0.1; done"], cpus: 0.5, may_fail: true}
"""


def test_roles_that_may_fail_cost_no_attempt(raydist: Callable[..., Ended], tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("import time\ntime.sleep(5)\nprint('trained')\n")
    (tmp_path / "c.yaml").write_text(FAILING)
    ended = raydist("submit", "main.py", "-c", "c.yaml", "--json", "--name", "r", "--max-failures", "0")
    assert ended.code == 0, ended.out + ended.err
    assert (ended.json["state"], ended.json["attempts"]) == ("SUCCEEDED", 1)
    notes = [note for note in ended.json["notes"] if note.endswith("; the run continues without it")]
    assert sorted(note.partition(" ")[0] for note in notes) == ["broken/0", "missing/0"]
    assert raydist("logs", "r", "--task", "broken/0").out == "no data\n"


def test_role_sees_the_gpus_that_it_reserves(gpu_ray: RunningRay, tmp_path: Path) -> None:
    role = "command: [sh, -c, 'echo sees $CUDA_VISIBLE_DEVICES.'], cpus: 0.5"
    (tmp_path / "c.yaml").write_text(f"roles:\n  one: {{{role}, gpus: 1}}\n  none: {{{role}}}\n")
    (tmp_path / "main.py").write_text("print('trained')\n")

    def run(*command: str) -> str:
        process = start_raydist(gpu_ray, tmp_path, *command)
        out, err = process.communicate(timeout=240 * PATIENCE)
        assert process.returncode == 0, err
        return out

    run("submit", "main.py", "-c", "c.yaml", "--name", "r", "--gpus", "0")
    assert run("logs", "r", "--task", "one/0") in ("sees 0.\n", "sees 1.\n")
    assert run("logs", "r", "--task", "none/0") == "sees .\n"


def test_server_that_dies_is_the_error_of_the_run(raydist: Callable[..., Ended], tmp_path: Path) -> None:
    ended = raydist(*with_options(write(tmp_path, "raise SystemExit('no data')"), "--max-failures", "0"))
    assert ended.code == 1, ended.out + ended.err
    error = ended.json["error"]
    assert error["type"] == "TaskFailedError"
    assert "features/0 ended by itself on " in error["message"]
    assert "ended with exit code 1; the end of its log: no data; not retried" in error["message"]
    assert "hush" not in ended.out + ended.err
