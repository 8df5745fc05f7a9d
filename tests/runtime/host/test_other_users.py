"""What another user of the host does in folders that every user can write to, such as /tmp."""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401, another user may not be allowed to import it later
import os
import pickle
import re
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from raydist.private_folders import PrivateFolderError, find, host_places, make, run_folder, state_folder
from raydist.runtime.cluster import connection
from raydist.runtime.detach import standing_ray
from raydist.runtime.host.address import join_address, running_address
from raydist.runtime.host.ray_session import mark_session
from raydist.runtime.host.scratch import Scratch, scratch_root
from raydist.runtime.task import fork_client
from raydist.runtime.task.fork_server import ForkRequest, Stay, receive, send
from raydist.runtime.task.ports import PortLease
from raydist.spec.job import PortRange
from tests.support.users import ATTACKER, VICTIM, as_user, kept_by, needs_users


@pytest.fixture
def shared(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for everybody's temporary files, with a home of the victim's in it."""
    folder = Path(f"/tmp/rd-users-{os.getpid()}")  # tmp_path is root's alone
    folder.mkdir()
    folder.chmod(0o1777)
    (folder / "home").mkdir()
    os.chown(folder / "home", VICTIM, VICTIM)
    for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "RAY_TMPDIR", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(folder / "home"))
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield folder
    shutil.rmtree(folder)


def test_task_shares_the_folder_of_its_host_whatever_its_own_temporary_files(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_folder()
    for name in ("RAYDIST_HOST_TMPDIR", "TMPDIR"):
        monkeypatch.setenv(name, "")  # so that they are restored
    monkeypatch.delenv("RAYDIST_HOST_TMPDIR")
    scratch = Scratch.create("a-task")
    scratch.take_temporary_files()
    assert Path(os.environ["TMPDIR"]).is_relative_to(scratch.path)
    assert run_folder() == folder


def squat(shared: Path) -> None:
    """Has the attacker make each folder in the shared one that the victim could want."""

    def act() -> None:
        os.umask(0)
        for suffix in ("", "-run", "-up", "-runs"):
            (shared / f"raydist-{VICTIM}{suffix}").mkdir(mode=0o777)

    as_user(ATTACKER, act)


@needs_users
def test_folders_that_another_user_has_made_first_stop_no_run(shared: Path) -> None:
    squat(shared)

    def act() -> None:
        Scratch.create("run-0-worker-0").remove()
        home = shared / "home" / ".cache" / "raydist"
        assert {scratch_root().parent, run_folder().parent} == {home}
        assert run_folder().stat().st_mode & 0o777 == 0o700
        PortLease.acquire(PortRange(low=29500, high=29510)).close()

    as_user(VICTIM, act)


@needs_users
def test_user_is_named_who_has_taken_the_only_place(shared: Path) -> None:
    squat(shared)

    def act() -> None:
        os.chmod(shared / "home", 0o500)
        with pytest.raises(PrivateFolderError) as told:
            run_folder()
        assert f"raydist-{VICTIM}-run belongs to user {ATTACKER}" in str(told.value)
        assert re.search(r"home/\.cache/raydist/on-\S+: Permission denied", str(told.value))
        assert "set TMPDIR to a folder of yours, or XDG_RUNTIME_DIR" in str(told.value)
        os.environ["XDG_RUNTIME_DIR"] = "home"  # relative, which the specification has ignored
        with pytest.raises(PrivateFolderError):
            run_folder()
        os.chmod(shared / "home", 0o700)
        (shared / "home" / "runtime").mkdir()
        os.chmod(shared / "home", 0o500)
        os.environ["XDG_RUNTIME_DIR"] = str(shared / "home" / "runtime")
        assert run_folder() == shared / "home" / "runtime" / "raydist-run"

    as_user(VICTIM, act)


def test_relative_folders_of_the_environment_are_ignored(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shared)
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, "relative")
    assert state_folder("runs") == shared / "home" / ".local" / "state" / "raydist" / "runs"
    assert all(place.is_absolute() for place in host_places())
    assert not (shared / "relative").exists()


def test_user_without_a_home_has_the_folder_of_temporary_files(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shared / "file").write_text("")
    monkeypatch.setenv("HOME", str(shared / "file"))
    assert state_folder("runs") == shared / f"raydist-{os.geteuid()}-runs"


def test_folder_that_is_found_is_the_one_that_was_made(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    places = [tmp_path / "taken", tmp_path / "first", tmp_path / "second"]
    assert find(places) == tmp_path / "first"
    assert make(places) == find(places) == tmp_path / "first"
    (tmp_path / "first").chmod(0o777)
    assert make(places) == find(places) == tmp_path / "second"


@needs_users
def test_lock_of_a_session_follows_no_link_of_another_user(shared: Path) -> None:
    session, precious = shared / "ray" / "session_1", shared / "home" / "precious"

    def make_session() -> None:
        precious.write_text("precious")
        session.mkdir(parents=True)
        session.chmod(0o777)  # as Ray leaves it

    def plant() -> None:
        for name in ("raydist.lock", *(f".raydist.lock-{pid}" for pid in range(victim, victim + 100))):
            (session / name).symlink_to(precious)

    victim = os.getpid()
    as_user(VICTIM, make_session)
    as_user(ATTACKER, plant)
    as_user(VICTIM, lambda: mark_session(session)())
    assert precious.read_text() == "precious"
    assert not session.exists()


_RAY_START = """#!/bin/sh
# What `ray start --head` leaves.
mkdir -p "$TMPDIR/ray/session_1_$$/logs" && chmod 777 "$TMPDIR/ray" "$TMPDIR/ray/session_1_$$"
ln -sfn "$TMPDIR/home/thesis" "$TMPDIR/ray/session_latest"  # by the attacker, who can write there
printf %s "$STARTED" > "$TMPDIR/ray/ray_current_cluster"
"""


@needs_users
def test_ray_that_stays_is_noted_and_ended_without_following_links_of_others(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    squat(shared)
    as_user(
        ATTACKER,
        lambda: (shared / f"raydist-{VICTIM}-up" / "standing-ray.json").symlink_to(shared / "home" / "keys"),
    )
    (shared / "bin").mkdir()
    (shared / "bin" / "ray").write_text(_RAY_START)
    (shared / "bin" / "ray").chmod(0o755)
    monkeypatch.setattr("sys.executable", str(shared / "bin" / "python"))

    def act() -> None:
        (shared / "home" / "keys").write_text("keys")
        (shared / "home" / "thesis").mkdir()
        with socket.create_server(("127.0.0.1", 0)) as server:
            os.environ["STARTED"] = f"127.0.0.1:{server.getsockname()[1]}"
            started = standing_ray.start(num_cpus=1)
            assert started.session.parent == shared / "ray"
            assert started.session.is_dir()
            assert standing_ray.stop() == started
        assert not started.session.exists()
        assert not (shared / "ray" / "ray_current_cluster").exists()
        assert (shared / "home" / "keys").read_text() == "keys"
        assert (shared / "home" / "thesis").is_dir()

    as_user(VICTIM, act)


@needs_users
def test_names_of_locks_that_another_user_holds_leave_all_ports_free(shared: Path) -> None:
    def hold() -> list[socket.socket]:
        held = [socket.socket(socket.AF_UNIX) for _ in range(3)]
        for port, one in enumerate(held, start=29520):
            one.bind(f"\0raydist-port-{port}")
        return held

    with kept_by(ATTACKER, hold), PortLease.acquire(PortRange(low=29520, high=29522)) as lease:
        assert lease.port in range(29520, 29523)


@needs_users
@pytest.mark.parametrize(
    ("host", "at"), [("127.0.0.1", "127.0.0.1"), ("localhost", "0.0.0.0"), ("::1", "::")]
)
def test_address_at_which_another_user_listens_is_passed_over(shared: Path, host: str, at: str) -> None:
    """As where a Ray of the user's has crashed, and its file with the address has stayed."""
    recorded = shared / "ray" / "ray_current_cluster"
    recorded.parent.mkdir()
    recorded.touch()
    recorded.chmod(0o666)

    def listen() -> socket.socket:
        family = socket.AF_INET6 if ":" in at else socket.AF_INET
        server = socket.create_server((at, 0), family=family)
        recorded.write_text(join_address(host, server.getsockname()[1]))
        return server

    with kept_by(ATTACKER, listen):
        assert running_address() is None
    with contextlib.closing(listen()):
        assert running_address() is not None


@needs_users
def test_ray_that_a_process_of_another_user_names_is_not_found(shared: Path) -> None:
    """`auto` looks for the processes of a Ray that has left no file."""

    def run() -> subprocess.Popen[bytes]:
        command = ["/x/ray/core/src/ray/raylet/raylet", "-c", "read x; true", "--node_ip_address=10.0.0.9"]
        command += ["--gcs-address=10.0.0.9:6379"]
        return subprocess.Popen(command, executable="/bin/sh", stdin=subprocess.PIPE)  # ends with the pipe

    with kept_by(ATTACKER, run):
        assert connection._unrecorded_address() != "10.0.0.9:6379"


def test_fork_server_listens_in_a_folder_of_this_user_alone(shared: Path) -> None:
    reading, writing = os.pipe()
    name = f"of-test-{os.getpid()}"
    try:
        fork_client._start_server(name, "", dict(os.environ), parent=f"fd:{reading}")
        connected = fork_client._connected(name)
        connected.close()
        assert (run_folder() / f"fork-{name}.sock").is_socket()
        assert f"@raydist-fork-{name}" not in Path("/proc/net/unix").read_text()
    finally:
        os.close(writing)
        os.close(reading)


def test_fork_server_unpickles_nothing(shared: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(shared / "pwned"),)

    content = pickle.dumps(Evil())
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(struct.pack("<Q", len(content)) + content)
        with pytest.raises(EOFError):
            receive(theirs)
    assert not (shared / "pwned").exists()


def test_request_arrives_as_it_was_sent() -> None:
    """A variable may hold what is no text."""
    request = ForkRequest(
        title="worker/0",
        environ={"A": "\udcff'\n"},
        sys_path=["/x"],
        keep_warm_s=0.5,
        oom_score_adj="0",
        num_files=9,
    )
    ours, theirs = socket.socketpair()
    with ours, theirs, open(os.devnull) as nothing:
        send(ours, request, [nothing.fileno()])
        received, fds = receive(theirs)
    os.close(*fds)
    assert received == request


def test_socket_that_a_killed_fork_server_has_left_is_replaced(shared: Path) -> None:
    names = ["fork-of-test.sock", "fork-of-another.sock"]
    for name in names:
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(run_folder() / name))
    reading, writing = os.pipe()
    try:
        assert fork_client._connected("of-test") is None
        fork_client._start_server("of-test", "", dict(os.environ), parent=f"fd:{reading}")
        with fork_client._connected("of-test") as connected:  # type: ignore[union-attr]
            send(connected, Stay(keep_warm_s=0.0))
            assert receive(connected)[0] == Stay(keep_warm_s=0.0)
        assert [path.name for path in run_folder().glob("*.sock")] == names[:1]
    finally:
        os.close(writing)
        os.close(reading)
