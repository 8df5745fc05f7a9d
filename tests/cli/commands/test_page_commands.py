"""`raydist download RUN page` and `raydist ui`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from raydist.storage.run_storage import open_run
from tests.cli.conftest import Run
from tests.support.page_runs import store_run

ROOT = Path(__file__).parents[3]


def test_report_is_one_file(raydist: Run, stored_run: dict[str, Any], tmp_path: Path) -> None:
    code, out, err = raydist("download", "digits-1", "page")
    page = (tmp_path / "digits-1.html").read_text()
    assert (code, err) == (0, "")
    assert out.startswith("digits-1.html  0.1 MB")
    assert page.startswith("<!doctype html>")
    assert "https://github.com/leeoniya/uPlot" in page  # its licence's notice
    assert page.count("</script>") == 2


def test_report_says_where_it_is_as_json(raydist: Run, stored_run: dict[str, Any], tmp_path: Path) -> None:
    code, out, _ = raydist("download", "digits-1", "page", "page.html", "--json")
    printed = json.loads(out)
    assert code == 0
    assert printed == {
        "run": "digits-1",
        "what": "page",
        "file": str(tmp_path / "page.html"),
        "bytes": (tmp_path / "page.html").stat().st_size,
        "problems": [],
    }


def test_report_names_what_it_leaves_out(raydist: Run, stored_run: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "raydist_runs/digits-1/metrics/1-worker-0-000000.parquet").write_bytes(b"PAR1")
    (tmp_path / "raydist_runs/digits-1/run.json").write_text("{")
    code, _, err = raydist("download", "digits-1", "page")
    assert code == 0
    assert [line.partition(":")[0] for line in err.splitlines()] == ["left out", "left out"]
    assert "1-worker-0-000000.parquet is damaged" in err
    assert "run.json is damaged" in err


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_run_that_does_not_exist_is_a_mistake(
    raydist: Run, stored_run: dict[str, Any], tmp_path: Path, more: list[str]
) -> None:
    code, _, err = raydist("download", "digits-2", "page", *more)
    assert (code, "did you mean digits-1?" in err) == (2, True)
    assert not (tmp_path / "digits-2.html").exists()


def test_place_that_cannot_be_written_is_a_mistake(raydist: Run, stored_run: dict[str, Any]) -> None:
    code, _, err = raydist("download", "digits-1", "page", "missing/page.html")
    assert (code, "missing/page.html cannot be written" in err, "choose another" in err) == (2, True, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_ui_serves_until_it_is_stopped_and_frees_its_port(
    stored_run: dict[str, Any], tmp_path: Path, number: signal.Signals
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "raydist.cli.main", "ui", "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    lines: list[str] = []
    while not lines or lines[-1] != "}\n":
        lines.append(process.stdout.readline())
    printed = json.loads("".join(lines))
    url = printed["url"]
    port = int(url.split(":")[2].partition("/")[0])
    assert printed["storage"] == str(tmp_path / "raydist_runs")
    with urllib.request.urlopen(f"{url}api/runs", timeout=30) as answer:
        assert [run["run"] for run in json.load(answer)["runs"]] == ["digits-1"]
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err.strip()) == (130, "raydist: stopped by Ctrl-C")
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", port))


def test_reading_commands_import_neither_ray_nor_tensorflow() -> None:
    code = (
        "import sys, raydist.cli.main, raydist.cli.commands.pages, raydist.page.server, "
        "raydist.page.html\nprint(*[m for m in ('ray', 'tensorflow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("\n", 0)


@pytest.mark.parametrize("state", ["RUNNING", "FAILED"])
def test_report_of_a_run_on_an_object_store(raydist: Run, s3_uri: str, tmp_path: Path, state: str) -> None:
    error = {"type": "ValueError", "message": "bad batch", "task": "worker/0", "attempt": 1}
    store_run(
        open_run(s3_uri, run="far"), state=state, error={**error, "log": "l"} if state == "FAILED" else None
    )
    assert raydist("download", "far", "page", "--storage", s3_uri)[0] == 0
    page = (tmp_path / "far.html").read_text()
    assert f'"state": "{state}"' in page
    assert ("last words of worker/0 in attempt 1" in page) == (state == "FAILED")
