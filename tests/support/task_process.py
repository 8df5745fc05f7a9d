"""A process that looks like a task of a run: by its name, and by the file that it has open."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from raydist.spec.tasks import TaskId

NAME = "ray::TaskActor"


@contextmanager
def task_process(
    folder: Path, *, run: str, task: str, command: Sequence[str] = ("sleep", "60"), name: str = NAME
) -> Iterator[subprocess.Popen[str]]:
    """Yields such a process, whose standard output is a pipe; it is killed in the end.

    Args:
      folder: Where the scratch folder is to be.
    """
    scratch = folder / f"{run}-0-{TaskId.parse(task).path_name}-56b0cf96-0"
    scratch.mkdir(parents=True, exist_ok=True)
    started = ["bash", "-c", f'exec -a {name} "$@" 3> "$0/log"', str(scratch), *command]
    # By that name Python does not find its virtual environment.
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(started, env=environ, stdout=subprocess.PIPE, text=True) as process:
        try:
            while not Path(f"/proc/{process.pid}/cmdline").read_bytes().startswith(name.encode()):
                time.sleep(0.01)
            yield process
        finally:
            process.kill()
