from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from raydist.metrics.parquet import MetricsWriter
from raydist.spec.tasks import TaskId
from raydist.storage.run_record import RunRecordStore
from raydist.storage.run_storage import open_run
from raydist.storage.segments import EventWriter
from tests.cli.conftest import Run
from tests.support.metric_rows import row
from tests.support.records import make_record

pytestmark = pytest.mark.usefixtures("stored_run")

RESULT_KEYS = {
    *("run", "state", "strategy", "keras", "attempts", "steps", "metrics", "checkpoint", "storage"),
    *("tasks", "error", "notes", "timings"),
}


def test_status_json_has_the_keys_of_submit(raydist: Run) -> None:
    code, out, _ = raydist("status", "digits-1", "--json")
    printed = json.loads(out)
    assert code == 0
    assert set(printed) >= RESULT_KEYS
    assert not {"spec", "plan"} & set(printed)
    assert printed["steps"] == 20
    assert {"task", "state", "steps", "pid", "host"} <= set(printed["tasks"][1])


def test_status_shows_facts_tasks_and_notes(raydist: Run) -> None:
    code, out, _ = raydist("status", "digits-1")
    assert code == 0
    assert "state       SUCCEEDED" in out
    assert "loss 0.25  accuracy 0.875" in out
    assert "note: trained on digits" in out
    assert any(line.split()[:3] == ["worker/1", "FINISHED", "20"] for line in out.splitlines())


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        pytest.param(["status", "digits-2"], 2, "did you mean digits-1?", id="near-run"),
        pytest.param(["status", "../etc"], 2, "name is '../etc'", id="no-name"),
        pytest.param(["logs", "digits-1", "--task", "worker"], 2, "write TYPE/INDEX", id="no-task"),
        pytest.param(["logs", "digits-1", "--task", "ps/0"], 2, "no log of task ps/0", id="missing-task"),
        pytest.param(["logs", "digits-1", "--attempt", "7"], 2, "in attempt 7", id="missing-attempt"),
        pytest.param(["status", "--checkpoints", "nothing-like-it"], 2, "raydist list", id="far-run"),
        pytest.param(["list", "--storage", "ftp://host/runs"], 4, "ftp", id="no-storage"),
    ],
)
def test_mistake_is_one_sentence(raydist: Run, arguments: list[str], code: int, sentence: str) -> None:
    found_code, out, err = raydist(*arguments)
    assert (found_code, out) == (code, "")
    assert sentence in err
    assert err.count("\n") == 1


def test_damaged_record_is_a_storage_error(raydist: Run, tmp_path: Path) -> None:
    (tmp_path / "raydist_runs/digits-1/run.json").write_text("{")
    code, out, _ = raydist("status", "digits-1", "--json")
    assert code == 4
    assert json.loads(out)["error"]["type"] == "StorageError"


def test_list_json_names_the_runs(raydist: Run) -> None:
    code, out, _ = raydist("list", "--json")
    assert code == 0
    assert [run["run"] for run in json.loads(out)["runs"]] == ["digits-1"]


def test_list_of_an_empty_storage_says_so(raydist: Run, tmp_path: Path) -> None:
    other = tmp_path / "other"
    code, out, _ = raydist("list", "--storage", str(other))
    assert (code, out) == (0, f"no runs in {other}, which does not exist\n")
    other.mkdir()
    code, out, _ = raydist("list", "--storage", str(other))
    assert (code, out) == (0, f"no runs in {other}\n")


def test_damaged_metrics_file_is_left_out_and_named(raydist: Run, tmp_path: Path) -> None:
    _, whole, _ = raydist("metrics", "digits-1", "--format", "csv")
    [*_, last] = sorted((tmp_path / "raydist_runs/digits-1/metrics").glob("*.parquet"))
    last.write_bytes(b"no parquet")
    code, out, err = raydist("metrics", "digits-1", "--format", "csv")
    assert code == 0
    assert 1 < out.count("\n") <= whole.count("\n")
    assert err.startswith(f"left out: {last} is damaged: ")
    assert err.count("\n") == 1
    for file in last.parent.glob("*.parquet"):
        file.write_bytes(b"no parquet")
    code, out, err = raydist("metrics", "digits-1")
    assert (code, out) == (4, "")
    assert err.count("\n") == 1


def test_logs_show_the_last_attempt_of_every_task(raydist: Run) -> None:
    _, out, _ = raydist("logs", "digits-1")
    assert out.splitlines() == ["[worker/0] worker 0 attempt 1", "[worker/1] worker 1 attempt 1"]


def test_logs_of_one_task_are_its_bare_text(raydist: Run) -> None:
    assert raydist("logs", "digits-1", "--task", "worker/1", "--attempt", "0")[1] == "worker 1 attempt 0\n"


def test_logs_followed_end_with_the_run(raydist: Run) -> None:
    code, out, _ = raydist("logs", "digits-1", "--task", "worker/0", "-f")
    assert (code, out) == (0, "worker 0 attempt 1\n")


def test_logs_json_is_one_object(raydist: Run) -> None:
    printed = json.loads(raydist("logs", "digits-1", "--json")[1])
    assert printed["logs"][1] == {"attempt": 1, "task": "worker/1", "text": "worker 1 attempt 1\n"}


