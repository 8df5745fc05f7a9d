"""An embedded Ray's session: its folder below /tmp/ray, its processes, and what killed ones left there."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import signal
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from raydist.private_folders import find, host_places, is_private, read_text, run_folder
from raydist.runtime.host.address import ray_folder
from raydist.runtime.host.scratch import adopted, hold_lock, scratch_root, sweep

# Workers and agents rename themselves, dashboard modules too; some are found before they have.
_RENAMED = (b"ray::", b"ray-dashboard-")
_PROGRAM = re.compile(rb"/ray/core/src/ray/(gcs/gcs_server|raylet/raylet)$")
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")
_SCRIPT = re.compile(rb"/ray/(_private|dashboard|autoscaler/_private)/[^\0]*\.py$")


class _Starting(threading.local):
    is_on = False


_starting = _Starting()


@contextlib.contextmanager
def own_process_groups() -> Iterator[None]:
    """Gives each process that Ray starts in this thread a process group of its own.

    A SIGTERM to the group of a command, as `timeout` sends it, would end Ray before the run is stopped. Ray
    starts its processes with a `preexec_fn`, and so Python calls the hook in them; it has no option for this.
    """
    _register_hook()
    _starting.is_on = True
    try:
        yield
    finally:
        _starting.is_on = False


@functools.cache
def _register_hook() -> None:
    os.register_at_fork(after_in_child=lambda: os.setpgid(0, 0) if _starting.is_on else None)


def sessions_of(pid: int, environ: Mapping[str, str] = os.environ) -> set[Path]:
    """Returns the folders of the Rays that a process of this user's has started.

    Ray ends their names with its pid. Every user can write to Ray's folder, so a link is none of them.
    """
    return {path for path in ray_folder(environ).glob(f"session_*_{pid}") if is_own_session(path)}


def is_own_session(session: Path) -> bool:
    """Whether it is there, and a folder that this user has made."""
    with contextlib.suppress(OSError):
        found = session.lstat()
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return False


def remove_session(session: Path) -> None:
    """Deletes the folder of sockets and logs, which ray.shutdown leaves behind. Idempotent."""
    shutil.rmtree(session, ignore_errors=True)
    latest = session.with_name("session_latest")
    if latest.is_symlink() and not latest.exists():
        latest.unlink(missing_ok=True)


def end_session(session: Path) -> None:
    """Ends what is left of an embedded Ray whose driver has died or gave it up, and deletes its folder.

    Ray's own processes die with the driver, but for agents and workers, which take a while to notice.
    """
    for pid in _processes_of(session):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    remove_session(session)


def raylets_here(address: str) -> dict[int, float]:
    """Returns the daemons on this host of this user's Ray at `host:port`, with the CPUs of each.

    A loopback address means a Ray whose head is this host.
    """
    host, _, port = address.rpartition(":")
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # another user's, or one that has just ended
            program, *arguments = (process / "cmdline").read_bytes().split(b"\0")
            if _PROGRAM.search(program) and process.stat().st_uid == os.getuid():
                options = dict(one.partition(b"=")[::2] for one in arguments)
                gcs_host, _, gcs_port = options.get(b"--gcs-address", b"").decode().rpartition(":")
                own_host = options.get(b"--node_ip_address", b"").decode()
                is_meant = host == gcs_host or (host in _LOOPBACK and own_host == gcs_host)
                if is_meant and port == gcs_port:
                    found[int(process.name)] = _cpus_in(options.get(b"--static_resource_list", b""))
    return found


def open_dashboards() -> list[str]:
    """Returns `host:port` of each dashboard of this user's Rays here that other hosts can reach."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # another user's, or one that has just ended
            _, *arguments = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            options = dict(one.partition("=")[::2] for one in arguments)
            is_dashboard = any(one.endswith("/ray/dashboard/dashboard.py") for one in arguments)
            host, port = options.get("--host", ""), options.get("--port", "")
            if is_dashboard and process.stat().st_uid == os.geteuid() and host not in _LOOPBACK:
                found.append(f"{host}:{port}")
    return sorted(found)


def _cpus_in(resources: bytes) -> float:
    """Returns the CPUs in `node:10.0.0.1,1.0,CPU,4,memory,8589934592`."""
    match = re.search(rb"(?:^|,)CPU,([0-9.]+)", resources)
    return float(match[1]) if match else 0.0


def _processes_of(session: Path) -> list[int]:
    """Returns Ray's processes that write into the session, or are to: a raylet opens its log itself.

    Not those that merely have a file of it open: a `tail -f`, an editor, or another driver.
    """
    mine = f"{session}{os.sep}"
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # another user's, or one that has just ended
            command = (process / "cmdline").read_bytes()
            if _is_rays(command.split(b"\0")) and (
                mine.encode() in command or any(_writes_below(mine, fd) for fd in (process / "fd").iterdir())
            ):
                found.append(int(process.name))
    return found


def _is_rays(command: list[bytes]) -> bool:
    program, *arguments = command
    if program.startswith(_RENAMED) or _PROGRAM.search(program):
        return True
    script = next((argument for argument in arguments if argument.endswith(b".py")), b"")
    return os.path.basename(program).startswith(b"python") and _SCRIPT.search(script) is not None


def _writes_below(folder: str, fd: Path) -> bool:
    """Whether a descriptor of /proc/PID/fd is open for writing on a file of that folder."""
    try:
        if not os.readlink(fd).startswith(folder):
            return False
        about = (fd.parents[1] / "fdinfo" / fd.name).read_text()
    except OSError:  # closed in between
        return False
    flags = re.search(r"^flags:\s*([0-7]+)$", about, re.MULTILINE)
    return flags is not None and int(flags[1], 8) & os.O_ACCMODE != os.O_RDONLY


def sweep_host() -> None:
    """Removes scratch folders of dead tasks and the folders of embedded Rays whose process was killed.

    Only those of this user. Each command begins with it, and a folder that cannot be removed stays.
    """
    with contextlib.suppress(OSError):
        root = scratch_root()
        if is_private(root):
            sweep(root)
    with contextlib.suppress(OSError):
        locks = find(host_places("-run"))
        for lock in sorted(locks.glob("session_*.lock")) if is_private(locks) else ():
            _sweep_session(lock)


def mark_session(session: Path) -> Callable[[], None]:
    """Notes the folder of a Ray that this process has started; returns how to remove it after its end.

    The note is a lock that is held as long as this process lives. It is not in Ray's own folder, as there
    every user could put a link in its place.
    """
    lock = run_folder() / f"{session.name}.lock"
    lock_fd = hold_lock(lock, str(session))

    def remove() -> None:
        remove_session(session)
        lock.unlink(missing_ok=True)
        os.close(lock_fd)

    return remove


def _sweep_session(lock: Path) -> None:
    with contextlib.suppress(OSError), adopted(lock.parent, timeout_s=0, lock_name=lock.name) as is_dead:
        if is_dead:
            session = Path(read_text(lock))
            if is_own_session(session):
                remove_session(session)
            lock.unlink(missing_ok=True)
