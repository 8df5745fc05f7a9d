"""A Ray of this machine that stays until it is ended: a thin face of `ray start --head`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from raydist.errors import ClusterError
from raydist.planning.assignment import static_environment
from raydist.private_folders import find, host_places, is_private, read_text, run_folder, write_text
from raydist.runtime.host.address import (
    ADDRESS_VARIABLE,
    accepts_tcp,
    ray_folder,
    recorded_address,
    running_address,
    split_address,
)
from raydist.runtime.host.ray_session import end_session, is_own_session, sessions_of
from raydist.runtime.task.runner import TRAINING_RUNNER
from raydist.spec.job import KerasFlavour

_START_TIMEOUT_S = 120.0
_ANSWER_TIMEOUT_S = 1.0
_NOTE = "standing-ray.json"


@dataclass(frozen=True, kw_only=True)
class StandingRay:
    """One that `start` has started.

    Attributes:
      session: Ray's folder for it.
    """

    address: str
    session: Path


def start(*, num_cpus: int | None) -> StandingRay:
    """Starts one, detached from this process and its shell.

    Args:
      num_cpus: Logical CPUs; None takes one per core.

    Raises:
      ClusterError: One runs already, or Ray could not be started.
    """
    environ = {name: value for name, value in os.environ.items() if name != ADDRESS_VARIABLE}
    known = running_address(environ)
    if known is not None:
        raise ClusterError(
            f"Ray runs already at {known}; raydist submit finds it, and raydist down ends one of raydist up"
        )
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--port=0"]
    command += ["--include-dashboard=false", "--include-log-monitor=false", "--disable-usage-stats"]
    command += [] if num_cpus is None else [f"--num-cpus={num_cpus}"]
    note = run_folder() / _NOTE
    before = set(ray_folder(environ).glob("session_*"))  # also of earlier processes with that number
    try:
        starter = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ
        )
    except OSError as error:
        raise ClusterError(f"Ray could not be started: {error}") from error
    try:
        with starter:
            try:
                out, errors = starter.communicate(timeout=_START_TIMEOUT_S)
            except BaseException:
                starter.kill()
                raise
        address = running_address(environ)
        sessions = sessions_of(starter.pid, environ) - before
        if starter.returncode or address is None or not sessions:
            last = [line for line in (errors + out).splitlines() if line.strip()][-1:]
            raise ClusterError(
                f"Ray could not be started: {''.join(last) or f'exit code {starter.returncode}'}"
            )
        started = StandingRay(address=address, session=sessions.pop().resolve())
        write_text(note, json.dumps({"address": address, "session": str(started.session)}))
    except BaseException as error:  # also Ctrl-C
        for session in sessions_of(starter.pid, environ) - before:
            end_session(session.resolve())
        if isinstance(error, (OSError, subprocess.TimeoutExpired)):
            raise ClusterError(f"Ray could not be started: {error}") from error
        raise
    return started


def stop() -> StandingRay | None:
    """Ends the Ray that `start` has started, with all that runs there; returns None where there is none."""
    path = find(host_places("-run")) / _NOTE
    if not is_private(path.parent):
        return None
    try:
        note = json.loads(read_text(path))
    except (FileNotFoundError, ValueError):
        return None
    known = StandingRay(address=note["address"], session=Path(note["session"]))
    has_run = accepts_tcp(*split_address(known.address), timeout_s=_ANSWER_TIMEOUT_S)
    if is_own_session(known.session):
        end_session(known.session)
    environ = {"RAY_TMPDIR": str(known.session.parents[1])}
    if recorded_address(environ) == known.address:
        (ray_folder(environ) / "ray_current_cluster").unlink(missing_ok=True)
    path.unlink()
    return known if has_run else None  # it may have ended with the machine


def warm(started: StandingRay, keras: KerasFlavour) -> str | None:
    """Has its fork server import TensorFlow; returns why it does not, or None."""
    import ray

    from raydist.runtime.cluster.connection import connect

    with connect(started.address):
        try:
            problem: str | None = ray.get(ray.remote(num_cpus=0, max_retries=0)(_warm_here).remote(keras))
        except ray.exceptions.RayError as error:
            return str(error)
    return problem


def _warm_here(keras: KerasFlavour) -> str | None:
    from raydist.runtime.task import fork_client

    changes = static_environment(keras=keras, num_cpus=1, num_gpus=0, environ=os.environ)
    environ = {name: value for name, value in {**os.environ, **changes}.items() if value is not None}
    try:
        fork_client.warm(TRAINING_RUNNER, environ)
    except (OSError, EOFError, subprocess.CalledProcessError) as error:
        return f"{type(error).__name__}: {error}"
    return None
