"""Runs scripts: in tasks as a run gives them to them, without Ray; and bare, as people run them by hand."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from raydist.planning.assignment import static_environment
from raydist.runtime.host.task_files import TaskFiles
from raydist.spec.job import KerasFlavour
from tests.support.preloaded import server_of
from tests.support.processes import PATIENCE, Cluster, TaskProcess, _leased_port, run_function, started
from tests.support.task_main import log_target

FOLDER = Path(__file__).parents[1] / "scripts"
PLAIN = FOLDER / "plain"  # scripts that say nothing of tf.distribute
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"}
TARGET = "script"  # what task_main takes for a script instead of a function


def write_script(folder: Path, source: str, name: str = "main.py") -> Path:
    path = folder / name
    path.write_text(source)
    return path


def run_script(
    path: Path,
    cluster: Cluster,
    *args: object,
    run_on: str = "chief",
    job_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> list[TaskProcess]:
    """Runs a script in each task, by an actor's runner; `values` are the task's last status."""
    return run_function(TARGET, cluster, **_arguments(path, args, run_on, job_options), **options)


def run_killed_script(
    path: Path, cluster: Cluster, folder: Path, *, killed_at: Mapping[str, int], **options: Any
) -> list[TaskProcess]:
    """Runs a script until its last task is killed, and then once more, as a run does; see `run_script`.

    The second attempt finds nothing of the first. What is kept of their working folders is in the storage.

    Args:
      folder: Where both have their folders, and the storage is.
      killed_at: How far the task is then, see task_main.
    """
    storage = folder / "storage"
    options = {**options, "storage": storage, "keeps_files": True}
    with started_script(
        path, cluster, kept_in=_made(folder / "first"), killed_at={cluster.tasks[-1]: killed_at}, **options
    ) as tasks:
        assert tasks[-1].process.wait(240 * PATIENCE) == -signal.SIGKILL, tasks[-1].text()
        with suppress(subprocess.TimeoutExpired):  # the others may go on until the controller ends them
            tasks[0].process.wait(1)
    target = log_target(str(storage), tasks[0].name, attempt=0)
    if (files := TaskFiles.left_in(tasks[0].folder, target)) is not None:
        files.store_rest()
    return run_script(path, cluster, kept_in=_made(folder / "second"), attempt=1, **options)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@contextmanager
def started_script(
    path: Path,
    cluster: Cluster,
    *args: object,
    run_on: str = "chief",
    job_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Iterator[list[TaskProcess]]:
    with started(TARGET, cluster, **_arguments(path, args, run_on, job_options), **options) as tasks:
        yield tasks


def _arguments(
    path: Path, args: Sequence[object], run_on: str, job_options: Mapping[str, Any] | None
) -> dict[str, Any]:
    job = {"args": [str(each) for each in args], "run_on": run_on, **(job_options or {})}
    return {"file": str(path), "job_options": job}


def run_bare(name: str | Path, *args: object, workers: int, keras: str, timeout_s: float = 240) -> list[str]:
    """Runs a script of tests/scripts in processes of its own, without raydist; returns what they printed.

    Their working folder is the script's. Each is a fork with TensorFlow imported, see preloaded.py.

    Args:
      workers: How many, each with TF_CONFIG; 0 for one process without it.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="raydist-test-")))
        leases = [stack.enter_context(_leased_port()) for _ in range(workers)]
        cluster = {"worker": [f"127.0.0.1:{lease.getsockname()[1]}" for lease in leases]}
        request = {"target": "bare", "arguments": {"file": str(FOLDER / name), "args": [*map(str, args)]}}
        flavour, processes = KerasFlavour(keras), []
        for index in range(max(workers, 1)):
            changes = static_environment(keras=flavour, num_cpus=1, num_gpus=0, environ=os.environ)
            tf_config = {"cluster": cluster, "task": {"type": "worker", "index": index}}
            changes["TF_CONFIG"] = json.dumps(tf_config) if workers else None
            environ = {name: value for name, value in {**os.environ, **changes}.items() if value is not None}
            output = folder / f"{index}.txt"
            process = server_of(flavour).start(request, environ=environ, output=output)
            stack.callback(process.kill)
            processes.append((process, output))
        printed = []
        for process, output in processes:
            code = process.wait(timeout_s * PATIENCE)
            printed.append(output.read_bytes().decode(errors="replace"))
            assert code == 0, printed[-1][-3000:]
    return printed


def results(folder: Path) -> dict[str, Any]:
    """Returns what the tasks of a script of tests/scripts have written, by task."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def copy_of_scripts(folder: Path) -> Path:
    """Copies tests/scripts, so that a run's working directory holds them alone."""
    shutil.copytree(FOLDER, folder / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    return folder / "scripts"
