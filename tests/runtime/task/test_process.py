"""A task's process, forked by the server of its host; without Ray, and with runners without TensorFlow."""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raydist.outcome.status import TaskFailure, TaskState, TaskStatus
from raydist.planning.assignment import TaskAssignment, static_environment
from raydist.runtime.host.guarded_command import children_of
from raydist.runtime.host.log_capture import LogTarget
from raydist.runtime.task import fork_client, fork_server, runner as runner_module
from raydist.runtime.task.child import Begin, Run
from raydist.runtime.task.ports import PortLease
from raydist.runtime.task.process import ProcessDiedError, TaskProcess
from raydist.spec.job import EntryPoint, JobSpec, KerasFlavour, Strategy
from raydist.spec.tasks import ClusterSpec, TaskId
from raydist.storage.kept_state import StateMemory, unpack
from tests.conftest import WaitUntil
from tests.runtime.conftest import COUNTING, make_plan

TASK = TaskId.parse("worker/0")


class Agent:
    """As much of one as a process asks for."""

    def __init__(self) -> None:
        self.lease = PortLease.acquire()

    def release_port(self, index: int) -> None:
        self.lease.close()

    def another_port(self) -> tuple[int, int]:
        raise OSError("no port is left")


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., TaskProcess]]:
    """Starts a process, by a server of this test's own; ends both with the test."""
    started: list[TaskProcess] = []
    agents: list[Agent] = []

    def start_process(
        runner: str = COUNTING,
        preload: str = "",
        keep_warm_s: float = 0.0,
        hold: socket.socket | None = None,
        **environ: str,
    ) -> TaskProcess:
        monkeypatch.setitem(runner_module._PRELOADS, "tests.support.runners", preload)
        begin = Begin(
            task=TASK,
            host="here",
            runner=runner,
            scratch_path=tmp_path,
            log=LogTarget(storage_uri=str(tmp_path / "storage"), run="run", task=TASK, attempt=0),
            may_vanish=False,
        )
        environ = {**os.environ, "OF_TEST": str(tmp_path), **environ}
        agents.append(Agent())
        process = TaskProcess(begin, environ=environ, held=agents[-1], keep_warm_s=keep_warm_s, hold=hold)
        started.append(process)
        return process

    yield start_process
    for process in started:
        process.kill()
    for agent in agents:
        agent.lease.close()


def run_of(**params: Any) -> Run:
    job = JobSpec(name="run", entry_point=EntryPoint(function="train", module="unused"), params=params)
    assignment = TaskAssignment(
        task=TASK,
        job=job,
        strategy=Strategy.ONE_DEVICE,
        keras=KerasFlavour.KERAS_3,
        cluster_spec=ClusterSpec(jobs=()),
        attempt=0,
        run_uri="unused",
        num_workers=1,
        num_slots=1,
    )
    return Run(assignment=assignment, code_dir=None, port=1)


def outcome(process: TaskProcess, **params: Any) -> TaskStatus | TaskFailure:
    """Has the process train, and returns what it has ended with."""
    process.send(run_of(**params))
    return process.wait()


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def server_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def forked(process: TaskProcess, wait_until: WaitUntil) -> int:
    wait_until(lambda: process.pid)
    assert process.pid is not None
    return process.pid


def test_process_has_the_limits_of_its_agent(
    start: Callable[..., TaskProcess], wait_until: WaitUntil
) -> None:
    wait_for_server = start()
    forked(wait_for_server, wait_until)
    own, before = Path("/proc/self/oom_score_adj"), Path("/proc/self/oom_score_adj").read_text()
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        own.write_text(str(int(before) + 7))  # after its server has begun
        resource.setrlimit(resource.RLIMIT_NOFILE, (files[0] - 1, files[1]))
        pid = forked(start(), wait_until)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, files)
        with contextlib.suppress(PermissionError):  # only root may go back
            own.write_text(before)
    wait_until(lambda: int(Path(f"/proc/{pid}/oom_score_adj").read_text()) == int(before) + 7)
    assert f"Max open files            {files[0] - 1} " in Path(f"/proc/{pid}/limits").read_text()


