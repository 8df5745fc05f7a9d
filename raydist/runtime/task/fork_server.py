"""The fork server of a host: it has imported what tasks need, and forks a task's process in milliseconds.

It is single-threaded, touches no device and executes nothing of the user's. It ends with Ray's daemon on its
host, and its processes end with it, or with the agent that each was forked for. What may be forked is in
tensorflow-notes.md#forks.

Its socket is a file in a folder of this user's alone, both sides ask the kernel for the other one's user, and
messages are JSON. So neither another user nor a container that shares the host's network can use it.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
import json
import os
import pkgutil
import re
import resource
import select
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from raydist.runtime.host.guarded_command import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, children_of, prctl

# What begins the command line of a task's process, where others would show the server's.
TITLE = "raydist::"
_MADV_DONTNEED = 4
# In /proc/PID/smaps: a private one that cannot be written. What has no file has the inode 0.
_FILE_MAPPING = re.compile(
    r"^(?P<start>[0-9a-f]+)-(?P<end>[0-9a-f]+) r-[-x]p [0-9a-f]+ \S+ [1-9]\d* .*\n"
    r"(?P<amounts>(?:[A-Z].*\n)+)",
    re.MULTILINE,
)
# Where one of them is not 0, a page is not that of the file any more.
_PRIVATE_AMOUNTS = ("Anonymous", "Private_Dirty", "Shared_Dirty", "Swap")
_AMOUNT = re.compile(r"^(\w+): +(\d+) kB", re.MULTILINE)
_LENGTH = struct.Struct("<Q")
_CHUNK = 1 << 16
# Link, standard output and standard error of the process.
_NUM_FDS = 3
# Why a restarted server imports nothing.
_PROBLEM = "RAYDIST_FORK_PROBLEM"
# In the environment of what a forked process starts, so that a daemon can be found in any session.
_MARK = "RAYDIST_STARTED_BY"
# As NumPy's wheels call it, and as others do.
_SET_NUM_THREADS = (
    *("scipy_openblas_set_num_threads64_", "scipy_openblas_set_num_threads"),
    *("openblas_set_num_threads64_", "openblas_set_num_threads"),
)
# The devices of CUDA, ROCm and TPUs. CUDA "does not support" a fork of what has initialized it.
_ACCELERATORS = ("nvidia", "kfd", "renderD", "accel")
# From the start of a server to the request that it was started for.
_FIRST_REQUEST_S = 60.0
# The request of a client that has connected is on its way.
_REQUEST_TIMEOUT_S = 5.0
# What the names of an agent's memory files begin with that the server has open, too.
STATE_PREFIX = "raydist-state-"
# How long it has them after the task's process: a controller is brought back within seconds.
_STATE_KEPT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class ForkRequest:
    """What a forked process is to be.

    Attributes:
      title: What its command line shows, after TITLE.
      environ: The whole environment.
      sys_path: Where it imports from.
      keep_warm_s: How long the server stays after its last process; what was asked for last counts.
      oom_score_adj, num_files: Of the agent, the kernel's value and the limit of open files: who has started
        the server need not be one.
    """

    title: str
    environ: Mapping[str, str] = field(repr=False)  # may hold secrets
    sys_path: Sequence[str]
    keep_warm_s: float
    oom_score_adj: str
    num_files: int


@dataclass(frozen=True, kw_only=True)
class Stay:
    """Asks the server to stay; it answers with the same once it has imported.

    Attributes:
      keep_warm_s: How long it stays after the connection; None if it stays as long as its parent.
    """

    keep_warm_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Forked:
    """Says that a process was forked, and why it has to import by itself, if so."""

    pid: int
    problem: str | None


@dataclass(frozen=True, kw_only=True)
class Exited:
    """Says how the process has ended: its exit code, or minus the signal that killed it."""

    code: int


Message = ForkRequest | Stay | Forked | Exited
_KINDS: Mapping[str, Any] = {kind.__name__: kind for kind in (ForkRequest, Stay, Forked, Exited)}


def send(connection: socket.socket, message: Message, fds: Sequence[int] = ()) -> None:
    """Sends a message, and descriptors with its first bytes."""
    content = json.dumps([type(message).__name__, vars(message)]).encode()
    socket.send_fds(connection, [_LENGTH.pack(len(content))], list(fds))
    connection.sendall(content)


def receive(connection: socket.socket) -> tuple[Message, list[int]]:
    """Waits for a message; returns it with its descriptors.

    Raises:
      EOFError: The other side has closed the connection, or sends something else.
    """
    head, fds, _, _ = socket.recv_fds(connection, _LENGTH.size, _NUM_FDS)
    try:
        if len(head) < _LENGTH.size:
            raise EOFError
        left, parts = _LENGTH.unpack(head)[0], []
        while left:
            part = connection.recv(min(left, _CHUNK))
            if not part:
                raise EOFError
            parts.append(part)
            left -= len(part)
        kind, fields = json.loads(b"".join(parts))
        return _KINDS[kind](**fields), fds
    except BaseException as error:
        for fd in fds:
            os.close(fd)
        if isinstance(error, (ValueError, TypeError, KeyError)):
            raise EOFError from error
        raise


class _Server:
    """Forks a process for each connection, and kills it where the connection ends before it."""

    def __init__(self, listener: socket.socket, *, parent: int | None, problem: str | None) -> None:
        self._listener = listener
        self._parent = parent
        self._keep_warm_s = _FIRST_REQUEST_S
        self._stays = False
        self._problem = problem
        self._pids: dict[socket.socket, int] = {}
        self._states: dict[socket.socket, list[int]] = {}
        self._left: list[tuple[float, list[int]]] = []  # with the time until when
        self._bound: list[socket.socket] = []
        self._token = os.urandom(8).hex()
        self._idle_since_s = time.monotonic()

    def serve(self) -> tuple[ForkRequest, list[int]]:
        """Returns in the forked processes alone, with what was asked for and the descriptors."""
        woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        while True:
            watched = [woken, *(one.fileno() for one in (self._listener, *self._pids, *self._bound))]
            if self._parent is not None:
                watched.append(self._parent)
            ready, _, _ = select.select(watched, [], [], self._patience_s())
            if self._parent in ready:
                for connection in list(self._pids):
                    self._forget(connection)
                sys.exit()
            self._close_states()
            if woken in ready:
                os.read(woken, _CHUNK)
                self._reap()
            for connection in [one for one in self._pids if one.fileno() in ready]:
                self._forget(connection)  # an agent says nothing more
            for connection in [one for one in self._bound if one.fileno() in ready]:
                self._bound.remove(connection)
                self._drop(connection)
            if self._listener.fileno() in ready and (asked := self._take()) is not None:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.close(woken)
                os.close(wake)
                return asked
            if self._patience_s() == 0:
                sys.exit()  # a task that connects just now finds the connection closed, and asks again

    def _patience_s(self) -> float | None:
        now_s = time.monotonic()
        of_states = [max(0.0, until_s - now_s) for until_s, _ in self._left]
        if self._pids or self._bound or self._stays:
            return min(of_states, default=None)
        return max([0.0, self._idle_since_s + self._keep_warm_s - now_s, *of_states])

    def _close_states(self) -> None:
        """Closes what no agent has asked for in time, or has emptied."""
        now_s = time.monotonic()
        for until_s, fds in list(self._left):
            if until_s <= now_s or not any(os.fstat(fd).st_size for fd in fds):
                self._left.remove((until_s, fds))
                _close_all(fds)

    def _take(self) -> tuple[ForkRequest, list[int]] | None:
        """Forks for a new connection; returns its request in the forked process."""
        connection, _ = self._listener.accept()
        connection.settimeout(_REQUEST_TIMEOUT_S)
        try:
            if user_of(connection) != os.geteuid():
                raise PermissionError
            request, fds = receive(connection)
            if isinstance(request, Stay):
                send(connection, request)
                if request.keep_warm_s is not None:
                    self._keep_warm_s = request.keep_warm_s
                    self._bound.append(connection)
                    return None
                self._stays = True
                raise EOFError
            if not isinstance(request, ForkRequest):
                raise EOFError
        except (EOFError, OSError):
            connection.close()
            return None
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            _die_with(server)
            os.setsid()
            for one in (connection, self._listener, *self._pids, *self._bound):
                one.close()
            for held in (*self._states.values(), *(held for _, held in self._left)):
                _close_all(held)
            if self._parent is not None:
                os.close(self._parent)
            environ = {**request.environ, _MARK: self._mark_of(os.getpid())}
            return dataclasses.replace(request, environ=environ), fds
        _close_all(fds)
        self._pids[connection] = pid
        self._states[connection] = memory_files(_peer_of(connection)[0], STATE_PREFIX)
        self._keep_warm_s = request.keep_warm_s
        with contextlib.suppress(OSError):  # an agent that is gone, whose connection shows it
            send(connection, Forked(pid=pid, problem=self._problem))
        return None

    def _reap(self) -> None:
        """Tells the agents of the processes that have ended. What these have left running is killed."""
        while (ended := _next_ended()) is not None:
            pid, status = ended
            for connection in [one for one, owned in self._pids.items() if owned == pid]:
                self._kill_started_by(pid)
                with contextlib.suppress(OSError):
                    send(connection, Exited(code=os.waitstatus_to_exitcode(status)))
                del self._pids[connection]
                self._drop(connection)
        if not self._pids:  # what is left of them has no mark, and is this process's own child by now
            for child in children_of(os.getpid()):
                _kill(child)

    def _forget(self, connection: socket.socket) -> None:
        pid = self._pids.pop(connection)
        _kill(pid)
        self._kill_started_by(pid)
        self._drop(connection)

    def _kill_started_by(self, pid: int) -> None:
        """Kills what a process has started, in whatever session."""
        _kill_group(pid)
        killed: set[int] = set()
        while found := set(_processes_with(self._mark_of(pid))) - killed:  # one may start another meanwhile
            for one in found:
                _kill(one)
            killed |= found

    def _mark_of(self, pid: int) -> str:
        return f"{self._token}-{pid}"

    def _drop(self, connection: socket.socket) -> None:
        connection.close()
        self._left.append((time.monotonic() + _STATE_KEPT_S, self._states.pop(connection, [])))
        self._close_states()
        self._idle_since_s = time.monotonic()


def user_of(connection: socket.socket) -> int:
    """Returns the user id of the process on the other side."""
    return _peer_of(connection)[1]


def _peer_of(connection: socket.socket) -> tuple[int, int]:
    """Returns the process on the other side, and its user."""
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def memory_files(pid: int, name: str) -> list[int]:
    """Opens the memory files of a process whose names, ` (deleted)` behind them, begin so."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/fd").glob("*"):
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.readlink(path).startswith(f"/memfd:{name}"):
                found.append(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    return found


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


def main(arguments: Sequence[str]) -> tuple[ForkRequest, list[int]]:
    """Runs the server of this process; returns in those that it forks.

    Args:
      arguments: The descriptor of the listening socket; with what it ends, `pid:` of a process or `fd:` of
        the reading end of a pipe; and what to import, `module:function` or nothing.
    """
    listener_fd, parent, preload = arguments
    if _PROBLEM not in os.environ and os.fork() > 0:
        os._exit(0)
    set_title(f"{TITLE}fork-server")
    prctl(PR_SET_CHILD_SUBREAPER, 1)  # what a process leaves running is to be ended, too
    problem = _import(preload)
    listener = socket.socket(fileno=int(listener_fd))
    if preload and _unsound() is not None:  # that is left behind: a new program in the same process
        os.set_inheritable(int(listener_fd), True)
        os.environ[_PROBLEM] = problem or ""
        kind, _, number = parent.partition(":")
        if kind == "fd":
            os.set_inheritable(int(number), True)
        os.execv(sys.executable, command(listener_fd, parent, ""))
    with open(os.devnull, "wb") as nothing:  # what it has printed so far is in the first task's log
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    return _Server(listener, parent=_parent_fd(parent), problem=problem).serve()


def _import(preload: str) -> str | None:
    """Imports the modules; returns why tasks have to do so by themselves, or None."""
    known = os.environ.pop(_PROBLEM, None)
    try:
        if preload:
            pkgutil.resolve_name(preload)()
    except BaseException as error:
        # A task imports it again, and shows the error to the user.
        return f"the import failed ({type(error).__name__}: {error})"
    if (unsound := _unsound()) is not None:
        return unsound
    gc.collect()
    gc.freeze()  # so that the processes share what is there
    _drop_file_pages()
    return known


def _drop_file_pages() -> None:
    """Unmaps what was read of libraries to load them, a quarter of a gigabyte with TensorFlow.

    The kernel maps a page again, from its cache, once it is touched; forked processes have none of them.
    """
    libc = ctypes.CDLL(None)
    for match in _FILE_MAPPING.finditer(Path("/proc/self/smaps").read_text()):
        amounts = dict(_AMOUNT.findall(match["amounts"]))
        if all(amounts.get(name, "0") == "0" for name in _PRIVATE_AMOUNTS):
            start, end = int(match["start"], 16), int(match["end"], 16)
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_DONTNEED)


