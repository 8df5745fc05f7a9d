"""One bare TensorFlow task: `python -m tests.support.task_main REQUEST`; see processes.py."""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from raydist.planning.assignment import TaskAssignment
from raydist.planning.environment import assignment_environment, static_environment
from raydist.spec import ClusterSpec, EntryPoint, JobSpec, KerasFlavour, Strategy, TaskId, TaskType
from raydist.spec.options import find_option


def main(request: dict[str, Any]) -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    assignment = _assignment(request)
    environment = {
        **static_environment(keras=assignment.keras, num_cpus=1, num_gpus=0, environ=os.environ),
        **assignment_environment(assignment),
    }
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value

    from raydist.strategies.session import open_session

    arguments = dict(request["arguments"])
    job_options = {
        name: find_option(name).parse(value) for name, value in arguments.pop("job_options", {}).items()
    }
    assignment = _assignment(request, **job_options)
    module, _, function = request["target"].partition(":")
    with open_session(assignment) as session:
        result = getattr(importlib.import_module(module), function)(session.context, **arguments) or {}
    _write(Path(request["folder"]), result)


def _assignment(request: dict[str, Any], **job_options: Any) -> TaskAssignment:
    strategy = Strategy(request["strategy"])
    is_multi_worker = strategy is Strategy.MULTI_WORKER_MIRRORED
    jobs = ((TaskType.WORKER, tuple(request["addresses"])),) if is_multi_worker else ()
    return TaskAssignment(
        task=TaskId(task_type=TaskType.WORKER, index=request["index"]),
        job=JobSpec(
            name="test",
            entry_point=EntryPoint(function="train", file="job.py"),
            storage=request["storage"],
            **job_options,
        ),
        strategy=strategy,
        keras=KerasFlavour(request["keras"]),
        cluster_spec=ClusterSpec(jobs=jobs),
        attempt=request["attempt"],
        run_uri=request["storage"] + "/test",
        num_workers=len(request["addresses"]),
        devices=request["devices"],
    )


def _write(folder: Path, result: dict[str, Any]) -> None:
    import numpy as np

    arrays = {name: value for name, value in result.items() if isinstance(value, np.ndarray)}
    np.savez(folder / "arrays.npz", **arrays)
    values = {name: value for name, value in result.items() if name not in arrays}
    (folder / "values.json").write_text(json.dumps(values))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
