"""Runs that are started in a notebook: its cells run in a real Jupyter kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from raydist.storage.run_record import read_record
from raydist.storage.run_storage import open_run
from tests.e2e.conftest import ROOT, RunningRay

pytestmark = pytest.mark.slow

DEFINED = """
import raydist

def train(ctx):
    import time

    for step in range(1, ctx.params["steps"] + 1):
        time.sleep(0.2)
        ctx.report({"loss": 1 / step}, step=step)
    return {"last": step}
"""


def outputs_of(cells: list[Any], folder: Path, environ: dict[str, str]) -> list[list[dict[str, Any]]]:
    """Returns the outputs of each cell, which is a source or, with what it is interrupted at, a pair."""
    pairs = [(cell, None) if isinstance(cell, str) else cell for cell in cells]
    (folder / "cells.json").write_text(json.dumps(pairs))
    own = {"HOME": str(folder), "IPYTHONDIR": str(folder / "ipython"), "JUPYTER_PLATFORM_DIRS": "1"}
    ended = subprocess.run(
        [sys.executable, ROOT / "tests/support/notebook_driver.py", "cells.json"],
        cwd=folder,
        env={**environ, **own},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def displays(outputs: list[dict[str, Any]]) -> list[dict[str, str]]:
    return [one["data"] for one in outputs if one["output_type"] == "display_data"]


def test_cell_shows_one_display_and_the_result(running_ray: RunningRay, tmp_path: Path) -> None:
    call = "raydist.run(train, name='in-cell', address='local', storage='runs', params={'steps': 8})"
    cells = [
        DEFINED,
        call,
        "raydist.attach('in-cell', storage='runs')",
        "raydist.plan(train, address='local')",
        "import sys; 'ipywidgets' in sys.modules",
    ]
    _, ran, handle, plan, has_widgets = outputs_of(cells, tmp_path, dict(running_ray.environ))
    # The display that is replaced, and the value of the cell; no word of Ray's or anything on stderr.
    assert [one["output_type"] for one in ran] == ["display_data", "execute_result"], ran
    [display] = displays(ran)
    assert display["text/plain"] == "in-cell: SUCCEEDED  steps 8  loss 0.125"
    assert "<polyline" in display["text/html"]
    result = ran[-1]["data"]
    assert (
        result["text/plain"] == "RunResult(run='in-cell', state=SUCCEEDED, steps=8, metrics={'loss': 0.125})"
    )
    assert "in-cell: SUCCEEDED" in result["text/html"]
    assert handle[0]["data"]["text/plain"] == "RunHandle('in-cell')"
    assert "in-cell: SUCCEEDED" in handle[0]["data"]["text/html"]
    assert plan[0]["data"]["text/html"].startswith("<div><b>plan of ")
    assert has_widgets[0]["data"]["text/plain"] == "False"


def test_interrupt_stops_the_run_and_the_kernel_goes_on(running_ray: RunningRay, tmp_path: Path) -> None:
    options = "address='local', storage='runs'"
    cells = [
        DEFINED,
        (f"raydist.run(train, name='stopped', {options}, params={{'steps': 900}})", "loss"),
        f"raydist.run(train, name='next', {options}, params={{'steps': 2}}).value",
    ]
    _, stopped, following = outputs_of(cells, tmp_path, dict(running_ray.environ))
    assert [one["ename"] for one in stopped if one["output_type"] == "error"] == ["KeyboardInterrupt"]
    [display] = displays(stopped)
    assert display["text/plain"].startswith("stopped: CANCELLED  steps ")
    assert following[-1]["data"]["text/plain"] == "{'last': 2}"
    record = read_record(open_run(str(tmp_path / "runs"), run="stopped"))
    assert record.state.value == "CANCELLED"
    assert [one.pid for one in record.tasks if one.pid and os.path.exists(f"/proc/{one.pid}")] == []
