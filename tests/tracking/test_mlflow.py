"""What a run has in MLflow: read back from a real server with MLflow's own client."""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from raydist import api
from raydist.errors import MistakeError, SpecError
from raydist.outcome.result import TaskRecord
from raydist.outcome.status import RunState, Scope, TaskState
from raydist.spec.tasks import TaskId
from raydist.storage.provenance import CodeRecord
from raydist.storage.run_record import RunRecord
from raydist.storage.run_storage import RunStorage, open_run
from raydist.tracking.mlflow_client import check_tracking_uri, metric_name
from raydist.tracking.mlflow_tracker import MlflowTracker, params_of, tags_of
from tests.conftest import WaitUntil
from tests.support.faulty_http import Fault, FaultyProxy, faulty_proxy
from tests.support.metric_rows import read_rows, row, store_rows
from tests.support.processes import Cluster, run_function


def is_installed(distribution: str) -> bool:
    try:
        return bool(metadata.version(distribution))
    except metadata.PackageNotFoundError:
        return False


JOB = """
def train(ctx):
    if ctx.params.get("fails"):
        ctx.report({"loss": 1.0}, step=1)
        if ctx.is_chief:  # the values of a task that is stopped because of another may be lost
            raise ValueError("as asked")
        return
    ctx.report({"loss": 0.5}, step=2)
    ctx.report({"loss": 0.25}, step=3)
"""


# Its client alone comes with raydist[mlflow]; the server's packages take 240 MB.
needs_server = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not is_installed("mlflow"), reason="needs an MLflow server: pip install 'mlflow>=3,<4'"
    ),
    pytest.mark.filterwarnings("default"),  # of MLflow's own modules, while they are imported
]


@pytest.fixture
def storage(tmp_path: Path) -> RunStorage:
    return open_run(str(tmp_path / "runs"), run="first")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("mlflow")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--backend-store-uri", f"sqlite:///{folder}/m.db", "--workers", "1"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    environ = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(command, env=environ, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + 400
        while not _answers(f"http://127.0.0.1:{port}/health"):
            assert process.poll() is None, (folder / "log.txt").read_text()
            assert time.monotonic() < deadline, (folder / "log.txt").read_text()
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.fixture
def proxy(server: str) -> Iterator[FaultyProxy]:
    with faulty_proxy(server) as found:
        yield found


def make_record(state: RunState = RunState.RUNNING, **fields: Any) -> RunRecord:
    facts: dict[str, Any] = {
        "run": "first",
        "state": state,
        "storage": "/runs/first",
        "strategy": "mirrored",
        "attempts": 1,
        "steps": 7,
        "tasks": (TaskRecord(task=TaskId.parse("worker/0"), state=TaskState.RUNNING),),
        "spec": {"params": {"epochs": 3, "optimizer": {"name": "adam", "rate": 0.1}, "api_key": "secret"}},
        "code": CodeRecord(digest="d" * 64, num_bytes=1, commit="c" * 40, branch="main", dirty=True),
    }
    return RunRecord(**{**facts, **fields})


def make_tracker(uri: str, storage: RunStorage, *, end_timeout_s: float = 120.0) -> MlflowTracker:
    return MlflowTracker(uri, storage, job="cifar.py:train", every_s=0.2, end_timeout_s=end_timeout_s)


def raydist(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a command on a Ray of its own."""
    command = [str(Path(sys.executable).with_name("raydist")), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def runs_at(server: str, experiment: str = "cifar.py:train") -> list[Any]:
    """Returns all runs of the experiment, the newest first."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=server)
    found = client.get_experiment_by_name(experiment)
    return [] if found is None else list(client.search_runs([found.experiment_id]))


def history(server: str, run_id: str, name: str) -> list[tuple[int, float, int]]:
    from mlflow import MlflowClient

    found = MlflowClient(tracking_uri=server).get_metric_history(run_id, name)
    return sorted((one.step, one.value, one.timestamp) for one in found)


def test_params_are_flat_texts_without_secrets() -> None:
    told = {"epochs": "3", "optimizer.name": "adam", "optimizer.rate": "0.1", "api_key": "***"}
    assert params_of(make_record()) == told


def test_tags_say_where_the_run_is_kept(storage: RunStorage) -> None:
    tags = tags_of(make_record(checkpoint="s3://key:secret@bucket/c"), storage, job="cifar.py:train")
    assert tags["raydist.run"] == "first"
    assert tags["raydist.storage"] == storage.uri("first")
    assert tags["raydist.metrics"] == storage.uri("first/metrics")
    assert tags["raydist.checkpoint"] == "s3://***@bucket/c"
    assert tags["mlflow.source.git.commit"] == "c" * 40
    assert tags["raydist.code.dirty"] == "true"
    assert "raydist.export" not in tags
    assert "raydist.error" not in tags


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("val_loss", "val_loss"),
        ("evaluator/loss", "evaluator/loss"),
        ("top-5 accuracy (%)", "top-5 accuracy ___"),
        ("a//b", "a__b"),
        ("/a", "_a"),
        ("../a", "___a"),
        ("verlust_größe", "verlust_gr__e"),
    ],
)
def test_names_are_those_that_mlflow_takes(name: str, taken: str) -> None:
    assert metric_name(name) == taken


