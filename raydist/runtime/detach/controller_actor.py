"""ControllerActor: the Ray actor that a detached run's controller lives in. Thin: the run is its runner's."""

from __future__ import annotations

import contextlib
import logging
import pkgutil
import threading
import time
from typing import Any, Protocol

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayError

from raydist.errors import ClusterError, MistakeError, RaydistError, SpecError
from raydist.runtime.cluster.connection import NAMESPACE
from raydist.runtime.cluster.inventory import alive_nodes
from raydist.runtime.group.ray_failures import controller_error

logger = logging.getLogger(__name__)

# Between two questions of a client to an actor that Ray is just bringing back.
_POLL_S = 0.1
_ACCEPT_TIMEOUT_S = 60.0
_CALL_TIMEOUT_S = 10.0
# One call waits for the run to be accepted; others may stop it at the same time.
_MAX_CALLS = 16
# Larger arguments go to the object store, and would be lost with the process that made them: Ray 2.60 puts
# up to 100 KB of each, and 10 MB of all, into the actor's own description (_raylet.pyx, prepare_args).
_CHUNK_BYTES = 64 * 1024
_MAX_LAUNCH_BYTES = 8 * 1024 * 1024
# Ray gives each head 1.0 of it, and Ray Serve's controller takes the same part.
_HEAD_RESOURCE = "node:__internal_head__"
_HEAD_SHARE = 0.001


class ControllerRunner(Protocol):
    """What runs in a ControllerActor; raydist.runs.detached has the real one."""

    def __init__(self, launch: bytes) -> None:
        """Takes what the submitting process sent, and does nothing yet: it is called once per incarnation."""

    def run(self, *, is_revived: bool) -> None:
        """Brings the run to its end, in a thread of its own; the actor is over when it returns."""

    def begin(self, code: bytes | None) -> RaydistError | None:
        """Hands over the packed code, and waits until the run is accepted; returns why it was refused."""

    def stop(self) -> None:
        """Asks for the run to be cancelled; returns at once."""


class ControllerActor:
    """A detached actor without CPUs, restarted by Ray whenever its process dies.

    It owns the agents and the placement group of its run, none of them detached: Ray ends them with it.
    """

    def __init__(self, runner: str, *launch: bytes) -> None:
        self._runner: ControllerRunner = pkgutil.resolve_name(runner)(b"".join(launch))
        is_revived = ray.get_runtime_context().was_current_actor_reconstructed
        threading.Thread(target=self._live, args=(is_revived,), name="raydist-controller").start()

    def begin(self, code: bytes | None) -> RaydistError | None:
        return self._runner.begin(code)

    def stop(self) -> None:
        self._runner.stop()

    def _live(self, is_revived: bool) -> None:
        try:
            self._runner.run(is_revived=is_revived)
        except BaseException:  # a process border
            logger.exception("the controller failed")
        finally:
            # A process that just ended would be brought back.
            ray.kill(ray.get_runtime_context().current_actor)


def launch(run: str, *, runner: str, launch: bytes, code: bytes | None) -> None:
    """Starts the controller of a run as the actor of that name, and returns once it has accepted the run.

    When this process dies before that, the run is accepted or nothing of it stays.

    Args:
      runner: `package.module:Class` of the ControllerRunner; `launch` is what it is made with.
      code: What `code_archive.pack` returned; None ships nothing.

    Raises:
      SpecError: A run of that name is running in this Ray. MistakeError: `launch` is too large.
      ClusterError: The cluster cannot run the controller.
      RaydistError: The error with which the runner refused the run.
    """
    refuse_if_running(run)
    code_ref = None if code is None else ray.put(code)
    actor = _create(run, runner=runner, chunks=_chunks(launch))
    with contextlib.ExitStack() as on_error:
        on_error.callback(_call_off, run, actor)
        problem = _begin(actor, code_ref)
        if problem is not None:
            raise problem
        on_error.pop_all()


