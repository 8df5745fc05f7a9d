"""Runs a job file in a process of its own, for the decorator's arguments that are not literals."""

from __future__ import annotations

import enum
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raydist.entry.entry_point import load_object
from raydist.entry.job_source import problem_of_function
from raydist.errors import JobFileError
from raydist.spec.job import EntryPoint
from raydist.spec.params import PARAM_TYPES, PARAMS, keep_params, kept_params
from raydist.spec.settings.decorator import Job

_TIME_LIMIT_S = 300.0  # a job file may import TensorFlow, which takes long on a busy machine
# Nothing of the current folder (as by -P, which came with Python 3.11), and a path at the end, so that the
# folder that raydist lies in (site-packages) shadows nothing.
_BOOT = (
    "import sys; sys.path = [one for one in sys.path if one] + [sys.argv.pop(1)]; "
    "from raydist.entry.job_probe import main; main()"
)


def probe_defaults(
    entry_point: EntryPoint, *, working_dir: Path | None, shown: str, timeout_s: float = _TIME_LIMIT_S
) -> dict[str, Any]:
    """Returns the arguments of the job that `entry_point` names, as written; {} for a plain function.

    Args:
      shown: The job as the user wrote it, for messages.

    Raises:
      JobFileError: The file failed when it was run, and the message ends with the last line that it printed;
        or a task could not call the job.
    """
    request = {"file": entry_point.file, "module": entry_point.module, "function": entry_point.function}
    root = str(Path(__file__).parents[2])  # the folder that raydist lies in
    command = [sys.executable, "-c", _BOOT, root, json.dumps(request), str(working_dir or "")]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env={"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ},
        )
    except subprocess.TimeoutExpired:
        raise JobFileError(
            f"{shown} was run for the job's defaults, which are not literals, and took over {timeout_s:g} s; "
            "write literals, or move the work into the function"
        ) from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise JobFileError(
            f"{shown} failed when it was run for the job's defaults, which are not literals: {last}"
        )
    told = json.loads(done.stdout)
    if told["problem"] is not None:
        raise JobFileError(f"{shown} {told['problem']}")
    written: dict[str, Any] = told["arguments"]
    if PARAMS in written:
        written[PARAMS] = kept_params(written)
    written.pop(PARAM_TYPES, None)
    return written


def main() -> None:
    """The probe's process: prints the defaults as JSON; what the job file prints goes to stderr."""
    request, working_dir = json.loads(sys.argv[1]), sys.argv[2]
    result = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if working_dir:
        sys.path.insert(0, working_dir)
    loaded = load_object(EntryPoint(**request), working_dir=Path(working_dir) if working_dir else None)
    if not isinstance(loaded, Job) and not callable(loaded):
        raise JobFileError(f"{request['function']} is of type {type(loaded).__name__}; name a function")
    told = {
        "problem": problem_of_function(loaded.function if isinstance(loaded, Job) else loaded),
        "arguments": _arguments(loaded) if isinstance(loaded, Job) else {},
    }
    with result:
        json.dump(told, result)
    # The job file may have started threads that would keep this process alive.
    sys.stderr.flush()
    os._exit(0)


def _arguments(job: Job[Any, Any]) -> dict[str, Any]:
    """Returns the decorator's arguments in JSON's types: not the typed values, which are not read again."""
    written = {name: _plain(value) for name, value in job.defaults.written.items()}
    return {**written, **keep_params(written[PARAMS])} if PARAMS in written else written


def _plain(value: Any) -> Any:
    """Returns an argument's value in JSON's types, tuples aside, as its parser reads it."""
    match value:
        case enum.Enum():
            return value.value
        case Mapping():
            return {key: _plain(item) for key, item in value.items()}
        case list():
            return [_plain(item) for item in value]
        case tuple():
            return tuple(map(_plain, value))
        case os.PathLike():
            return os.fspath(value)
        case None | bool() | int() | float() | str():
            return value
        case _:
            return str(value)
