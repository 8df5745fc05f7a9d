"""Callbacks with several workers: what they write is written once, and they decide as on one device."""

from __future__ import annotations

import functools
import math
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raydist.training.user_code.bytecode import may_reach_model
from tests.support.callback_functions import EPOCHS
from tests.support.processes import Cluster, TaskProcess, run_in_turn

# One launch of many fits, where others may use the machine too.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FUNCTIONS = "tests.support.callback_functions"
WAYS = ("ctx", "plain")
AGAIN = pytest.mark.exhaustive(covered_by="[…-keras3_0], with data of another length")
WORKERS = [
    Cluster(strategy="multi_worker_mirrored", workers=2),
    pytest.param(Cluster(strategy="multi_worker_mirrored", workers=2, keras="legacy"), marks=AGAIN),
    pytest.param(Cluster(strategy="multi_worker_mirrored", workers=2, devices=2), marks=AGAIN),
]


@contextmanager
def http_server() -> Iterator[tuple[int, list[bytes]]]:
    """Takes what RemoteMonitor posts; yields its port and the bodies."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port, bodies
        finally:
            server.shutdown()
            thread.join()


class Found:
    """What the tasks of a cluster have returned and written."""

    def __init__(self, cluster: Cluster) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="raydist-test-callbacks-"))
        for way in WAYS:
            (self.folder / way).mkdir()
        with http_server() as (port, self.posts):
            calls: dict[str, tuple[str, dict[str, Any]]] = {}
            for way in WAYS:
                given = {"way": way, "folder": str(self.folder / way), "port": port}
                calls[f"writes, {way}"] = (f"{FUNCTIONS}:writes", given)
            calls["decides"] = (f"{FUNCTIONS}:decides", {"way": "ctx"})
            backup = {"folder": str(self.folder / "unused")}
            calls["beside"] = (f"{FUNCTIONS}:backup_beside_raydist", backup)
            if cluster.workers > 1:
                calls["ends alone"] = (f"{FUNCTIONS}:ends_alone", {})
                calls["backed up"] = (f"{FUNCTIONS}:backed_up", {"folder": str(self.folder / "backup")})
                calls["rates differ"] = (f"{FUNCTIONS}:rates_differ", {})
            self.tasks: dict[str, list[TaskProcess]] = run_in_turn(
                calls, cluster, timeout_s=800, job_options={"export": False}
            )


@functools.cache
def run(cluster: Cluster) -> Found:
    return Found(cluster)


def alone(cluster: Cluster) -> Found:
    return run(Cluster(keras=cluster.keras))


def test_metrics_are_read_for_callbacks_that_look_at_the_logs_of_batches(keras: str) -> None:
    [task] = run_in_turn({"read": (f"{FUNCTIONS}:read_logs", {})}, Cluster(keras=keras))["read"]
    found = {name for name, is_read in task.values.items() if is_read}
    assert found == {"best of batches", "stops", "lambda, reads", "method"}


@pytest.mark.parametrize("cluster", WORKERS, ids=str)
class TestTwoWorkers:
    @pytest.mark.parametrize("way", WAYS)
    def test_files_are_those_of_one_device(self, cluster: Cluster, way: str) -> None:
        found, expected = run(cluster), alone(cluster)
        assert files_in(found.folder / way) == files_in(expected.folder / way)
        assert len((found.folder / way / "lines.txt").read_text().splitlines()) == EPOCHS
        [one] = expected.tasks[f"writes, {way}"]
        for task in found.tasks[f"writes, {way}"]:
            np.testing.assert_allclose(task.arrays["weights"], one.arrays["weights"], atol=1e-5)
            assert len(task.arrays["logged"]) == EPOCHS
            np.testing.assert_allclose(task.arrays["logged"], one.arrays["losses"], rtol=1e-4)
            assert task.values["named as before"]
            if task.name != "worker/0":  # which may look before the other one has removed its own
                assert task.values["scratch"] == []

    def test_remote_monitor_is_told_once(self, cluster: Cluster) -> None:
        assert len(run(cluster).posts) == len(alone(cluster).posts) == len(WAYS) * EPOCHS

    def test_rates_and_the_end_are_those_of_one_device(self, cluster: Cluster) -> None:
        [one] = alone(cluster).tasks["decides"]
        assert len(set(one.arrays["rates"])) > 2
        assert one.values["epochs"] < 30
        for task in run(cluster).tasks["decides"]:
            np.testing.assert_array_equal(task.arrays["rates"], one.arrays["rates"])
            assert task.values["epochs"] == one.values["epochs"]
            np.testing.assert_allclose(task.arrays["weights"], one.arrays["weights"], atol=1e-5)

    def test_backup_is_restored_in_all_workers(self, cluster: Cluster) -> None:
        for task in run(cluster).tasks["backed up"]:
            assert task.values["epochs"] == [2, 3]
            np.testing.assert_allclose(task.arrays["resumed"], task.arrays["whole"], atol=1e-6)
            told = task.values["told"]
            assert told.startswith(
                "UnsupportedError: BackupAndRestore has other files to restore in worker/1"
            )

    def test_backup_is_left_out_where_raydist_restores(self, cluster: Cluster) -> None:
        [one] = alone(cluster).tasks["beside"]
        for task in run(cluster).tasks["beside"]:
            np.testing.assert_allclose(task.arrays["weights"], one.arrays["weights"], atol=1e-5)
            assert any(note.startswith("BackupAndRestore is left out") for note in task.values["notes"])
            assert not task.values["wrote"]

    def test_all_workers_end_where_one_ends(self, cluster: Cluster) -> None:
        first, *others = run(cluster).tasks["ends alone"]
        assert first.values["steps"] == {"batch": 6, "epoch": 8}
        assert first.values["nan epochs"] == 1
        for task in others:
            assert task.values["steps"] == first.values["steps"]
            assert task.values["nan epochs"] == 1
            for name in ("weights batch", "weights epoch"):
                np.testing.assert_array_equal(task.arrays[name], first.arrays[name])
        assert any(
            "worker/1 alone ended the training after epoch 2" in note for note in first.values["notes"]
        )

    def test_rates_that_differ_are_told_at_the_epochs_end(self, cluster: Cluster) -> None:
        for task in run(cluster).tasks["rates differ"]:
            assert task.values["told"].startswith(
                "UnsupportedError: after epoch 1 the workers have different learning rates (worker/0 0.1, "
                "worker/1 0.01)"
            )


def files_in(folder: Path) -> list[str]:
    """Returns the names of files; of event files without the numbers that tell writers apart."""
    found = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    return sorted(f"{Path(name).parent}/events" if "tfevents" in name else name for name in found)


def opened() -> Callable[..., Any]:
    with open(__file__) as lines:
        return lambda epoch, logs: lines.write(f"{epoch} {math.sqrt(logs['loss'])}")


class Box:
    """An object of a class that nothing is known of."""


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (opened(), False),
        (print, False),
        (functools.partial(print, 1), False),
        ([].append, False),
        (functools.partial(print, np.zeros(3)), False),
        (functools.partial(print, Box()), True),
        (lambda epoch, logs: (lambda: pytest.approx(logs))(), True),
        (Box().__init__, True),
        (lambda epoch, logs: globals(), True),
    ],
    ids=["file", "print", "partial", "list", "array", "object", "module", "bound", "globals"],
)
def test_function_may_reach_a_model(function: Callable[..., Any], expected: bool) -> None:
    assert may_reach_model(function) == expected
