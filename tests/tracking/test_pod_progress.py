"""The annotation of a pod, as an API server of the test's own gets it: by HTTPS, with a CA and a token."""

from __future__ import annotations

import contextlib
import json
import os
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from raydist.outcome.result import RunProgress
from raydist.outcome.status import RunState
from raydist.storage.run_record import RunRecord
from raydist.tracking import pod_progress
from raydist.tracking.pod_progress import ANNOTATION, RULE, Pod, PodTracker
from tests.conftest import WaitUntil

PATH = "/api/v1/namespaces/trainings/pods/head-0"
SCRIPT = """
import pathlib, sys
import raydist
from raydist.tracking import pod_progress

pod_progress.SERVICE_ACCOUNT = pathlib.Path(sys.argv[1])
raydist.run(lambda ctx: ctx.report({"loss": 0.5}, step=3), address="local", name="first")
"""


class ApiServer(ThreadingHTTPServer):
    """Takes merge patches of one pod from who has the token.

    Attributes:
      told: The annotation's values, in order.
      status: What else it answers; None takes a patch.
      pause_s: How long it takes.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.told: list[dict[str, Any]] = []
        self.num_requests = 0
        self.token = "first"
        self.status: int | None = None
        self.pause_s = 0.0

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that does not trust it, or waits no longer, is what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    server: ApiServer

    def log_message(self, format: str, *args: object) -> None: ...

    def do_PATCH(self) -> None:
        server = self.server
        server.num_requests += 1
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(server.pause_s)
        status = server.status or 200
        if self.headers["Authorization"] != f"Bearer {server.token}":
            status = 401
        elif (self.path, self.headers["Content-Type"]) != (PATH, "application/merge-patch+json"):
            status = 404
        if status == 200:
            server.told.append(json.loads(body["metadata"]["annotations"][ANNOTATION]))
        self.send_response(status)
        self.end_headers()


def make_certificate(path: Path) -> Path:
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-subj", "/CN=kubernetes", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-keyout", str(path.with_suffix(".key")), "-out", str(path)]
    subprocess.run(command, check=True, capture_output=True, timeout=20)
    return path


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("ca") / "ca.crt")


@pytest.fixture
def server(certificate: Path) -> Iterator[ApiServer]:
    server = ApiServer()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, name="api-server", daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def folder(certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What Kubernetes mounts into a pod."""
    (tmp_path / "ca.crt").write_text(certificate.read_text())
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "namespace").write_text("trainings")
    monkeypatch.setattr(pod_progress, "SERVICE_ACCOUNT", tmp_path)
    return tmp_path


def environ_of(server: ApiServer, **others: str) -> dict[str, str]:
    host, port = server.server_address[:2]
    return {
        **{"KUBERNETES_SERVICE_HOST": str(host), "KUBERNETES_SERVICE_PORT": str(port)},
        **{"HOSTNAME": "head-0", "HTTPS_PROXY": "http://192.0.2.1:3128"},
        **others,
    }


@contextlib.contextmanager
def tracker_of(server: ApiServer, *, every_s: float = 0.05, **others: str) -> Iterator[PodTracker]:
    """Has no thread left at its end."""
    pod = Pod.of_process(environ_of(server, **others))
    assert pod is not None
    tracker = PodTracker(pod, every_s=every_s)
    tracker.update(make_record())
    yield tracker
    deadline = time.monotonic() + 20
    while "raydist-pod" in {one.name for one in threading.enumerate()}:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def make_record(state: RunState = RunState.RUNNING, **facts: Any) -> RunRecord:
    progress = RunProgress(epoch=1, num_epochs=4, num_steps=200, steps_per_s=5.0, eta_s=29.6)
    return RunRecord(run="first", state=state, storage="/runs/first", steps=52, progress=progress, **facts)


def test_pod_has_the_progress_and_the_end_also_with_the_next_token(
    server: ApiServer, folder: Path, wait_until: WaitUntil
) -> None:
    with tracker_of(server) as tracker:
        wait_until(lambda: server.told, timeout_s=20)
        server.token = "second"
        (folder / "token").write_text("second\n")
        tracker.update(make_record(RunState.SUCCEEDED))
        assert tracker.finish() is None
    assert time.time() - server.told[0].pop("at_s") < 30
    steps = {"run": "first", "steps": 52, "num_steps": 200, "fraction": 0.26, "epoch": 1, "num_epochs": 4}
    assert server.told[0] == {**steps, "state": "RUNNING", "eta_s": 30}
    assert (server.told[-1]["state"], "eta_s" in server.told[-1]) == ("SUCCEEDED", False)


