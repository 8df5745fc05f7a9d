"""What Ray is given for processes of a run: their runtime environment, and functions as bytes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from ray import cloudpickle
from ray.runtime_env import RuntimeEnv

from raydist.errors import JobFileError, SpecError
from raydist.spec.job import JobSpec
from raydist.spec.text import listed
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
    """Returns what `pickle.loads` makes the function of again, on any host with the same Python.

    Raises JobFileError for one that uses what exists in this process only.
    """
    try:
        return _pickled(function)
    except Exception as error:  # of whatever object it is
        name = getattr(function, "__name__", type(function).__name__)
        used = listed(_not_pickled(function, set())) or "something"
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise JobFileError(
            f"the job {name} uses {used}, which exists in this process only ({reason}); "
            "create datasets, strategies and locks inside of the job"
        ) from error


def _pickled(thing: object) -> bytes:
    pickled: bytes = cloudpickle.dumps(thing)  # type: ignore[no-untyped-call]
    return pickled


def _not_pickled(function: object, seen: set[int]) -> Iterator[str]:
    """Yields the names of what a function uses, or one that it calls, that cannot be pickled."""
    function = inspect.unwrap(getattr(function, "__func__", function))  # type: ignore[arg-type]
    if not inspect.isfunction(function) or id(function) in seen:
        return
    seen.add(id(function))
    outside = inspect.getclosurevars(function)
    for name, value in {**outside.globals, **outside.nonlocals}.items():
        try:
            _pickled(value)
        except Exception:
            yield from list(_not_pickled(value, seen)) or [name]