def _unsound() -> str | None:
    """Returns why a fork of this process could not be used, or None."""
    if (count := threads_here()) > 1:
        return f"{count} threads run once TensorFlow is imported, and a fork would have only one of them"
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one that lists them
            path = fd.readlink()
            if (path.parent.name == "vfio" or path.name.startswith(_ACCELERATORS)) and fd.is_char_device():
                return f"{path.name} is open once TensorFlow is imported, and a fork could not use it"
    return None


def command(*arguments: object) -> list[str]:
    """Returns the command of a server; see `main` for its arguments."""
    # Not with -m: what it sends has to be of the module that others import, not of `__main__`.
    program = (
        "import sys; from raydist.runtime.task.fork_server import run_process; run_process(sys.argv[1:])"
    )
    return [sys.executable, "-c", program, *map(str, arguments)]


def threads_here() -> int:
    """Returns how many threads this process has, those of native code included."""
    return len(os.listdir("/proc/self/task"))


def _die_with(parent: int) -> None:
    """Has the kernel kill this process with its parent, which may be gone already."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _parent_fd(parent: str) -> int | None:
    """Returns a descriptor that can be read once the server has to end; None where none shows it."""
    kind, _, number = parent.partition(":")
    if kind == "fd":
        return int(number)
    try:
        return os.pidfd_open(int(number))
    except ProcessLookupError:
        sys.exit()
    except (OSError, AttributeError):  # an old kernel
        return None


def servers_here() -> dict[int, int]:
    """Returns the fork servers of this user on this machine, with the memory of each in bytes (PSS)."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, StopIteration):  # another user's, or one that has just ended
            if (process / "cmdline").read_bytes().startswith(f"{TITLE}fork-server".encode()):
                lines = (process / "smaps_rollup").read_text().splitlines()
                size = next(line.split()[1] for line in lines if line.startswith("Pss:"))
                found[int(process.name)] = int(size) << 10
    return found


