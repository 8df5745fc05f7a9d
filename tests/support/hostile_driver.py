"""Tries every command that takes a run or a storage on a storage that somebody wrote who wants to do harm.

`python -m tests.support.hostile_driver KIND FOLDER` prints what happened as JSON. Each command runs in a fork
of this process, which has imported what they need.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import sys
import time
import traceback
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from raydist.cli.main import COMMANDS, cli, run
from raydist.storage.run_record import read_record
from raydist.storage.run_storage import open_run
from tests.support.hostile import Hostile, Traps, dump
from tests.support.hostile_files import (
    detached_record,
    evil_pickle,
    link_folders,
    live_record,
    parquet_bomb,
    plant,
    sparse,
    write_run,
    write_study,
    zip_bomb,
)
from tests.support.page_runs import record_facts
from tests.support.task_process import task_process

# They run code that the user names with the command: a job, or the copy of the code of a run.
EXECUTES = {
    "submit": "runs the job that it names",
    "search": "runs the job that it names; with --resume Ray Tune reads its own state",
    "compare": "runs the job that it names",
    "resume": "runs the code that the run had, as its record names it",
}
# What follows RUN, where that is not nothing. `reproduce --run`, `--verify` and `export --trust` execute; see
# the guide.
VARIANTS: dict[str, Sequence[str]] = {
    "chaos": ("--kill worker/0 --wait 0s", "--stop worker/1 --wait 0s"),
    "delete": ("",),  # asks first; nobody answers
    "download": ("output", "checkpoint", "export", "code", "page page.html"),
    "export": ("--to keras,saved_model -o exported",),
    "list": ("--params --sort loss", "--json", "--study s"),
    "logs": ("", "--raw --time", "--tail 3 --json", "--since 90s"),
    "metrics": ("", "--plot", "--json", "--format csv --local"),
    "predict": ("data.csv -o predicted",),
    "profile": ("--timeout 0.5s",),
    "reproduce": ("", "--json"),
    "stacks": ("--timeout 0.5s",),
    "status": ("", "--json", "--all", "--checkpoints", "--checkpoints --verify"),
    "stop": ("--timeout 0.5s --wait 0s",),
    "wait": ("--timeout 0.5s --wait 0s",),
}
SERVERS = ("ui", "tensorboard")
# It waits for a step, until Ctrl-C.
WAITS = ("chaos",)
# They load the model with TensorFlow, which takes memory and time: a run of some of the storages is enough.
LOADS_TENSORFLOW = ("export", "predict")
WITH_MODELS = ("links", "fifos", "sparse", "pickles", "bombs")
SECRET = "what only the victim may read"
MAX_CPU_S, MAX_WALL_S, MAX_MB, MAX_TENSORFLOW_MB = 10.0, 40.0, 512, 1024
# Where commands run, what is there before, and their folder of temporary files.
_LEFT_IN = ("work", "tmp")
_KEPT = ("job.py", "data.csv", "ray")
_TEXT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
# It notes each signal that it gets.
_VICTIM = """
import signal, sys, time
def note(number, frame): open(sys.argv[1], "a").write(f"{number}\\n")
for number in (1, 2, 10, 12, 15): signal.signal(number, note)
print("ready", flush=True)
time.sleep(3600)
"""

Make = Callable[[Path, str, Hostile], None]


def _records(storage: Path, name: str, hostile: Hostile) -> None:
    record = hostile.record()
    write_run(storage, name, hostile, record if name != "run-3" else hostile.damaged(record))


def _live(storage: Path, name: str, hostile: Hostile) -> None:
    make = live_record if int(name[-1]) % 2 else detached_record
    write_run(storage, name, hostile, make(hostile))
    assert not read_record(open_run(str(storage), run=name)).state.is_terminal


def _planted(what: Callable[[Path], object]) -> Make:
    def make(storage: Path, name: str, hostile: Hostile) -> None:
        write_run(storage, name, hostile, record_facts())
        plant(storage / name, what, but="run.json" if int(name[-1]) % 2 else "")

    return make


def _links(storage: Path, name: str, hostile: Hostile) -> None:
    secret = hostile.traps.secret
    if name == "run-0":
        return _planted(lambda path: path.symlink_to(secret))(storage, name, hostile)
    if name == "run-1":
        relative = _planted(lambda path: path.symlink_to(os.path.relpath(secret, path.parent)))
        return relative(storage, name, hostile)
    write_run(storage, name, hostile, record_facts())
    link_folders(storage / name, secret.parent if name == "run-2" else Path("/proc/self"))


def _bombs(storage: Path, name: str, hostile: Hostile) -> None:
    write_run(storage, name, hostile, record_facts())
    code, model, metrics = zip_bomb("job.py"), zip_bomb("config.json"), parquet_bomb()
    for path in (storage / name).rglob("*"):
        if path.suffix == ".zip":
            path.write_bytes(code)
        elif path.suffix == ".keras":
            path.write_bytes(model)
        elif path.suffix == ".parquet":
            path.write_bytes(metrics)
        elif path.suffix in (".log", ".jsonl"):
            path.write_bytes(b'{"a": ' * 150 + b"1" + b"}" * 150 + b"\n" + b"/a" * 500_000)


KINDS: dict[str, tuple[int, Make]] = {
    "records": (4, _records),
    "live": (2, _live),
    "links": (4, _links),
    "fifos": (2, _planted(os.mkfifo)),
    "sparse": (2, _planted(sparse)),
    "deep": (2, _planted(lambda path: path.write_text("[" * 200_000))),
    "pickles": (2, _planted(lambda path: path.write_bytes(evil_pickle(_State.traps)))),
    "bombs": (1, _bombs),
}


class _State:
    traps: Traps


@dataclasses.dataclass
class Watch:
    """The traps, and what sprang them."""

    traps: Traps
    folder: Path
    listener: socket.socket

    def problems(self) -> Iterator[str]:
        if self.traps.canary.exists():
            yield "executed"
            self.traps.canary.unlink()
        with contextlib.suppress(BlockingIOError):
            self.listener.accept()[0].close()
            yield "joined"
        state = Path(f"/proc/{self.traps.pid}/stat").read_text().rpartition(")")[2].split()[0]
        signals = self.folder / "signals"
        if state != "S" or signals.exists():
            yield f"signalled {state} {signals.read_text() if signals.exists() else ''}"
            signals.unlink(missing_ok=True)
        for path in [path for left in _LEFT_IN for path in (self.folder / left).iterdir()]:
            if path.name not in _KEPT:
                yield from (f"leaked to {one}" for one in (path, *path.rglob("*")) if _has_secret(one))
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _has_secret(path: Path) -> bool:
    is_small = path.is_file() and not path.is_symlink() and path.stat().st_size < 2**20
    return is_small and SECRET in path.read_text(errors="replace")


@contextlib.contextmanager
def watching(folder: Path) -> Iterator[Watch]:
    """Sets the traps."""
    victim = folder / "victim"
    victim.mkdir()
    (victim / "secret").write_text(SECRET)
    signals = folder / "signals"
    command = [sys.executable, "-S", "-c", _VICTIM, str(signals)]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        with task_process(folder / "scratch", run="other", task="worker/0", command=command) as process:
            process.stdout.readline()
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            _State.traps = Traps(folder=victim, address=address, pid=process.pid)
            yield Watch(_State.traps, folder, listener)


def commands(kind: str, storage: Path, runs: Sequence[str]) -> Iterator[list[str]]:
    """Yields every command that takes a run or a storage, but for those of EXECUTES and SERVERS."""
    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        names = [parameter.name for parameter in command.params]
        if "storage" not in names or name in EXECUTES or name in SERVERS:
            continue
        takes_run = "run" in names or "runs" in names
        arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
        num_runs = 2 if name == "diff" else 1
        tried = runs
        if name in LOADS_TENSORFLOW:
            tried = runs[:1] if kind in WITH_MODELS else []
        for place, run_ in enumerate(tried if takes_run else [""]):
            given = [run_, runs[place - 1]][:num_runs] if takes_run else []
            if not takes_run and arguments:  # plan
                given = ["job.py", "--name", runs[0], "--resume"]
            for variant in VARIANTS.get(name, ("",)):
                yield [name, *given, *variant.split(), "--storage", str(storage)]


def try_command(
    arguments: Sequence[str], watch: Watch, during: Callable[[str], None] | None = None
) -> list[str]:
    """Runs a command and returns what is wrong with what it did.

    Args:
      during: Takes the URL of a server, which then gets SIGINT.
    """
    out, err = (watch.folder / name for name in ("out", "err"))
    for path in (out, err):
        path.write_text("")
    begun_s = time.monotonic()
    pid = os.fork()
    if pid == 0:
        os._exit(_child(arguments, out, err))
    problems = []
    if during is not None:
        try:
            during(_url(out, pid))
        except Exception as error:
            problems.append(f"while it served: {error!r}")
        copies = (watch.folder / "tmp").rglob("*")
        problems += [f"leaked to {path} while it served" for path in copies if _has_secret(path)]
        os.kill(pid, signal.SIGINT)
    while not (ended := os.wait4(pid, os.WNOHANG))[0]:
        if arguments[0] in WAITS and time.monotonic() - begun_s > 1:
            os.kill(pid, signal.SIGINT)
        loads = arguments[0] in LOADS_TENSORFLOW
        if time.monotonic() - begun_s > (4 * MAX_WALL_S if loads else MAX_WALL_S):
            os.killpg(pid, signal.SIGKILL)
            problems.append("hung")
            ended = os.wait4(pid, 0)
            break
        time.sleep(0.005)
    _, status, usage = ended
    text = out.read_text(errors="replace")[: 2**24]
    told = err.read_text(errors="replace")[: 2**24]
    if os.waitstatus_to_exitcode(status) not in (0, 1, 2, 3, 4, 130) or "Traceback (most" in text + told:
        problems.append(f"failed with status {status}: {told[-1500:]}")
    if usage.ru_utime + usage.ru_stime > MAX_CPU_S:
        problems.append(f"took {usage.ru_utime + usage.ru_stime:.1f} s of CPU time")
    if usage.ru_maxrss >> 10 > (MAX_TENSORFLOW_MB if arguments[0] in LOADS_TENSORFLOW else MAX_MB):
        problems.append(f"took {usage.ru_maxrss >> 10} MB")
    if SECRET in text + told:
        problems.append("leaked to the screen")
    if "--raw" not in arguments and (found := _TEXT.search(told + ("" if "csv" in arguments else text))):
        problems.append(f"printed {found[0]!r}")
    return [*problems, *watch.problems()]


def _child(arguments: Sequence[str], out: Path, err: Path) -> int:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33))  # else what takes too much stops other tests
    if arguments[0] == "download":  # as much as there is, as it was asked to
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**26, 2**26))
    for descriptor, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY), descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        code = run(arguments)
    except BaseException:
        traceback.print_exc()
        code = 99
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _url(out: Path, pid: int) -> str:
    """Waits until a server has said where it is."""
    deadline_s = time.monotonic() + MAX_WALL_S
    while time.monotonic() < deadline_s and not os.waitid(
        os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT
    ):
        with contextlib.suppress(ValueError):
            return str(json.loads(out.read_text())["url"])
        time.sleep(0.02)
    raise TimeoutError(f"process {pid} said nothing")


def fetch(url: str, paths: Sequence[str]) -> None:
    """Asks a server for each path; raises for an answer that is none."""
    for path in paths:
        try:
            content = urllib.request.urlopen(f"{url.rstrip('/')}/{path}", timeout=20).read()
        except urllib.error.HTTPError as error:
            content = error.read()
            if error.code not in (400, 404, 503):
                raise
        if SECRET.encode() in content:
            raise AssertionError(f"{path} has the secret")


def servers(storage: Path, runs: Sequence[str]) -> Iterator[tuple[list[str], Sequence[str]]]:
    """Yields the commands that serve, each with the paths to ask for."""
    pages = ("", "page.js", "api/runs", "api/study/s", *(f"api/run/{run}" for run in runs), "api/run/..")
    plugins = ("data/runs", "data/plugin/scalars/tags", "data/logdir", "data/plugin/projector/runs")
    yield ["ui", "--json", "--port", "0", "--storage", str(storage)], pages
    if importlib.util.find_spec("tensorboard") is not None:
        yield ["tensorboard", "--json", "--storage", str(storage)], ("", *plugins)


def prepare(kind: str, folder: Path, traps: Traps) -> tuple[Path, list[str]]:
    """Writes the storage, and where the commands run; returns the storage and its runs."""
    storage, (num_runs, make) = folder / "storage", KINDS[kind]
    runs = [f"run-{number}" for number in range(num_runs)]
    for number, name in enumerate(runs):
        make(storage, name, Hostile(random.Random(f"{kind} {number}"), traps))
    hostile = Hostile(random.Random(kind), traps)
    write_study(storage, hostile)
    for text in traps.texts:  # folders of the storage, of which most can be no run's
        with contextlib.suppress(OSError, ValueError):
            (storage / text.replace("/", "_")).mkdir()
            (storage / text.replace("/", "_") / "run.json").write_bytes(dump(hostile.record()))
    for name in (*_LEFT_IN, "home"):
        (folder / name).mkdir()
    os.environ |= {"HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp")}
    for name in [name for name in os.environ if name.startswith(("XDG_", "RAY_", "RAYDIST_"))]:
        del os.environ[name]
    os.chdir(folder / "work")
    Path("job.py").write_text("import raydist\n\n@raydist.job\ndef train(ctx):\n    pass\n")
    Path("data.csv").write_text("x\n1.0\n")
    return storage, runs


def main(kind: str, folder: Path) -> None:
    """Prints how many commands were tried, and by command what was wrong."""
    for name in COMMANDS:
        cli.get_command(click.Context(cli), name)
    for module in ("attached", "chaos", "profile", "stacks"):
        importlib.import_module(f"raydist.runs.{module}")
    wrong: dict[str, list[str]] = {}
    num_tried, slowest = 0, {}
    with watching(folder) as watch:
        storage, runs = prepare(kind, folder, watch.traps)
        for arguments in commands(kind, storage, runs):
            begun_s = time.monotonic()
            if problems := try_command(arguments, watch):
                wrong[" ".join(arguments)] = problems
            slowest[" ".join(arguments[:-2])] = round(time.monotonic() - begun_s, 2)
            num_tried += 1
        for arguments, paths in servers(storage, runs):
            if problems := try_command(arguments, watch, functools.partial(fetch, paths=paths)):
                wrong[" ".join(arguments)] = problems
            num_tried += 1
    told: dict[str, Any] = {"num_tried": num_tried, "wrong": wrong}
    told["slowest"] = sorted(slowest.items(), key=lambda item: -item[1])[:5]
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
