"""The supervisor of a command, with commands that need no Ray."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import WaitUntil

_SUPERVISED = """
import os, signal, sys, time
from raydist.cli.supervision import run_supervised
from raydist.watch.watcher import watched
told = open(sys.argv[1], "a", buffering=1)

def command(arguments):
    told.write(f"pid {os.getpid()}\\n")
    try:
        {body}
    except KeyboardInterrupt:
        told.write("interrupted\\n")
        try:
            time.sleep(1.5)  # a second one would come within this
        except KeyboardInterrupt:
            told.write("interrupted again\\n")
        return 130

sys.exit(run_supervised(sys.argv[2:], command))
"""
_WAIT = "time.sleep(60)"

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def told(tmp_path: Path) -> Path:
    return tmp_path / "told"


@pytest.fixture
def start(told: Path) -> Start:
    """Starts a supervised command with that body."""

    def begin(body: str, *arguments: str, **options: object) -> subprocess.Popen[str]:
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(
            [sys.executable, "-c", _SUPERVISED.replace("{body}", body), str(told), *arguments],
            env=environ,
            text=True,
            **{**pipes, **options},  # type: ignore[call-overload]
        )

    return begin


def driver_of(told: Path) -> int:
    return int(told.read_text().split()[1])


def has_begun(told: Path) -> bool:
    return told.exists() and "\n" in told.read_text()


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("code", [0, 2, 130])
def test_exit_code_is_that_of_the_command(start: Start, code: int) -> None:
    process = start(f"return {code}")
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == code


def test_exception_is_shown_once_and_is_exit_code_1(start: Start) -> None:
    process = start("raise ValueError('a bug')")
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err.count("ValueError: a bug")) == (1, 1)
    assert "Ray died" not in err


def test_command_that_was_done_keeps_its_exit_code_however_its_process_ends(start: Start) -> None:
    process = start("import atexit; atexit.register(os.abort); return 0")
    process.communicate(timeout=30)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("os._exit(1)", "Ray died under the run"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL"),
    ],
)
def test_death_without_a_word_is_one_sentence_and_exit_code_3(start: Start, body: str, words: str) -> None:
    process = start(body, "--json")
    out, err = process.communicate(timeout=30)
    assert process.returncode == 3
    assert (err.count("\n"), words in err) == (1, True), err
    assert '"state": "FAILED"' in out


def test_closed_standard_streams_are_not_mistaken_for_the_pipes(tmp_path: Path) -> None:
    body = "os.system('echo noise'); return 4"
    script = tmp_path / "script.py"
    script.write_text(_SUPERVISED.replace("{body}", body))
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = f"exec {sys.executable} {script} {tmp_path / 'told'} <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", command], env=environ, timeout=60).returncode == 4


def test_signal_of_another_process_reaches_the_command_once(
    start: Start, told: Path, wait_until: WaitUntil
) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        told.unlink(missing_ok=True)
        process = start(_WAIT)
        wait_until(lambda: has_begun(told))
        process.send_signal(number)
        process.communicate(timeout=30)
        assert process.returncode == 130
        assert told.read_text().splitlines()[1:] == ["interrupted"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("sent_before", [False, True], ids=["group", "process_then_group_as_timeout_does"])
def test_signal_to_the_process_group_reaches_the_command_once(
    start: Start, told: Path, wait_until: WaitUntil, number: signal.Signals, sent_before: bool
) -> None:
    process = start(_WAIT, process_group=0)
    wait_until(lambda: has_begun(told))
    if sent_before:
        process.send_signal(number)
    os.killpg(process.pid, number)
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 130
    assert told.read_text().splitlines()[1:] == ["interrupted"]


def test_signal_to_the_group_reaches_the_command_once_if_the_supervisor_is_slow(
    start: Start, told: Path, wait_until: WaitUntil
) -> None:
    process = start(_WAIT, process_group=0)
    wait_until(lambda: has_begun(told))
    process.send_signal(signal.SIGSTOP)
    os.killpg(process.pid, signal.SIGTERM)
    wait_until(lambda: "interrupted" in told.read_text())
    process.send_signal(signal.SIGCONT)
    process.communicate(timeout=30)
    assert told.read_text().splitlines()[1:] == ["interrupted"]


def test_signal_to_the_group_reaches_a_stopped_command_once(
    start: Start, told: Path, wait_until: WaitUntil
) -> None:
    process = start(_WAIT, process_group=0)
    wait_until(lambda: has_begun(told))
    os.kill(driver_of(told), signal.SIGSTOP)
    os.killpg(process.pid, signal.SIGTERM)
    time.sleep(1.0)  # the supervisor has passed its copy on by now
    os.kill(driver_of(told), signal.SIGCONT)
    process.communicate(timeout=30)
    assert told.read_text().splitlines()[1:] == ["interrupted"]


def test_terminal_that_is_closed_interrupts_the_command_once(
    start: Start, told: Path, wait_until: WaitUntil
) -> None:
    terminal, end = pty.openpty()

    def take_terminal() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup themselves
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = start(
        _WAIT, stdin=end, stdout=end, stderr=end, start_new_session=True, preexec_fn=take_terminal
    )
    os.close(end)
    wait_until(lambda: has_begun(told))
    os.close(terminal)
    wait_until(lambda: "interrupted" in told.read_text())
    os.killpg(process.pid, signal.SIGHUP)  # as a shell does that ends
    assert process.wait(timeout=30) == 130
    assert told.read_text().splitlines()[1:] == ["interrupted"]


def test_nohup_keeps_the_command_running(start: Start, told: Path, wait_until: WaitUntil) -> None:
    process = start(
        "time.sleep(1); return 0",
        process_group=0,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    wait_until(lambda: has_begun(told))
    os.killpg(process.pid, signal.SIGHUP)
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 0


@pytest.mark.parametrize("first", ["group", "supervisor", "command"])
def test_second_signal_reaches_the_command_however_the_first_one_was_sent(
    start: Start, told: Path, wait_until: WaitUntil, first: str
) -> None:
    process = start(_WAIT, process_group=0)
    wait_until(lambda: has_begun(told))
    pids = {"group": -process.pid, "supervisor": process.pid, "command": driver_of(told)}
    os.kill(pids[first], signal.SIGTERM)
    wait_until(lambda: "interrupted" in told.read_text())
    time.sleep(0.7)  # later than what counts as one signal
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert told.read_text().splitlines()[1:] == ["interrupted", "interrupted again"]


def test_ctrl_c_of_a_terminal_reaches_the_command_once(
    start: Start, told: Path, wait_until: WaitUntil
) -> None:
    terminal, its_end = pty.openpty()
    command = "import os, sys; os.login_tty(0); os.execv(sys.argv[1], sys.argv[1:])"
    inner = [sys.executable, "-c", _SUPERVISED.replace("{body}", _WAIT), str(told)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen([sys.executable, "-c", command, *inner], env=environ, stdin=its_end)
    os.close(its_end)
    wait_until(lambda: has_begun(told))
    os.write(terminal, b"\x03")
    assert process.wait(timeout=30) == 130
    os.close(terminal)
    assert told.read_text().splitlines()[1:] == ["interrupted"]


def test_command_whose_supervisor_is_killed_stops_as_by_ctrl_c(
    start: Start, told: Path, wait_until: WaitUntil
) -> None:
    process = start(_WAIT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: has_begun(told))
    process.kill()
    process.wait()
    wait_until(lambda: is_gone(driver_of(told)))
    assert told.read_text().splitlines()[1:] == ["interrupted"]


def test_supervisor_loads_nothing_of_weight() -> None:
    suspects = ("ray", "tensorflow", "pyarrow", "numpy", "yaml", "rich", "subprocess", "ctypes")
    code = "import sys, raydist.cli.supervision\n"
    code += f"print(*[name for name in {suspects!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout.split(), done.stderr) == ([], "")
