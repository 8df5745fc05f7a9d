from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from raydist.storage.filesystem import Storage
from raydist.storage.run_record import RunRecordStore
from raydist.storage.run_storage import open_run
from raydist.storage.studies import StudyStore
from tests.cli.conftest import ON_EACH_STORAGE, Run
from tests.support.records import make_record


@pytest.fixture
def runs(runs_uri: str) -> str:
    """A storage with a live, a finished, a failed and a damaged run, on a folder and on S3."""
    for created_at_s, name, facts in (
        (1.0, "digits-1", {"state": "SUCCEEDED", "best": {"name": "val_loss", "value": 0.03125, "step": 40}}),
        (2.0, "cifar-1", {"state": "FAILED", "timings": {"total": 3723.0}}),
        (3.0, "cifar-2", {"state": "RUNNING", "steps": 7}),
    ):
        storage = open_run(runs_uri, run=name)
        entry_point = {"file": f"jobs/{name[:-2]}.py", "module": None, "function": "train"}
        record = make_record(storage, **facts, spec={"entry_point": entry_point})
        now_s = created_at_s + record.timings.get("total", 0.0)
        RunRecordStore(storage, clock=lambda now_s=now_s: now_s).replace(record)
    open_run(runs_uri, run="torn").write_bytes("torn/run.json", b"{")
    return runs_uri


def listed(raydist: Run, runs: str, *arguments: str) -> list[str]:
    code, out, err = raydist("list", "--storage", runs, "--json", *arguments)
    assert (code, err) == (0, "")
    return [run["run"] for run in json.loads(out)["runs"]]


@ON_EACH_STORAGE
def test_list_shows_job_state_duration_and_best_metric_and_names_the_damaged_run(
    raydist: Run, runs: str
) -> None:
    code, out, _ = raydist("list", "--storage", runs)
    assert code == 0
    header, *rows = [line.split() for line in out.splitlines()]
    assert header == ["run", "state", "job", "strategy", "attempts", "steps", "best", "started", "duration"]
    assert [row[:3] for row in rows[:4]] == [
        ["cifar-2", "RUNNING", "jobs/cifar.py:train"],
        ["cifar-1", "FAILED", "jobs/cifar.py:train"],
        ["digits-1", "SUCCEEDED", "jobs/digits.py:train"],
        ["torn", "-", "-"],
    ]
    assert rows[1][-1] == "1:02:03"
    assert "val_loss 0.03125" in out.splitlines()[3]
    assert "torn/run.json is damaged" in out.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        pytest.param(["--state", "FAILED"], ["cifar-1", "torn"], id="state"),
        pytest.param(
            ["--state", "failed", "--state", "RUNNING"], ["cifar-2", "cifar-1", "torn"], id="states"
        ),
        pytest.param(["--job", "digits"], ["digits-1", "torn"], id="job"),
        pytest.param(["--job", "cifar.py"], ["cifar-2", "cifar-1", "torn"], id="file"),
        pytest.param(["--job", "jobs/*:train", "--limit", "2"], ["cifar-2", "cifar-1"], id="pattern"),
        pytest.param(["--limit", "1"], ["cifar-2"], id="limit"),
        pytest.param(["--job", "cifar", "--state", "SUCCEEDED"], ["torn"], id="nothing"),
    ],
)
def test_list_shows_what_is_asked_for(
    raydist: Run, runs: str, arguments: list[str], names: list[str]
) -> None:
    found = listed(raydist, runs, *arguments)
    assert [name for name in found if name != "torn"] == [name for name in names if name != "torn"]


def test_list_says_what_it_leaves_out(raydist: Run, runs: str) -> None:
    out = raydist("list", "--storage", runs, "--limit", "1")[1]
    assert out.splitlines()[-1] == "1 of 4 runs; --limit 0 shows all"
    told: dict[str, Any] = json.loads(raydist("list", "--storage", runs, "--limit", "1", "--json")[1])
    assert (told["num_known"], told["is_complete"]) == (4, False)


def test_list_of_runs_that_do_not_match_says_so(raydist: Run, runs: str) -> None:
    code, out, _ = raydist("list", "--storage", runs, "--state", "CANCELLED", "--job", "nothing")
    assert code == 0
    assert "torn" in out  # what it was cannot be told


@pytest.fixture
def tuned(tmp_path: Any) -> str:
    """A storage with two runs that differ in a param, one of them with a metric."""
    for created_at_s, name, params, metrics in (
        (1.0, "a", {"rate": 0.1}, {"accuracy": 0.75}),
        (2.0, "b", {"rate": 0.01, "depth": 3}, {}),
    ):
        storage = open_run(str(tmp_path / "tuned"), run=name)
        record = make_record(storage, state="RUNNING", spec={"params": params}, metrics=metrics)
        RunRecordStore(storage, clock=lambda now_s=created_at_s: now_s).replace(record)
    return str(tmp_path / "tuned")


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        pytest.param(
            ["--columns", "run,accuracy"], ["run  accuracy", "b           -", "a        0.75"], id="columns"
        ),
        pytest.param(
            ["--columns", "run", "--params"],
            ["run  rate  depth", "b    0.01      3", "a     0.1      -"],
            id="params",
        ),
    ],
)
def test_list_has_the_columns_that_are_asked_for(
    raydist: Run, tuned: str, arguments: list[str], lines: list[str]
) -> None:
    code, out, _ = raydist("list", "--storage", tuned, *arguments)
    assert (code, out.splitlines()) == (0, lines)


