"""What a run was given as secrets is in no file of it and in nothing that a command prints."""

from __future__ import annotations

import io
import os
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from raydist.storage.filesystem import Storage
from tests.conftest import WaitUntil
from tests.e2e.conftest import BIN, Ended, start_command
from tests.support.object_store import new_bucket, s3_server

JOB = """
import os
import time
from pathlib import Path

import raydist


@raydist.job(params={"api_key": "", "db": {"password": ""}, "data": "", "hold": "", "fail": True})
def train(ctx: raydist.TrainContext):
    ctx.report({"loss": 0.5}, step=1)
    Path(ctx.params["hold"]).with_name("trains").touch()
    while ctx.params["hold"] and Path(ctx.params["hold"]).exists():
        time.sleep(0.05)
    if ctx.params["fail"]:
        try:
            word = os.environ["DATABASE"].partition("@")[0].rpartition(":")[2]
            raise OSError(f"passwords {ctx.params['db']['password']} and {word} were refused")
        except OSError as error:
            secrets = f"{ctx.params['api_key']} {os.environ['HUB_TOKEN']}"
            raise ValueError(f"{secrets} cannot read {ctx.params['data']}") from error
"""
SECRETS = (
    "swordfish-in-a-param",
    "nested-password",
    "password-in-a-uri",
    "signature-in-a-query",
    "token-in-the-env",
    "password-in-the-env",
)


class Shell:
    """Runs commands of one run, and gathers all that they print."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self._folder = folder
        self._environ = environ
        self.printed = ""

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return start_command([BIN / "raydist", *arguments], folder=self._folder, environ=self._environ)

    def end(self, process: subprocess.Popen[str]) -> Ended:
        out, err = process.communicate(timeout=240)
        self.printed += out + err
        return Ended(code=process.returncode, out=out, err=err)

    def run(self, *arguments: str) -> Ended:
        return self.end(self.start(*arguments))


def stored(uri: str) -> Iterator[tuple[str, bytes]]:
    """Yields every file of a storage, and those inside of archives."""
    storage = Storage.open(uri)
    found = {file.key for file in storage.list_files("")}
    assert "run/run.json" in found
    for key in found:
        content = storage.read_bytes(key)
        yield key, content
        if key.endswith(".zip"):
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                yield from ((f"{key}:{name}", archive.read(name)) for name in archive.namelist())


def contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    return ((str(path), path.read_bytes()) for path in folder.rglob("*") if path.is_file())


def command_lines() -> dict[str, bytes]:
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found[process.name] = (process / "cmdline").read_bytes()
        except OSError:
            continue
    return found


@pytest.mark.exhaustive("s3", covered_by="the same in a folder; tests/storage has each operation on S3")
@pytest.mark.slow
@pytest.mark.parametrize("place", ["folder", pytest.param("s3", marks=pytest.mark.slow)])
def test_secrets_of_a_run_are_nowhere(place: str, tmp_path: Path, wait_until: WaitUntil) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "job.py").write_text(JOB)
    hold = tmp_path / "hold"
    hold.touch()
    data = "s3://KEYID:password-in-a-uri@bucket/data?sig=signature-in-a-query"
    params = ["-p", "api_key=swordfish-in-a-param", "-p", "db={password: nested-password}"]
    params += ["-p", f"data={data}", "-p", f"hold={hold}"]
    if place == "folder":
        check(tmp_path, params, str(tmp_path / "runs"), SECRETS, wait_until)
        return
    with s3_server() as endpoint:
        bucket = new_bucket(endpoint)
        uri = f"s3://ACCESS:storage-password@{bucket}/runs?region=us-east-1&scheme=http"
        uri += f"&endpoint_override={endpoint.partition('//')[2]}"
        check(tmp_path, params, uri, (*SECRETS, "storage-password"), wait_until)


def check(
    tmp_path: Path, params: list[str], storage: str, secrets: tuple[str, ...], wait_until: WaitUntil
) -> None:
    shell = Shell(tmp_path, {**os.environ, "COLUMNS": "500", "HUB_TOKEN": "token-in-the-env"})
    place = ("--storage", storage)
    submit = ("code/job.py", *params, *place, "--name", "run", "--address", "local", "--max-failures", "0")
    submit += ("--env", "HUB_TOKEN", "--env", "DATABASE=postgres://me:password-in-the-env@db/x")
    assert shell.run("plan", *submit).code == 0
    assert shell.run("plan", *submit, "--json").code == 0

    process = shell.start("submit", *submit)
    wait_until(lambda: process.poll() is not None or (tmp_path / "trains").exists(), timeout_s=120)
    shown = command_lines()
    assert b"api_key=***" in shown[str(process.pid)], shown[str(process.pid)]
    for pid, line in shown.items():
        assert not [one for one in secrets if one.encode() in line], (pid, line)
    for more in ((), ("--all",)):
        assert shell.run("status", "run", *more, *place).code == 0
    (tmp_path / "hold").unlink()
    ended = shell.end(process)
    assert ended.code == 1
    assert "ValueError: *** *** cannot read s3://***@bucket/data?sig=***" in ended.err + ended.out

    for command in ("status", "status --all", "reproduce", "logs", "status --checkpoints", "metrics"):
        assert shell.run(*command.split(), "run", *place).code == 0, command
    for command in ("status", "status --all", "reproduce"):
        assert shell.run(*command.split(), "run", *place, "--json").code == 0, command
    assert shell.run("download", "run", "page", "page.html", *place).code == 0
    assert shell.run("diff", "run", "run", *place).code == 0
    assert shell.run("list", *place).code == 0
    assert "ValueError: *** *** cannot read" in shell.printed
    for secret in secrets:
        assert secret not in shell.printed, secret
    for name, content in (*contents(tmp_path), *stored(storage)):
        for secret in secrets:
            assert secret.encode() not in content, name
