"""`raydist doctor`: what it says of versions that raydist does not know."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from raydist.cli.commands import doctor
from raydist.runtime.host.software import has_metrics_agent
from tests.cli.conftest import Run


def test_versions_that_are_too_old_or_newer_are_named_with_the_remedy(
    raydist: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = {"tensorflow": "2.17.1", "keras": "3.16.0", "tf_keras": "none", "python": "3.12"}
    monkeypatch.setattr(doctor, "installed_versions", lambda: versions)
    monkeypatch.setattr(doctor, "lost_parts", lambda: ["Ray 2.46.0 has no x: y is lost"])
    code, out, _ = raydist("doctor")
    assert code == 3
    lines = {line.split()[1]: line for line in out.splitlines()}
    assert lines["tensorflow"].startswith("BAD")
    assert 'install "tensorflow>=2.18,<2.22"' in lines["tensorflow"]
    assert lines["keras"].startswith("ok")
    assert "3.16.0: newer than 3.15; the first task on each host checks" in lines["keras"]
    assert lines["tf_keras"].startswith("BAD")
    assert "y is lost" in lines["lost"]


def test_machine_without_tensorflow_may_submit(
    raydist: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    versions = {
        "raydist": "0.1.0",
        "tensorflow": "none",
        "keras": "none",
        "tf_keras": "none",
        "python": "3.12",
    }
    monkeypatch.setattr(doctor, "installed_versions", lambda: versions)
    _, out, _ = raydist("doctor", "--storage", str(tmp_path))
    lines = {line.split()[1]: line for line in out.splitlines()}
    assert all(lines[name].startswith("ok") for name in versions)
    assert "`pip install 'raydist[tensorflow]'` adds what that needs" in lines["tensorflow"]


def test_doctor_says_whether_a_ray_serves_metrics(raydist: Run, tmp_path: Path) -> None:
    _, out, _ = raydist("doctor", "--storage", str(tmp_path))
    (line,) = [line for line in out.splitlines() if "Prometheus" in line]
    assert line.startswith("ok")
    assert ("raydist[prometheus]" in line) is not has_metrics_agent()


@pytest.mark.parametrize(
    ("address", "code", "sentence"),
    [
        ("127.0.0.1:1", 3, "no Ray answers at 127.0.0.1:1; start one there with `ray start --head --port=1`"),
        ("ray://127.0.0.1:1", 3, "with `ray start --head --ray-client-server-port=1`"),
        ("head", 2, "address is 'head'; write local, auto, host:port"),
    ],
)
def test_address_that_no_ray_answers_at_is_one_sentence(
    raydist: Run, address: str, code: int, sentence: str
) -> None:
    ended, out, err = raydist("doctor", "--address", address)
    assert (ended, out) == (code, "")
    assert sentence in err
    assert err.count("\n") == 1


def test_dashboard_that_others_reach_is_told_with_the_remedy(raydist: Run, tmp_path: Path) -> None:
    script = tmp_path / "ray" / "dashboard" / "dashboard.py"
    script.parent.mkdir(parents=True)
    script.write_text("input()")
    options = [("0.0.0.0", 29991), ("127.0.0.1", 29992)]
    with contextlib.ExitStack() as stack:
        for host, port in options:
            command = [sys.executable, script, f"--host={host}", f"--port={port}"]
            stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE))
        code, out, _ = raydist("doctor", "--storage", str(tmp_path))
    lines = [line for line in out.splitlines() if ":2999" in line]
    assert code == 0
    assert len(lines) == 1
    assert lines[0].startswith("ok   dashboard     Ray's dashboard listens on 0.0.0.0:29991")
    assert lines[0].endswith("start Ray with --dashboard-host=127.0.0.1")


@pytest.mark.parametrize(("version", "is_told"), [("2.51.1", True), ("2.52.0", False)])
def test_ray_without_tokens_is_told(
    raydist: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, is_told: bool
) -> None:
    monkeypatch.setattr(doctor, "installed_version", lambda name: version)
    _, out, _ = raydist("doctor", "--storage", str(tmp_path))
    assert (f"Ray {version} has no token authentication" in out) is is_told