def _next_ended() -> tuple[int, int] | None:
    """Returns a child that has ended, with its status; None where there is none."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None


def _processes_with(mark: str) -> Iterator[int]:
    entry = f"{_MARK}={mark}".encode()
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # another user's, or one that has just ended
            if entry in environ.read_bytes().split(b"\0"):
                yield int(environ.parent.name)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # a daemon may run as another user
        os.kill(pid, signal.SIGKILL)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def set_title(title: str) -> None:
    """Writes what `ps` shows over the arguments of this process; cuts it off where these were shorter."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # proc(5): arg_start, arg_end
    content = title.encode()[: end - start - 1]
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, content, len(content))


def become(request: ForkRequest, fds: Sequence[int]) -> int:
    """Makes a forked process what was asked for; returns the descriptor of its link to the agent."""
    link, output, errors = fds
    with open(os.devnull, "rb") as nothing:
        for source, target in ((nothing.fileno(), 0), (output, 1), (errors, 2)):
            os.dup2(source, target)
    os.close(output)
    os.close(errors)
    set_title(f"{TITLE}{request.title}")
    with contextlib.suppress(OSError):  # only to be killed sooner is allowed
        Path("/proc/self/oom_score_adj").write_text(request.oom_score_adj)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    is_allowed = most == resource.RLIM_INFINITY or 0 <= request.num_files <= most
    resource.setrlimit(resource.RLIMIT_NOFILE, (request.num_files if is_allowed else most, most))
    os.set_inheritable(link, False)  # a program that the job starts has nothing to say to the agent
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # Ray starts its processes with SIGINT blocked
    os.environ.clear()
    os.environ.update(request.environ)
    sys.path[:] = request.sys_path
    sys.argv[:] = [""]
    tempfile.tempdir = None
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()  # Python's own generator does so by itself
        _set_openblas_threads(request.environ)
    return link


def _set_openblas_threads(environ: Mapping[str, str]) -> None:
    """Gives NumPy the threads that it would have taken when it was loaded, of which the server has one."""
    given = environ.get("OPENBLAS_NUM_THREADS") or environ.get("OMP_NUM_THREADS") or ""
    num_threads = int(given) if given.isdecimal() else len(os.sched_getaffinity(0))
    if num_threads < 2:
        return
    lines = Path("/proc/self/maps").read_text().splitlines()
    for path in sorted({line.split()[-1] for line in lines if "openblas" in line}):
        library = ctypes.CDLL(path)
        for name in _SET_NUM_THREADS:
            if hasattr(library, name):
                getattr(library, name)(num_threads)
                break


def run_process(arguments: Sequence[str]) -> NoReturn:
    """The program of the server, and of each process that it forks."""
    request, fds = main(arguments)
    link = become(request, fds)
    from raydist.runtime.task.child import run_task

    run_task(link)