def test_process_trains_and_returns_its_last_status(start: Callable[..., TaskProcess]) -> None:
    process = start(SHOWN="by the agent")
    ended = outcome(process, shows=["SHOWN"])
    assert isinstance(ended, TaskStatus)
    assert (ended.state, ended.step, ended.pid) == (TaskState.FINISHED, 3, process.pid)
    assert {"SHOWN=by the agent", "main=True"} <= set(ended.notes)
    assert process.problem is None


def test_process_is_called_after_its_task(start: Callable[..., TaskProcess], wait_until: WaitUntil) -> None:
    pid = forked(start(), wait_until)
    wait_until(lambda: Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0") == b"raydist::worker/0")


@pytest.mark.parametrize(
    ("how", "code"),
    [("exit", 7), ("native_exit", 5), ("sigkill", -signal.SIGKILL), ("segfault", -signal.SIGSEGV)],
)
def test_exit_code_is_that_of_the_process(start: Callable[..., TaskProcess], how: str, code: int) -> None:
    with pytest.raises(ProcessDiedError) as caught:
        outcome(start(), fail_in=str(TASK), how=how, steps=10)
    assert caught.value.code == code


@pytest.mark.slow
def test_process_dies_with_its_agent_and_so_does_what_it_has_started(wait_until: WaitUntil) -> None:
    agent = subprocess.Popen([sys.executable, "-c", AGENT], stdout=subprocess.PIPE, text=True)
    assert agent.stdout is not None
    told = next(line for line in agent.stdout if line.startswith("pids "))  # the process prints there, too
    process, child = map(int, told.split()[1:])
    assert lives(process)
    assert lives(child)
    agent.kill()
    agent.communicate()
    wait_until(lambda: not lives(process) and not lives(child))


def test_daemon_ends_with_the_server_of_its_process(wait_until: WaitUntil) -> None:
    program = AGENT.replace('child="sleep', 'child="setsid sleep')
    # The server ends with the parent of the agent, as with Ray's daemon.
    parent = subprocess.Popen(
        ["sh", "-c", '"$0" -c "$1"; :', sys.executable, program], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    told = next(line for line in parent.stdout if line.startswith("pids "))
    process, child = map(int, told.split()[1:])
    [agent] = children_of(parent.pid)
    parent.kill()
    try:
        wait_until(lambda: not lives(process) and not lives(child))
    finally:
        os.kill(agent, signal.SIGKILL)
        parent.communicate()


KEEPING_AGENT = textwrap.dedent("""
    import os, pathlib, sys, tempfile
    from raydist.storage.kept_state import StateMemory, StateWriter
    from tests.runtime.task.test_process import Agent, Begin, COUNTING, LogTarget, TASK, TaskProcess
    from tests.runtime.task.test_process import server_of

    folder = pathlib.Path(tempfile.mkdtemp())
    log = LogTarget(storage_uri=str(folder), run="run", task=TASK, attempt=0)
    begin = Begin(task=TASK, host="here", runner=COUNTING, scratch_path=folder, log=log, may_vanish=False)
    memory = StateMemory(sys.argv[1])
    StateWriter(memory.paths).write(7, {"model": b"x" * 1000}, {})
    process = TaskProcess(begin, environ=os.environ, held=Agent(), keep_warm_s=0.0)
    while process.pid is None:
        pass
    print(f"\\npids {process.pid} {server_of(process.pid)}", flush=True)
    sys.stdin.readline()
    memory.close()
    process.kill()
""")

AGENT = textwrap.dedent("""
    import time
    from tests.runtime.task.test_process import Agent, Begin, LogTarget, TASK, TaskProcess, COUNTING, run_of
    import os, pathlib, tempfile, threading

    folder = pathlib.Path(tempfile.mkdtemp())
    log = LogTarget(storage_uri=str(folder), run="run", task=TASK, attempt=0)
    begin = Begin(task=TASK, host="here", runner=COUNTING, scratch_path=folder, log=log, may_vanish=False)
    process = TaskProcess(begin, environ=os.environ, held=Agent(), keep_warm_s=0.0)
    run = run_of(steps=100_000, child="sleep 1000")
    threading.Thread(target=process.send, args=(run,), daemon=True).start()
    while process.status is None or not any("child=" in note for note in process.status.notes):
        time.sleep(0.02)
    child = next(note for note in process.status.notes if "child=" in note).partition("=")[2]
    print(f"\\npids {process.pid} {child}", flush=True)
    time.sleep(1000)
""")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("daemon", "end"),
    [
        ("setsid sleep 1000", "killed"),
        ("env -i setsid sleep 1000", "returns"),
        ("env -i setsid sleep 1000", "stopped"),
    ],
)
def test_daemon_ends_with_the_process_that_has_started_it(
    start: Callable[..., TaskProcess], wait_until: WaitUntil, daemon: str, end: str
) -> None:
    process = start(keep_warm_s=60.0)
    pid = forked(process, wait_until)
    process.send(run_of(steps=3 if end == "returns" else 100_000, child=daemon))
    if end == "returns":
        status = process.wait()
        assert isinstance(status, TaskStatus)
        process.stop(timeout_s=1.0)
    else:
        wait_until(lambda: process.status is not None and any("child=" in it for it in process.status.notes))
        status = process.status
        if end == "killed":
            os.kill(pid, signal.SIGKILL)
        else:
            process.kill()
    child = next(int(note.partition("=")[2]) for note in status.notes if note.startswith("child="))
    wait_until(lambda: not lives(pid) and not lives(child))


def test_daemon_is_left_alone_when_another_process_ends(
    start: Callable[..., TaskProcess], wait_until: WaitUntil, tmp_path: Path
) -> None:
    first, second = start(), start()
    ended = forked(second, wait_until)
    first.send(run_of(steps=100_000, child="setsid --fork sleep 1000"))
    wait_until(lambda: first.status is not None and any("child=" in it for it in first.status.notes))
    mark = f"OF_TEST={tmp_path}".encode()
    (daemon,) = [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if path.read_bytes() == b"sleep\0001000\0" and mark in (path.parent / "environ").read_bytes()
    ]
    second.kill()
    wait_until(lambda: not lives(ended))
    assert isinstance(outcome(start()), TaskStatus)  # the server has seen that end before
    assert lives(daemon)


def test_killed_server_is_the_death_of_its_processes(
    start: Callable[..., TaskProcess], wait_until: WaitUntil
) -> None:
    process = start()
    pid = forked(process, wait_until)
    os.kill(server_of(pid), signal.SIGKILL)
    with pytest.raises(ProcessDiedError) as caught:
        outcome(process, steps=100_000)
    assert caught.value.code == -signal.SIGKILL
    wait_until(lambda: not lives(pid))
    again = start()  # by another server
    assert isinstance(outcome(again), TaskStatus)


def test_tasks_of_one_environment_share_a_server(
    start: Callable[..., TaskProcess], wait_until: WaitUntil
) -> None:
    first, second, other = (forked(start(KIND=kind), wait_until) for kind in ("one", "one", "another"))
    assert server_of(first) == server_of(second) != server_of(other)


def test_next_task_is_forked_by_the_server_that_was_kept(
    start: Callable[..., TaskProcess], wait_until: WaitUntil
) -> None:
    process = start(keep_warm_s=60.0)
    pid = forked(process, wait_until)
    server = server_of(pid)
    process.kill()
    wait_until(lambda: not lives(pid))
    following = forked(start(), wait_until)
    assert (server_of(following), following != pid) == (server, True)


def test_server_stays_as_long_as_it_is_held(
    start: Callable[..., TaskProcess], wait_until: WaitUntil, tmp_path: Path
) -> None:
    process = start()
    pid = forked(process, wait_until)
    server = server_of(pid)
    holder = fork_client.hold(COUNTING, {**os.environ, "OF_TEST": str(tmp_path)}, keep_warm_s=0.0)
    process.kill()
    wait_until(lambda: not lives(pid))
    following = start(hold=holder)  # which closes it
    assert server_of(forked(following, wait_until)) == server
    following.kill()
    wait_until(lambda: not lives(server))


def test_server_ends_once_nobody_needs_it(start: Callable[..., TaskProcess], wait_until: WaitUntil) -> None:
    process = start()
    pid = forked(process, wait_until)
    server = server_of(pid)
    process.kill()
    wait_until(lambda: not lives(pid) and not lives(server))


@pytest.mark.slow
@pytest.mark.parametrize("end", ["killed", "taken over", "ends"])
def test_server_has_the_state_of_an_agent_that_was_killed_for_a_while(
    end: str, wait_until: WaitUntil
) -> None:
    name = f"{fork_server.STATE_PREFIX}{secrets.token_hex(4)}"  # tests at the same time share the server
    agent = subprocess.Popen(
        [sys.executable, "-c", KEEPING_AGENT, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with agent:
        told = next(line for line in agent.stdout if line.startswith("pids "))
        pid, server = map(int, told.split()[1:])
        if end == "ends":
            agent.communicate("close\n")
        else:
            agent.kill()
    wait_until(lambda: not lives(pid))
    if end != "ends":
        files = fork_server.memory_files(server, f"{name} ")
        memory = StateMemory(fds=files)
        assert unpack(memory.newest()).step == 7
        assert lives(server)
        if end == "taken over":
            memory.close()
            again = fork_server.memory_files(server, f"{name} ")
            assert {os.fstat(fd).st_size for fd in again} == {0}
    wait_until(lambda: not lives(server), timeout_s=100)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("starts_thread", "2 threads run once TensorFlow is imported"),
        ("uses_grpc", "threads run once TensorFlow is imported"),
        pytest.param(
            *("opens_gpu", "nvidia0 is open once TensorFlow is imported"),
            marks=pytest.mark.skipif(os.getuid() != 0, reason="only root makes device files"),
        ),
        ("fails", "the import failed (ImportError: no such"),
    ],
)
def test_process_imports_by_itself_where_no_fork_of_what_is_imported_is_sound(
    start: Callable[..., TaskProcess], wait_until: WaitUntil, name: str, problem: str
) -> None:
    process = start(preload=f"tests.support.preloads:{name}")
    assert isinstance(outcome(process), TaskStatus)
    assert problem in str(process.problem)


def test_server_drops_what_was_read_of_libraries_to_load_them() -> None:
    code = """
    import pathlib
    import numpy as np
    from raydist.runtime.task.fork_server import _drop_file_pages

    def file_kb():
        status = pathlib.Path("/proc/self/status").read_text()
        return int(status.partition("RssFile:")[2].split()[0])

    expected, before = np.linalg.svd(np.eye(9))[1].sum(), file_kb()
    _drop_file_pages()
    after = file_kb()
    assert np.linalg.svd(np.eye(9))[1].sum() == expected
    print(after / before)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(done.stdout) < 0.5


def test_thread_that_python_itself_starts_with_does_not_keep_a_server_from_forking(
    start: Callable[..., TaskProcess], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    process = start(preload="tests.support.preloads:starts_thread")
    assert isinstance(outcome(process), TaskStatus)
    assert "threads run once TensorFlow is imported" in str(process.problem)


def test_server_that_was_started_ahead_of_ray_is_that_of_its_tasks(
    start: Callable[..., TaskProcess], wait_until: WaitUntil, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OF_TEST", str(tmp_path))
    monkeypatch.setattr(runner_module, "_PRELOADS", {})
    plan = make_plan()
    changes = static_environment(keras=plan.keras, num_cpus=1, num_gpus=0, environ=os.environ)
    environ = {name: value for name, value in changes.items() if value is not None}
    with fork_client.started_ahead(plan):
        # What Ray gives a process of its own.
        pid = forked(start(**environ, RAY_RAYLET_PID="1", OMP_NUM_THREADS="1", SPT_NOENV="1"), wait_until)
        other = forked(start(**environ, KIND="another"), wait_until)
        assert server_of(pid) != server_of(other)
        assert lives(pid)
    wait_until(lambda: not lives(pid))
    assert lives(other)


def test_what_a_child_inherits_has_each_line_of_the_users_rights() -> None:
    *_, rights = fork_client._inherited(os.getpid())
    assert [line.partition(":")[0] for line in rights] == ["Umask", "Uid", "Gid", "Groups"]  # type: ignore[attr-defined]


def test_error_of_the_agent_is_raised_in_the_process(start: Callable[..., TaskProcess]) -> None:
    process = start("tests.support.runners:TwoPortsRunner")
    ended = outcome(process)
    assert not isinstance(ended, TaskStatus)
    assert (ended.error_type, ended.message) == ("OSError", "no port is left")


def test_servers_of_this_machine_are_found_with_their_memory(
    start: Callable[..., TaskProcess], wait_until: WaitUntil
) -> None:
    pid = forked(start(), wait_until)
    assert fork_server.servers_here()[server_of(pid)] > 1 << 20