def test_pod_is_told_once_in_a_while_and_at_the_end(
    server: ApiServer, folder: Path, wait_until: WaitUntil
) -> None:
    with tracker_of(server, every_s=3600.0) as tracker:
        wait_until(lambda: server.told, timeout_s=20)
        for _ in range(100):
            tracker.update(make_record(attempts=2))
        tracker.update(make_record(RunState.FAILED))
        assert tracker.finish() is None
    assert [one["state"] for one in server.told] == ["RUNNING", "FAILED"]
    assert server.num_requests == 2


@pytest.mark.parametrize(("status", "reason"), [(403, "Forbidden"), (404, "Not Found")])
def test_missing_permission_is_told_once_with_the_rule(
    server: ApiServer, folder: Path, wait_until: WaitUntil, status: int, reason: str
) -> None:
    if status == 404:  # as where the pod is on its host's network
        others = {"HOSTNAME": "node-7"}
    else:
        server.status, others = status, {}
    with tracker_of(server, **others) as tracker:
        wait_until(lambda: server.num_requests >= 3, timeout_s=20)
        tracker.update(make_record(RunState.SUCCEEDED))
        assert tracker.finish() is None
    (note,) = tracker.notes()
    assert (
        f"pod {others.get('HOSTNAME', 'head-0')}: {status} {reason}. Allow its service account {RULE}" in note
    )
    assert server.told == []


def test_pod_name_may_differ_from_that_of_the_host(server: ApiServer, folder: Path) -> None:
    with tracker_of(server, HOSTNAME="head", POD_NAME="head-0") as tracker:
        assert tracker.finish() is None
    assert server.told


def test_server_that_is_overloaded_for_a_while_has_the_end(server: ApiServer, folder: Path) -> None:
    server.status = 503
    with tracker_of(server) as tracker:
        tracker.update(make_record(RunState.SUCCEEDED))
        threading.Timer(0.5, lambda: setattr(server, "status", None)).start()
        assert tracker.finish() is None
    assert server.told[-1]["state"] == "SUCCEEDED"


@pytest.mark.parametrize("trouble", ["down", "slow", "another's certificate", "token is gone"])
def test_server_that_fails_does_not_hold_up_the_run(
    server: ApiServer, folder: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    monkeypatch.setattr(pod_progress, "TIMEOUT_S", 0.2)
    monkeypatch.setattr(pod_progress, "END_TIMEOUT_S", 1.0)
    words = {"down": "Connection refused", "slow": "timed out", "token is gone": "FileNotFoundError"}
    match trouble:
        case "down":
            server.shutdown()
            server.server_close()
        case "slow":
            server.pause_s = 1.0
        case "token is gone":
            pod = Pod.of_process(environ_of(server))
            monkeypatch.setattr(Pod, "of_process", lambda environ: pod)
            (folder / "token").unlink()
        case _:
            make_certificate(folder / "ca.crt")
    with tracker_of(server) as tracker:
        tracker.update(make_record(RunState.SUCCEEDED))
        sentence = tracker.finish()
    assert sentence is not None
    assert "annotation raydist/progress of pod head-0 lacks the run's end: " in sentence
    assert words.get(trouble, "CERTIFICATE_VERIFY_FAILED") in sentence
    assert tracker.notes() == ()
    assert trouble == "slow" or server.num_requests == 0  # the token is sent to nobody else


@pytest.mark.parametrize("lacks", ["KUBERNETES_SERVICE_HOST", "HOSTNAME", "token"])
def test_process_outside_of_kubernetes_has_no_pod(server: ApiServer, folder: Path, lacks: str) -> None:
    if lacks == "token":
        (folder / "token").unlink()
    environ = {name: value for name, value in environ_of(server).items() if name != lacks}
    assert Pod.of_process(environ) is None


@pytest.mark.slow
def test_run_in_a_pod_annotates_it(server: ApiServer, folder: Path) -> None:
    environ = {**os.environ, **environ_of(server), "NO_PROXY": "*"}
    command = [sys.executable, "-c", SCRIPT, str(folder)]
    subprocess.run(command, cwd=folder, env=environ, check=True, capture_output=True, timeout=200)
    last = server.told[-1]
    assert (last["run"], last["state"], last["steps"]) == ("first", "SUCCEEDED", 3)
