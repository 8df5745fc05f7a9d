"""What a job can have told of devices and of compiled code."""

from __future__ import annotations

from pathlib import Path

import pytest

from raydist.storage.run_storage import open_run
from tests.support.processes import Cluster, started

OPTIONS = {"log_device_placement": "true", "dump_xla": "true"}


@pytest.mark.exhaustive("not compiled", "s3", covered_by="[folder-compiled]")
@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [True, False], ids=["compiled", "not compiled"])
@pytest.mark.parametrize("where", ["folder", "s3"])
def test_devices_are_logged_and_compiled_code_is_kept(
    tmp_path: Path, jit_compile: bool, where: str, request: pytest.FixtureRequest
) -> None:
    uri = str(tmp_path / "runs") if where == "folder" else request.getfixturevalue("s3_uri")
    target = "tests.support.profiles:fit_compiled"
    environ = {"TF_CPP_MIN_LOG_LEVEL": "0"}
    with started(
        target, Cluster(), environ=environ, storage=uri, job_options=OPTIONS, jit_compile=jit_compile
    ) as [task]:
        assert task.process.wait(timeout=600) == 0, task.text()
        output = task.output.read_text(errors="replace")
    # What XLA compiles has no op of its own any more.
    assert "AssignVariableOp: (AssignVariableOp): /job:localhost/replica:0/task:0/device:CPU:0" in output
    assert ("XLA compiled nothing in worker/0" in output) == (not jit_compile)
    [name] = [name for name in open_run(uri, run="").list_names("") if not name.startswith(".")]
    storage = open_run(uri, run=name)
    names = [file.key for file in storage.list_files(f"{name}/xla")]
    assert all(key.startswith(f"{name}/xla/0/worker-0/module_") for key in names)
    assert any(key.endswith("optimizations.txt") for key in names) == jit_compile
