"""Connection: joins a running Ray, or starts an embedded one, and reports in time why it cannot."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raydist.errors import ClusterError, SpecError
from raydist.planning.assignment import apply_changes
from raydist.planning.inventory import SIMULATED
from raydist.runtime.cluster.authentication import (
    ASK_TIMEOUT_S,
    AUTH_MODE,
    TOKEN,
    agree_on_authentication,
    ensure_token,
)
from raydist.runtime.host.address import (
    ADDRESS_VARIABLE,
    CLIENT_PREFIX,
    LOCAL,
    accepts_tcp,
    running_address as running_address,
    split_address,
)
from raydist.runtime.host.ray_session import (
    end_session,
    mark_session,
    own_process_groups,
    raylets_here,
    sessions_of,
    sweep_host,
)

NAMESPACE = "raydist"
PROBE_TIMEOUT_S = 3.0
# Ray's client server forks a server for each client while its other threads are in gRPC. About one in ten of
# these servers dies before its first line: https://github.com/ray-project/ray/issues/63202.
_CLIENT_ATTEMPTS = 3
_SERVER_DIED = "Initialization failure from server"


@dataclass(frozen=True, kw_only=True)
class EmbeddedSize:
    """What an embedded Ray is started with.

    Attributes:
      num_cpus: Logical CPUs; None takes one per core.
      resources: What else it has, by Ray's names: custom resources, and `memory` in bytes.
    """

    num_cpus: int | None = None
    resources: Mapping[str, float] = field(default_factory=dict)


@dataclass(kw_only=True, eq=False)
class Connection:
    """A Ray that this process is connected to.

    Attributes:
      source: For messages: `Ray at 10.0.0.1:6379`, `embedded Ray`, `this process's embedded Ray` for a run
        that shares it.
      address: By which another process joins the same Ray: `10.0.0.1:6379`, `ray://head:10001`.
      is_embedded: Whether raydist started this Ray for this run.
      is_client: Whether this process is outside of the cluster, by `ray://`.
      session: The folder of a Ray that raydist started; None for any other.
      owns: Whether raydist connected for this one; False where it was connected before, by another run of
        this process too, or inside a Ray worker.
      on_close: What `close` calls, once; None for what others have connected.
    """

    source: str
    address: str
    is_embedded: bool = False
    is_client: bool = False
    session: Path | None = None
    owns: bool = True
    on_close: Callable[[], None] | None

    def close(self) -> None:
        """Disconnects, and ends an embedded Ray with all its processes and files, once no other run needs it.

        Idempotent. What others have connected is left alone.
        """
        on_close, self.on_close = self.on_close, None
        if on_close is not None:
            on_close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class _Shared:
    """The connection that raydist has made: Ray has one for a whole process, with any number of runs."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._num_users = 0

    def use(self, seen: Connection | None = None) -> Connection:
        """Returns a connection of its own to one more run; `seen` is what others find of it."""
        self._num_users += 1
        made = self._connection
        found = made if seen is None else seen
        is_another = made.is_embedded and found is not made
        # A second run's is not embedded: its Ray was made to fit another one.
        return dataclasses.replace(
            found,
            source="this process's embedded Ray" if is_another else found.source,
            session=made.session,
            owns=found is made,
            on_close=self._leave,
        )

    def end_with(self, end: Callable[[], None]) -> None:
        """Has `end` called once the last run has left."""
        close = self._connection.on_close or (lambda: None)

        def close_both() -> None:
            try:
                close()
            finally:
                end()

        self._connection.on_close = close_both

    def _leave(self) -> None:
        with _lock:
            self._num_users -= 1
            if self._num_users == 0 and _State.shared is self:
                _State.shared = None
                self._connection.close()


class _State:
    shared: _Shared | None = None


_lock = threading.RLock()


def connect(
    address: str | None,
    *,
    embedded: Callable[[], EmbeddedSize] = EmbeddedSize,
    environ: MutableMapping[str, str] = os.environ,
) -> Connection:
    """Connects this process to Ray; to the one that it is connected to already, where there is one.

    Threads may call it at once: the first one connects, and the others wait for it and share its Ray.

    Args:
      address: `local`, `auto`, `host:port` or `ray://host:port`; None takes RAY_ADDRESS, else a Ray
        that `ray start` left running on this host, else starts an embedded one.
      embedded: Called right before this call starts an embedded Ray; returns its size.

    Raises:
      ClusterError: In one sentence with its remedy, within 15 s. Where Ray's client server cannot start the
        server of this client, Ray itself takes 40 s to say so, and it is asked three times.
    """
    with _lock:
        existing = _existing()
        if existing is None:
            _State.shared = _Shared(_connect(address, embedded, environ))
            return _State.shared.use()
        return existing if _State.shared is None else _State.shared.use(existing)