def test_checkpoints_are_listed_newest_first(raydist: Run, stored_run: dict[str, Any]) -> None:
    printed = json.loads(raydist("status", "--checkpoints", "digits-1", "--json", "--verify")[1])
    assert [(row["step"], row["epoch"], row["state"]) for row in printed["checkpoints"]] == [
        (20, 2, "whole"),
        (10, 1, "whole"),
    ]
    assert [row["digest"] for row in printed["checkpoints"]] == [None, None]  # of an older raydist


def test_damaged_checkpoint_is_named_and_the_exit_code_is_that_of_storage(
    raydist: Run, tmp_path: Path
) -> None:
    assert raydist("status", "--checkpoints", "digits-1", "--verify")[0] == 0
    (tmp_path / "raydist_runs/digits-1/checkpoints/step-20-a0/state.json").write_text("{}{}")
    code, out, _ = raydist("status", "--checkpoints", "digits-1", "--verify")
    assert code == 4
    assert "damaged" in out
    assert "state.json" in out


def test_metrics_of_a_later_attempt_win(raydist: Run) -> None:
    printed = json.loads(raydist("metrics", "digits-1", "--json")[1])
    assert printed["metrics"] == [
        {"step": 10, "epoch": 1, "task": "worker/0", "loss": 0.5},
        {"step": 20, "epoch": 2, "task": "worker/0", "loss": 0.25},
    ]


def test_metrics_as_csv_can_be_read_by_others(raydist: Run) -> None:
    _, out, _ = raydist("metrics", "digits-1", "--format", "csv")
    assert out.splitlines() == ["step,epoch,task,loss", "10,1,worker/0,0.5", "20,2,worker/0,0.25"]


@pytest.fixture
def other_run(tmp_path: Path) -> None:
    """A second run, which has reported another metric too."""
    storage = open_run(str(tmp_path / "raydist_runs"), run="digits-2")
    RunRecordStore(storage).replace(make_record(storage, state="RUNNING"))
    writer = MetricsWriter.open(storage, task=TaskId.parse("worker/0"), attempt=0)
    writer.append([row(step=10, epoch=1, value=0.125), row(step=10, epoch=1, value=0.75, name="auc")])
    writer.flush()


@pytest.mark.usefixtures("other_run")
def test_metrics_of_several_runs_have_their_names(raydist: Run) -> None:
    both = ("metrics", "digits-1", "digits-2", "digits-1")
    assert raydist(*both, "--format", "csv")[1].splitlines() == [
        "run,step,epoch,task,loss,auc",
        "digits-1,10,1,worker/0,0.5,",
        "digits-1,20,2,worker/0,0.25,",
        "digits-2,10,1,worker/0,0.125,0.75",
    ]
    assert raydist(*both)[1].splitlines()[-1].split() == ["digits-2", "10", "1", "worker/0", "0.125", "0.75"]
    printed = json.loads(raydist(*both, "--json")[1])["runs"]
    assert [(one["run"], len(one["metrics"])) for one in printed] == [("digits-1", 2), ("digits-2", 1)]
    drawn = raydist(*both, "--plot")[1]
    assert "loss of digits-1" in drawn
    assert "loss of digits-2" in drawn


def test_metrics_are_drawn(raydist: Run) -> None:
    code, out, _ = raydist("metrics", "digits-1", "--plot")
    assert code == 0
    assert "loss" in out
    assert "step" in out
    assert "\x1b" not in out


def test_drawn_metrics_say_where_another_training_begins(raydist: Run, tmp_path: Path) -> None:
    writer = EventWriter.open(open_run(str(tmp_path / "raydist_runs"), run="digits-1"))
    for number, step in ((1, 0), (2, 15)):
        writer.append({"event": "training", "at_s": 1.0, "kind": "fit", "number": number, "step": step})
    writer.flush()
    *chart, sentence = raydist("metrics", "digits-1", "--plot")[1].splitlines()
    assert sentence == "fit 2 begins after step 15"
    assert sum(line.count("│") > 2 for line in chart) > 2  # the frame, and a line inside it


@pytest.mark.parametrize("other", [["--json"], ["--format", "csv"]], ids=["json", "csv"])
def test_curves_are_not_for_programs(raydist: Run, other: list[str]) -> None:
    code, out, err = raydist("metrics", "digits-1", "--plot", *other)
    assert (code, out.count("Traceback")) == (2, 0)
    assert "give one of them" in err + out


def test_nan_is_shown_and_is_null_in_json(raydist: Run) -> None:
    assert "nan" in raydist("metrics", "digits-1", "--local")[1]
    printed = json.loads(raydist("metrics", "digits-1", "--local", "--format", "json")[1])
    assert printed["metrics"][0]["loss"] is None


@pytest.mark.parametrize("written", ["s3:/bucket/runs", "s3:bucket/runs"])
def test_address_of_a_storage_with_too_few_slashes_is_no_folder(
    written: str, raydist: Run, tmp_path: Path
) -> None:
    code, _, err = raydist("list", "--storage", written)
    assert code == 4
    assert "write s3://bucket/runs, or ./s3:" in err
    assert not (tmp_path / "s3:").exists()