@pytest.fixture
def searched(tmp_path: Path) -> str:
    """A storage with the trials of a search by accuracy, and with a run that has more of it."""
    uri = str(tmp_path / "searched")
    for created_at_s, name, accuracy, study in (
        (1.0, "s-0", 0.5, "s"),
        (2.0, "s-1", 0.75, "s"),
        (3.0, "s-2", None, "s"),
        (4.0, "alone", 0.9, None),
    ):
        storage = open_run(uri, run=name)
        metrics = {"val_loss": 2.5} | ({} if accuracy is None else {"accuracy": accuracy})
        best = {"name": "val_loss", "value": 1.5, "step": 4}
        record = make_record(
            storage, state="SUCCEEDED", spec={"study": study}, metrics=metrics, best=best, steps=4
        )
        RunRecordStore(storage, clock=lambda now_s=created_at_s: now_s).replace(record)
    store = StudyStore(Storage.open(uri))
    store.begin("s", {"--metric": "accuracy", "--mode": "max"})
    store.keep_values("s", {"s-0": 0.875})
    return uri


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        pytest.param(["--sort", "accuracy"], ["alone  0.9", "s-1  0.75", "s-0  0.5", "s-2  -"], id="highest"),
        pytest.param(["--sort", "accuracy", "--limit", "1"], ["alone  0.9"], id="limit"),
        pytest.param(
            ["--sort", "accuracy", "--study", "s"], ["s-0  0.875", "s-1  0.75", "s-2  -"], id="study"
        ),
    ],
)
def test_list_is_sorted_by_a_metric_the_best_first(
    raydist: Run, searched: str, arguments: list[str], lines: list[str]
) -> None:
    code, out, _ = raydist("list", "--storage", searched, "--columns", "run", *arguments)
    assert (code, out.split("\n")[0].split()) == (0, ["run", "accuracy"])
    assert [line.split() for line in out.splitlines()[1:] if "--limit" not in line] == [
        line.split() for line in lines
    ]
    runs = json.loads(raydist("list", "--storage", searched, "--json", *arguments)[1])["runs"]
    assert [run["run"] for run in runs] == [line.split()[0] for line in lines]


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_metric_to_sort_by_that_no_run_has_is_exit_2(
    raydist: Run, searched: str, form: tuple[str, ...]
) -> None:
    code, _, err = raydist("list", "--storage", searched, "--sort", "acuracy", *form)
    assert (code, "no run that is listed has 'acuracy'; did you mean accuracy?" in err) == (2, True)


def test_trials_of_a_search_are_listed_with_the_best_values_of_its_metric(
    raydist: Run, searched: str
) -> None:
    out = raydist("list", "--storage", searched, "--columns", "run,best", "--study", "s")[1]
    assert [line.split() for line in out.splitlines()[1:]] == [
        ["s-2", "val_loss", "1.5"],
        ["s-1", "accuracy", "0.75"],
        ["s-0", "accuracy", "0.875"],
    ]


def test_column_that_no_run_has_is_exit_2(raydist: Run, tuned: str) -> None:
    code, _, err = raydist("list", "--storage", tuned, "--columns", "run,acuracy")
    assert (code, "no run that is listed has 'acuracy'; did you mean accuracy?" in err) == (2, True)


def test_json_has_params_and_metrics(raydist: Run, tuned: str) -> None:
    runs = json.loads(raydist("list", "--storage", tuned, "--json")[1])["runs"]
    assert [(run["params"], run["metrics"]) for run in runs] == [
        ({"rate": 0.01, "depth": 3}, {}),
        ({"rate": 0.1}, {"accuracy": 0.75}),
    ]


def test_run_whose_record_is_lost_is_listed_with_the_command_that_continues_it(
    raydist: Run, runs: str
) -> None:
    storage = open_run(runs, run="cifar-1")
    storage.write_bytes(storage.checkpoint_marker(step=7, attempt=0), b"{}")
    storage.delete(storage.record)
    _, out, _ = raydist("list", "--storage", runs)
    assert [line.split()[0] for line in out.splitlines()[1:5]] == ["cifar-2", "digits-1", "cifar-1", "torn"]
    for command in ("resume", "status"):
        code, _, err = raydist(command, "cifar-1", "--storage", runs)
        assert code == 2
        assert "cifar-1/run.json is missing" in err
        assert "`raydist submit JOB --name cifar-1 --resume`" in err
