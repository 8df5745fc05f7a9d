"""What Ray is given for processes of a run: their runtime environment, and functions as bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray import cloudpickle
from ray.runtime_env import RuntimeEnv

from raydist.errors import SpecError
from raydist.spec.job import JobSpec
from raydist.spec.variables import at_start


def runtime_env_of(job: JobSpec) -> Mapping[str, Any] | None:
    """Returns what the tasks' actors are asked for with; None for a job that needs none.

    Most variables are set by the task itself: a runtime environment costs about a second of each start, its
    workers cannot be reused, and Ray shows it to all who see its dashboard. Some have to be there when the
    process starts.
    """
    variables = at_start(job.env)
    return {**(job.runtime_env or {}), **({"env_vars": variables} if variables else {})} or None


def check_runtime_env(job: JobSpec) -> None:
    """Raises SpecError for a runtime environment that Ray does not take."""
    asked = runtime_env_of(job)
    try:
        RuntimeEnv(**(asked or {}))
    except (ValueError, TypeError) as error:
        raise SpecError(f"runtime_env is not one that Ray takes: {str(error).splitlines()[0]}") from error


def pickle_by_value(function: object) -> bytes:
    """Returns what `pickle.loads` makes the function of again, on any host with the same Python."""
    pickled: bytes = cloudpickle.dumps(function)  # type: ignore[no-untyped-call]
    return pickled