def test_what_is_no_uri_is_refused_and_not_repeated() -> None:
    with pytest.raises(SpecError, match="mlflow is not the URI of a tracking server") as caught:
        api.run("job.py", mlflow="user:password@host")
    assert "password" not in str(caught.value)


@pytest.mark.skipif(is_installed("mlflow-skinny"), reason="MLflow's client is installed here")
def test_client_that_is_not_installed_is_a_mistake() -> None:
    with pytest.raises(MistakeError, match=r"pip install 'raydist\[mlflow\]'"):
        check_tracking_uri("http://127.0.0.1:1")


@pytest.mark.skipif(not is_installed("mlflow-skinny"), reason="needs MLflow's client: raydist[mlflow]")
@pytest.mark.filterwarnings("default")  # of MLflow's own modules, while they are imported
class TestUris:
    @pytest.mark.parametrize(
        ("uri", "reason"),
        [
            ("nosuch://user:pass-word@host/x", "'nosuch://\\*\\*\\*@host/x', .*: it knows file, "),
            ("file:///nowhere/mlruns", "'file:///nowhere/mlruns', .*MLFLOW_ALLOW_FILE_STORE=true"),
        ],
    )
    def test_uri_that_mlflow_does_not_take_is_a_mistake_before_the_run(
        self, tmp_path: Path, uri: str, reason: str
    ) -> None:
        (tmp_path / "job.py").write_text(JOB)
        with pytest.raises(MistakeError, match=reason) as caught:
            api.run(f"{tmp_path}/job.py:train", mlflow=uri, storage=str(tmp_path / "runs"), address="local")
        assert "pass-word" not in str(caught.value)
        assert not (tmp_path / "runs").exists()

    @pytest.mark.parametrize("uri", ["http://127.0.0.1:1", "databricks"])
    def test_server_is_not_asked_before_the_run(self, uri: str) -> None:
        check_tracking_uri(uri)

    def test_end_does_not_wait_for_a_server_that_takes_nothing(self, storage: RunStorage) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts, and never answers
            uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
            # Waiting for longer would exceed the time limit of the test.
            tracker = MlflowTracker(uri, storage, job="j", end_timeout_s=3600.0, silence_s=0.5)
            tracker.update(make_record(RunState.SUCCEEDED))
            sentence = tracker.finish()
        assert sentence is not None
        assert f"MLflow at {uri} lacks all of the run: it has not answered yet" in sentence