def end_with_ray(end: Callable[[], None]) -> None:
    """Has `end` called after the embedded Ray of this process, which several runs may share, has ended."""
    with _lock:
        assert _State.shared is not None
        _State.shared.end_with(end)


def _options_of(size: EmbeddedSize) -> dict[str, Any]:
    """Returns ray.init's own names for what an embedded Ray has."""
    custom = {name: amount for name, amount in size.resources.items() if name != "memory"}
    memory = {"_memory": int(size.resources["memory"])} if "memory" in size.resources else {}
    return {"num_cpus": size.num_cpus, **memory, **({"resources": custom} if custom else {})}


def _connect(
    address: str | None, embedded: Callable[[], EmbeddedSize], environ: MutableMapping[str, str]
) -> Connection:
    sweep_host()
    target = _resolve(address, environ)
    if target == LOCAL:
        return _start_embedded(embedded(), environ)
    given_by_variable = target == environ.get(ADDRESS_VARIABLE) and target != address
    host, port = split_address(target, name=ADDRESS_VARIABLE if given_by_variable else "address")
    if not accepts_tcp(host, port, timeout_s=PROBE_TIMEOUT_S):
        option = "ray-client-server-port" if target.startswith(CLIENT_PREFIX) else "port"
        raise ClusterError(
            f"no Ray answers at {target}; start one there with `ray start --head --{option}={port}`, "
            "or leave --address out to train on this machine"
        )
    return _join(target, environ)


def _existing() -> Connection | None:
    # Without this check a driver that never asked for Ray would pay ray's import here.
    ray: Any = sys.modules.get("ray")
    if ray is None or not hasattr(ray, "is_initialized") or not ray.is_initialized():
        return None
    is_client = bool(ray.util.client.ray.is_connected())
    gcs_address = ray.get_runtime_context().gcs_address
    return Connection(
        source=f"Ray at {gcs_address}", address=gcs_address, is_client=is_client, owns=False, on_close=None
    )


def _resolve(address: str | None, environ: MutableMapping[str, str]) -> str:
    """Returns `local`, `host:port` or `ray://host:port`."""
    address = address or environ.get(ADDRESS_VARIABLE) or running_address(environ) or LOCAL
    if address.startswith(SIMULATED):
        raise SpecError(
            f"address is {address}, a cluster that is only described, which nothing can run on; "
            "use it with raydist plan"
        )
    if address != "auto":
        return address
    found = running_address(environ) or _unrecorded_address()
    if found is None:
        raise ClusterError(
            "address is auto, but no Ray runs on this machine; start one with `raydist up`, "
            "or give its HOST:PORT"
        )
    return found


def _unrecorded_address() -> str | None:
    """Returns a Ray of this host that left no address file, such as another driver's embedded one."""
    from raydist.runtime.cluster import ray_internals

    # It looks at the processes of all users, and anybody could name a Ray of theirs in a command line.
    return next((one for one in ray_internals.local_gcs_addresses() if raylets_here(one)), None)


def _start_embedded(size: EmbeddedSize, environ: MutableMapping[str, str]) -> Connection:
    from raydist.runtime.cluster import ray_internals

    with contextlib.ExitStack() as on_error:
        on_error.callback(_remember_process_state(environ))
        ensure_token(environ)
        on_error.enter_context(_outliving_this_thread(lambda: _init_embedded(size)))
        session = Path(ray_internals.session_path())
        on_error.callback(_shut_down, mark_session(session))
        undo = on_error.pop_all()
    return Connection(
        source="embedded Ray", address=_gcs_address(), is_embedded=True, session=session, on_close=undo.close
    )


def _init_embedded(size: EmbeddedSize) -> None:
    before = sessions_of(os.getpid())
    try:
        with own_process_groups():
            _init("embedded Ray", address=LOCAL, include_dashboard=False, **_options_of(size))
    except BaseException:  # ray.shutdown knows nothing of a Ray that is half up
        for session in sessions_of(os.getpid()) - before:
            end_session(session)
        raise


