"""Finds the fork server of this host for an environment, and starts it where there is none.

The processes of a host share one if they have the Ray, the container and the environment in common. That of
an embedded Ray is started ahead of it, that of a Ray which runs on this host while the driver connects to it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path

from raydist.errors import RaydistError
from raydist.planning.assignment import static_environment
from raydist.planning.plan import Plan
from raydist.private_folders import locked, opened, run_folder
from raydist.runtime.host.ray_session import raylets_here
from raydist.runtime.host.software import installed_versions
from raydist.runtime.task.fork_server import Stay, command, receive, send, user_of
from raydist.runtime.task.runner import preload_of, runner_of

# The name of the server that was started ahead of an embedded Ray, for the tasks of that.
_AHEAD = "RAYDIST_FORK_SERVER"
# What the processes of one environment may differ in, as no import looks at it; the second line is Ray's.
_OF_A_PROCESS = frozenset(
    (
        *("CUDA_VISIBLE_DEVICES", "TMPDIR", "TF_CONFIG", "PWD", "OLDPWD", "SHLVL", "_"),
        # Older Rays hide these from every actor that has none, on hosts without them, too.
        *("ASCEND_RT_VISIBLE_DEVICES", "HABANA_VISIBLE_MODULES", "NEURON_RT_VISIBLE_CORES"),
        *("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"),
        *("PYTHONBREAKPOINT", "SPT_NOENV"),
    )
)
_PREFIXES_OF_A_PROCESS = ("RAY_", "RAYDIST_")
# OpenBLAS and pyarrow's allocator would each start a thread, which a fork would not have.
_SINGLE_THREADED = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
_BACKLOG = 128
# One may end just as a task asks for it.
_STARTS = 5
# How long a server that was started beside waits for tasks.
_AHEAD_S = 60.0
_NAMESPACES = ("net", "mnt", "pid", "user")


def connect(runner: str, environ: Mapping[str, str]) -> socket.socket:
    """Returns a connection to the server for tasks of that runner and environment.

    Raises:
      OSError: There is none, and none can be started.
    """
    preload = preload_of(runner)
    key = _key(preload, environ)
    ahead = os.environ.get(_AHEAD, "")
    if ahead.startswith(key) and (connection := _connected(ahead)) is not None:
        return connection
    # Ray's daemon is this process's parent, and the server ends with it.
    name = f"{key}-{os.getppid()}"
    for _ in range(_STARTS):
        if (connection := _connected(name)) is not None:
            return connection
        _start_server(name, preload, environ, parent=f"pid:{os.getppid()}")
    raise ConnectionRefusedError(f"the fork server ended {_STARTS} times, each time at once")


def warm(runner: str, environ: Mapping[str, str]) -> None:
    """Starts the server for tasks of that runner and environment, which then stays as long as its Ray.

    Waits until it has imported what they need.

    Raises:
      OSError: It cannot be started. EOFError: It has ended.
    """
    with connect(runner, environ) as server:
        send(server, Stay())
        receive(server)


def hold(runner: str, environ: Mapping[str, str], *, keep_warm_s: float) -> socket.socket:
    """Has the server for such tasks stay as long as the connection that is returned, starting it if needed.

    Args:
      keep_warm_s: How long it stays after that.

    Raises:
      OSError: It cannot be started.
    """
    server = connect(runner, environ)
    try:
        send(server, Stay(keep_warm_s=keep_warm_s))
    except BaseException:
        server.close()
        raise
    return server


@contextlib.contextmanager
def started_ahead(plan: Plan, environ: MutableMapping[str, str] = os.environ) -> Iterator[None]:
    """Starts the server for the tasks of a Ray that is started inside, on this host; ends it afterwards.

    It is left out where tasks have a runtime environment of their own.
    """
    if plan.job.runtime_env:
        yield
        return
    preload, of_tasks = _of_tasks(plan, environ)
    reading, writing = os.pipe()  # its end is that of the server
    try:
        # Without it, tasks start one themselves, and say what is wrong.
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            name = f"{_key(preload, of_tasks)}-{secrets.token_hex(4)}"
            _start_server(name, preload, of_tasks, parent=f"fd:{reading}", is_quiet=True)
            environ[_AHEAD] = name
        yield
    finally:
        environ.pop(_AHEAD, None)
        os.close(reading)
        os.close(writing)


@contextlib.contextmanager
def started_beside(plan: Plan | None, address: str | None) -> Iterator[None]:
    """Starts the server for the tasks of a Ray that runs on this host, while the driver connects to that.

    It ends with the block, or after a minute, if no task has used it, such as where Ray puts the tasks on
    other hosts. It is left out where one is there, and where it is not certain that tasks could use it.

    Args:
      plan: What will probably be launched; None where that is not known.
      address: `host:port` of the Ray.
    """
    if plan is None or plan.job.runtime_env or address is None or "://" in address:
        yield
        return
    is_over = threading.Event()

    def start() -> None:
        # Without it, tasks start one themselves, and say what is wrong.
        with contextlib.suppress(OSError, subprocess.CalledProcessError, RaydistError):
            for connection in _start_beside(plan, address):
                with connection:  # tasks that are elsewhere, or still wait for room, do not need it
                    is_over.wait(_AHEAD_S)

    thread = threading.Thread(target=start, name="raydist-ahead", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _start_beside(plan: Plan, address: str) -> Iterator[socket.socket]:
    """Starts the server for the only daemon of that Ray on this host; yields what holds it."""
    cpus = plan.roles[0].resources.num_cpus
    raylets = [pid for pid, has_cpus in raylets_here(address).items() if has_cpus >= cpus]
    if len(raylets) != 1 or _inherited(raylets[0]) != _inherited(os.getpid()):
        return
    [raylet] = raylets
    variables = Path(f"/proc/{raylet}/environ").read_bytes().decode(errors="surrogateescape").split("\0")
    inherited = dict(one.partition("=")[::2] for one in variables if "=" in one)
    inherited.pop("LD_PRELOAD", None)  # which Ray gives the daemon alone
    if inherited.get("TMPDIR") != os.environ.get("TMPDIR"):  # its tasks look for the socket elsewhere
        return
    preload, environ = _of_tasks(plan, inherited)
    name = f"{_key(preload, environ)}-{raylet}"
    if (connection := _connected(name)) is not None:
        connection.close()  # kept warm by a run before, as long as that has asked for
        return
    _start_server(name, preload, environ, parent=f"pid:{raylet}", is_quiet=True)
    connection = _connected(name)
    if connection is not None:
        send(connection, Stay(keep_warm_s=0.0))
        yield connection


def _inherited(pid: int) -> tuple[object, ...]:
    """Returns where a process is, and what else its children inherit of it."""
    process = Path("/proc") / str(pid)
    return (
        *(os.readlink(process / "ns" / name) for name in _NAMESPACES),
        (process / "cgroup").read_text(),
        os.sched_getaffinity(pid),
        os.getpriority(os.PRIO_PROCESS, pid),
        re.findall(r"^(?:Umask|Uid|Gid|Groups):.*", (process / "status").read_text(), re.MULTILINE),
    )


def _of_tasks(plan: Plan, environ: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Returns what the tasks of a plan import ahead, and their environment on a host with that one."""
    role = plan.roles[0]
    changes = static_environment(
        keras=plan.keras,
        num_cpus=role.resources.num_cpus,
        num_gpus=role.resources.num_gpus,
        tpu_name=plan.inventory.tpu_name,
        given=plan.job.env,
        environ=environ,
    )
    preload = preload_of(runner_of(plan.tasks[0], plan.strategy, plan.job))
    return preload, {name: value for name, value in {**environ, **changes}.items() if value is not None}


