"""What a job can have told of devices and of compiled code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes import Cluster, started

OPTIONS = {"log_device_placement": "true"}


@pytest.mark.slow
def test_devices_are_logged_and_compiled_code_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "xla"
    environ = {"TF_CPP_MIN_LOG_LEVEL": "0", "XLA_FLAGS": f"--xla_dump_to={folder}"}
    with started("tests.support.profiles:fit_compiled", Cluster(), environ=environ, job_options=OPTIONS) as [
        task
    ]:
        assert task.process.wait(timeout=600) == 0, task.text()
        output = task.output.read_text(errors="replace")
    # What XLA compiles has no op of its own any more.
    assert "AssignVariableOp: (AssignVariableOp): /job:localhost/replica:0/task:0/device:CPU:0" in output
    assert [path for path in folder.iterdir() if path.name.endswith("optimizations.txt")]