def _join(target: str, environ: MutableMapping[str, str]) -> Connection:
    is_client = target.startswith(CLIENT_PREFIX)
    with contextlib.ExitStack() as on_error:
        on_error.callback(_remember_process_state(environ))
        agree_on_authentication(target, environ)
        if not is_client:
            _check_is_node(target)
        _init(target, num_attempts=_CLIENT_ATTEMPTS if is_client else 1, address=target)
        on_error.callback(_shut_down)
        undo = on_error.pop_all()
    return Connection(
        source=f"Ray at {target.removeprefix(CLIENT_PREFIX)}",
        address=target if is_client else _gcs_address(),
        is_client=is_client,
        on_close=undo.close,
    )


def _gcs_address() -> str:
    """Returns the address as the cluster knows it: 127.0.0.1 would be another one on another host."""
    import ray

    return str(ray.get_runtime_context().gcs_address)


def _check_is_node(target: str) -> None:
    from raydist.runtime.cluster import ray_internals

    if not ray_internals.has_node_here(target, timeout_s=ASK_TIMEOUT_S):
        raise ClusterError(
            f"this machine is not a node of the Ray at {target}; join with `ray start --address={target}`, "
            "or connect from outside with --address ray://HOST:10001"
        )


def _in_one_line(error: Exception) -> str:
    """Returns the first line of an error's words, and the last one too where the first announces it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join((lines[0], lines[-1]) if len(lines) > 1 and lines[0].endswith(":") else lines[:1])


def _init(shown: str, *, num_attempts: int = 1, **options: Any) -> None:
    import ray

    begun_s = time.monotonic()
    for num_left in reversed(range(num_attempts)):
        try:
            with _sigterm_as_before():
                ray.init(namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR, **options)
            return
        except Exception as error:
            # What was set up so far would make the next ray.init fail.
            ray.shutdown()
            # So Ray tells that one of its processes is not up in time.
            if type(error) is Exception and options["address"] == LOCAL:
                raise ClusterError(
                    f"cannot start {shown}: it was not up after {time.monotonic() - begun_s:.0f} s; "
                    "try again once this machine has CPU time and memory to spare, or run "
                    "`ray start --head` and give --address auto"
                ) from error
            if num_left == 0 or _SERVER_DIED not in str(error):
                raise ClusterError(f"cannot start or join {shown}: {_in_one_line(error)}") from error
        except BaseException:  # Ctrl-C or SIGTERM
            ray.shutdown()
            raise


@contextlib.contextmanager
def _sigterm_as_before() -> Iterator[None]:
    """Leaves a handler of SIGTERM in force, in whose place ray.init puts one that raises SystemExit."""
    handler = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    try:
        yield
    except SystemExit as error:
        if error.code == signal.SIGTERM:
            handler(signal.SIGTERM, None)
        raise
    finally:
        signal.signal(signal.SIGTERM, handler)


@contextlib.contextmanager
def _outliving_this_thread(start: Callable[[], None]) -> Iterator[None]:
    """Calls `start` in a thread that lasts as long as this context.

    The kernel kills an embedded Ray's processes with the thread that started them, not with the process
    (PR_SET_PDEATHSIG in prctl(2); ray/_private/utils.py, set_kill_on_parent_death_linux). A run in a thread
    may end before others that share its Ray. The main thread lasts, and takes Ctrl-C during the start.
    """
    if threading.current_thread() is threading.main_thread():
        start()
        yield
        return
    started: concurrent.futures.Future[None] = concurrent.futures.Future()
    over = threading.Event()

    def start_and_stay() -> None:
        try:
            start()
            started.set_result(None)
        except BaseException as error:  # raised below, in the thread that asked for it
            started.set_exception(error)
        over.wait()

    # A daemon: nothing may be left to close the connection when the process ends.
    thread = threading.Thread(target=start_and_stay, name="raydist-ray", daemon=True)
    thread.start()
    try:
        started.result()
        yield
    finally:
        over.set()
        thread.join()


def _shut_down(after: Callable[[], None] = lambda: None) -> None:
    import ray

    ray.shutdown()
    after()


def _remember_process_state(environ: MutableMapping[str, str]) -> Callable[[], None]:
    """Silences Ray; returns how to undo that and what connecting leaves: a token, a handler of SIGTERM."""
    from raydist.runtime.cluster import ray_internals

    speak_again = ray_internals.silence_raylet()
    authentication = {name: environ.get(name) for name in (AUTH_MODE, TOKEN)}
    in_main_thread = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM) if in_main_thread else None

    def restore() -> None:
        speak_again()
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
        if any(environ.get(name) != value for name, value in authentication.items()):
            apply_changes(authentication, environ)
            ray_internals.reload_authentication()

    return restore