def import_path() -> tuple[str, ...]:
    """Returns where this process imports from, for one that has another current folder."""
    return tuple(path or os.getcwd() for path in sys.path)


def _connected(name: str) -> socket.socket | None:
    with contextlib.ExitStack() as on_error:
        connection = on_error.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        with opened(run_folder()) as folder:
            try:
                connection.connect(_address(folder, name))
            except (ConnectionRefusedError, FileNotFoundError):
                return None
        if (user := user_of(connection)) != os.geteuid():
            raise PermissionError(f"user {user} listens as this user's fork server {name}")
        on_error.pop_all()
    return connection


def _address(folder: int, name: str) -> str:
    # Through the descriptor, as the path of a socket has at most 107 bytes.
    return f"/proc/self/fd/{folder}/fork-{name}.sock"


def _remove_dead(folder: int) -> None:
    """Removes the sockets that servers have left which are gone."""
    for file in os.listdir(folder):
        if file.startswith("fork-") and file.endswith(".sock"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
                asked.setblocking(False)  # one that is busy has a full backlog
                try:
                    asked.connect(f"/proc/self/fd/{folder}/{file}")
                except ConnectionRefusedError:
                    os.unlink(file, dir_fd=folder)
                except OSError:
                    continue


def _start_server(
    name: str, preload: str, environ: Mapping[str, str], *, parent: str, is_quiet: bool = False
) -> None:
    """Starts a server, to which one can connect from now on; returns if another task has been faster.

    Args:
      is_quiet: Whether what TensorFlow prints when it is imported is lost: it belongs in a task's log, and
        not on the user's screen.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        with locked(run_folder() / "fork.lock"), opened(run_folder()) as folder:
            _remove_dead(folder)
            if os.path.lexists(_address(folder, name)):
                return
            listener.bind(_address(folder, name))
            listener.listen(_BACKLOG)
        environ = {**environ, **_SINGLE_THREADED, "PYTHONPATH": os.pathsep.join(import_path())}
        environ.pop("TMPDIR", None)  # of the task, which it outlives
        kind, _, number = parent.partition(":")
        output = subprocess.DEVNULL if is_quiet else None
        # It continues in a process of its own: Ray kills the children of an actor with it.
        subprocess.run(
            command(listener.fileno(), parent, preload),
            env=environ,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[listener.fileno(), *([int(number)] if kind == "fd" else [])],
            start_new_session=True,
            check=True,
        )


def _newest_source_ns() -> int:
    """Returns when raydist's own code was changed last, which a server has as it was."""
    return max(path.stat().st_mtime_ns for path in Path(__file__).parents[2].rglob("*.py"))


def _key(preload: str, environ: Mapping[str, str]) -> str:
    """Returns what tasks that share a server have in common, but for Ray: host, container and environment."""
    places = [os.readlink(f"/proc/self/ns/{name}") for name in _NAMESPACES]
    places.append(Path("/proc/self/cgroup").read_text())
    kept = sorted(
        (name, value)
        for name, value in environ.items()
        if name not in _OF_A_PROCESS and not name.startswith(_PREFIXES_OF_A_PROCESS)
    )
    versions = sorted(installed_versions().items())
    parts = (
        os.path.realpath(sys.executable),
        sys.prefix,
        versions,
        _newest_source_ns(),
        preload,
        places,
        kept,
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]