class TestServer:
    pytestmark = needs_server

    def test_run_has_params_values_tags_and_its_end(self, server: str, storage: RunStorage) -> None:
        tracker = make_tracker(server, storage)
        tracker.update(make_record())
        store_rows(
            storage,
            [
                row(step=1, value=0.5, wall_time=1000.25),
                row(step=2, value=0.25, wall_time=1001.0),
                row(step=2, value=math.nan, wall_time=1001.0, name="norm (L2)"),
                row(step=1, value=0.9, wall_time=1002.0, task="evaluator/0"),
            ],
        )
        tracker.update(make_record(RunState.SUCCEEDED, steps=8))
        assert tracker.finish() is None
        assert tracker.notes() == ()
        run = runs_at(server)[0]
        assert (run.info.run_name, run.info.status) == ("first", "FINISHED")
        assert run.data.params["optimizer.name"] == "adam"
        assert run.data.params["api_key"] == "***"
        assert run.data.tags["raydist.storage"] == storage.uri("first")
        assert (run.data.tags["raydist.state"], run.data.tags["raydist.steps"]) == ("SUCCEEDED", "8")
        assert history(server, run.info.run_id, "loss") == [(1, 0.5, 1_000_250), (2, 0.25, 1_001_000)]
        assert history(server, run.info.run_id, "evaluator/loss") == [(1, 0.9, 1_002_000)]
        assert math.isnan(run.data.metrics["norm _L2_"])

    def test_submit_and_resume_of_a_real_run_are_one_run(self, server: str, tmp_path: Path) -> None:
        (tmp_path / "job.py").write_text(JOB)
        runs = ("--storage", str(tmp_path / "runs"))
        submit = (
            "job.py:train",
            "--address",
            "local",
            "--name",
            "real",
            "-p",
            "fails=true",
            "--mlflow",
            server,
            "--workers",
            "2",
        )
        assert raydist(tmp_path, "submit", *submit, "--max-failures", "0", *runs).returncode == 1
        resumed = raydist(tmp_path, "resume", "real", "-p", "fails=false", "--json", *runs)
        assert resumed.returncode == 0, resumed.stderr
        rows = read_rows(open_run(str(tmp_path / "runs"), run="real"))
        stored = sorted((row.step, row.value) for row in rows if row.scope is Scope.GLOBAL)
        assert stored == [(1, 1.0), (2, 0.5), (3, 0.25)]
        (run,) = runs_at(server, experiment="job.py:train")
        assert (run.info.run_name, run.info.status) == ("real", "FINISHED")
        assert run.data.tags["raydist.storage"] == str(tmp_path / "runs" / "real")
        values = history(server, run.info.run_id, "loss")
        assert [(step, value) for step, value, _ in values] == stored

    def test_resumed_run_goes_on_in_the_same_run(self, server: str, storage: RunStorage) -> None:
        store_rows(storage, [row(step=1, value=0.5, wall_time=1000.0)])
        before = make_tracker(server, storage)
        before.update(make_record(RunState.FAILED))
        assert before.finish() is None
        (first, *others) = runs_at(server)
        assert first.info.status == "FAILED"
        store_rows(storage, [row(step=2, value=0.25, wall_time=1001.0, attempt=1)])
        params = {"epochs": 4, "optimizer": {"name": "adam", "rate": 0.1}, "api_key": "secret", "new": 1}
        resumed = make_tracker(server, storage)
        resumed.update(make_record(RunState.CANCELLED, attempts=2, spec={"params": params}))
        assert resumed.finish() is None
        (same, *still) = runs_at(server)
        assert (same.info.run_id, len(still)) == (first.info.run_id, len(others))
        assert same.info.status == "KILLED"
        assert history(server, same.info.run_id, "loss") == [(1, 0.5, 1_000_000), (2, 0.25, 1_001_000)]
        assert (same.data.params["epochs"], same.data.tags["raydist.param.epochs"]) == ("3", "4")
        assert same.data.params["new"] == "1"
        (note,) = resumed.notes()
        assert "first values of the params epochs" in note

    def test_values_that_an_outage_kept_back_are_sent_later(
        self, server: str, proxy: FaultyProxy, storage: RunStorage, wait_until: WaitUntil
    ) -> None:
        proxy.choose = lambda request: Fault.DROPPED
        tracker = make_tracker(proxy.endpoint, storage)
        tracker.update(make_record())
        wait_until(tracker.notes, timeout_s=120)
        (note,) = tracker.notes()
        assert "the training continues" in note
        store_rows(storage, [row(step=1, value=0.5, wall_time=1000.0)])
        proxy.choose = lambda request: None
        tracker.update(make_record(RunState.SUCCEEDED))
        assert tracker.finish() is None
        assert tracker.notes() == (note,)
        assert history(server, runs_at(server)[0].info.run_id, "loss") == [(1, 0.5, 1_000_000)]

    def test_server_that_stays_away_is_stated_without_credentials(self, storage: RunStorage) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))  # bound, and nobody accepts
            address = f"127.0.0.1:{probe.getsockname()[1]}"
            tracker = make_tracker(f"http://user:pass-word@{address}", storage, end_timeout_s=3.0)
            tracker.update(make_record(RunState.SUCCEEDED))
            began_s = time.monotonic()
            sentence = tracker.finish()
            assert time.monotonic() - began_s < 30
        assert sentence is not None
        assert f"MLflow at http://***@{address} lacks all of the run" in sentence
        assert not [one for one in (sentence, *tracker.notes()) if "pass-word" in one]

    def test_deleted_run_is_replaced_and_has_all_values(self, server: str, storage: RunStorage) -> None:
        from mlflow import MlflowClient

        store_rows(storage, [row(step=1, value=0.5, wall_time=1000.0)])
        for _ in range(2):
            tracker = make_tracker(server, storage)
            tracker.update(make_record(RunState.SUCCEEDED))
            assert tracker.finish() is None
            newest = runs_at(server)[0].info.run_id
            assert history(server, newest, "loss") == [(1, 0.5, 1_000_000)]
            MlflowClient(tracking_uri=server).delete_run(newest)
        assert "lacks the one before" in tracker.notes()[0]


@pytest.mark.skipif(
    not is_installed("mlflow-skinny"), reason="needs MLflow's client: pip install mlflow-skinny"
)
def test_autologging_in_a_job_makes_one_run_of_the_chiefs(tmp_path: Path) -> None:
    cluster = Cluster(strategy="multi_worker_mirrored", workers=2)
    target = "tests.support.callback_functions:autologged"
    chief, other = run_function(target, cluster, tracking_uri=tmp_path.as_uri())
    assert chief.values["run"] is not None
    assert other.values["run"] is None