def is_running(run: str) -> bool:
    """Whether the connected Ray has a controller of that name, one that is just brought back included."""
    return _find(run) is not None


def refuse_if_running(run: str) -> None:
    """Raises SpecError if a detached run of that name is active in the connected Ray."""
    if is_running(run):
        raise _taken_error(run)


def request_stop(run: str) -> bool:
    """Asks the controller of that name to cancel its run; returns False where there is none.

    Raises:
      ClusterError: It does not answer.
    """
    deadline = time.monotonic() + _CALL_TIMEOUT_S
    while (actor := _find(run)) is not None:
        try:
            ray.get(actor.stop.remote(), timeout=_CALL_TIMEOUT_S)
            return True
        except RayError as error:  # it has just ended, or is brought back
            if time.monotonic() > deadline:
                raise ClusterError(f"the controller of run {run} does not answer: {error}") from error
            time.sleep(_POLL_S)
    return False


def _create(run: str, *, runner: str, chunks: list[bytes]) -> Any:
    options = ray.remote(ControllerActor).options(
        name=run,
        namespace=NAMESPACE,
        lifetime="detached",
        num_cpus=0,
        max_restarts=-1,
        max_concurrency=_MAX_CALLS,
        resources=_head_resources(),
    )
    try:
        return options.remote(runner, *chunks)
    except ValueError as error:  # Ray's word for: another process was quicker with that name
        raise _taken_error(run) from error


def _begin(actor: Any, code_ref: Any) -> RaydistError | None:
    deadline = time.monotonic() + _ACCEPT_TIMEOUT_S
    while True:
        try:
            problem: RaydistError | None = ray.get(
                actor.begin.remote(code_ref), timeout=max(0.0, deadline - time.monotonic())
            )
            return problem
        except ActorUnavailableError:
            time.sleep(_POLL_S)  # its process died, and Ray starts another; asking twice does no harm
        except GetTimeoutError as error:
            raise ClusterError(
                f"the run's controller was not running within {_ACCEPT_TIMEOUT_S:g} s; see whether the nodes "
                "of the Ray cluster can start processes: ray status"
            ) from error
        except RayError as error:
            raise controller_error(error) from error


def _call_off(run: str, actor: Any) -> None:
    """Ends a controller whose submitter gives up, with the run where it has begun."""
    with contextlib.suppress(RayError):
        actor.stop.remote()
        deadline = time.monotonic() + _CALL_TIMEOUT_S
        while is_running(run) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        ray.kill(actor)


def _find(run: str) -> Any:
    try:
        return ray.get_actor(run, namespace=NAMESPACE)
    except ValueError:  # Ray's word for: there is none of that name
        return None


def _taken_error(run: str) -> SpecError:
    return SpecError(
        f"name is {run!r}, and a detached run of that name is running in this Ray; "
        f"choose another --name, or stop that run first: raydist stop {run}"
    )


def _chunks(launch: bytes) -> list[bytes]:
    if len(launch) > _MAX_LAUNCH_BYTES:
        raise MistakeError(
            f"the train function takes {len(launch) / 2**20:.0f} MB with it, in what it closes over or in "
            f"params; a detached run keeps at most {_MAX_LAUNCH_BYTES // 2**20} MB: put data into a file"
        )
    return [launch[start : start + _CHUNK_BYTES] for start in range(0, len(launch), _CHUNK_BYTES)]


def _head_resources() -> dict[str, float]:
    """Returns what keeps the actor on the head; nothing where Ray marks no head, and any host will do.

    The head is the one host whose loss ends the whole Ray anyway, so no other host's death, drain or broken
    link costs an attempt. By its resource and not by its node id: a head that Ray's fault tolerance has
    replaced has another id, and a soft affinity of Ray 2.60 goes elsewhere at every third try.
    """
    has_head = any(_HEAD_RESOURCE in node["Resources"] for node in alive_nodes())
    return {_HEAD_RESOURCE: _HEAD_SHARE} if has_head else {}
