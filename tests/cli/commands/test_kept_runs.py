"""describe, diff, wait, download, and each reading command on a live, finished, failed and damaged run."""

from __future__ import annotations

import json
import math
import threading
import time
from pathlib import Path

import pytest

from raydist.spec.params import keep_params
from raydist.storage.run_record import RunRecordStore
from raydist.storage.run_storage import RunStorage, open_run
from tests.cli.conftest import ON_EACH_STORAGE, Run
from tests.support.records import make_record

Runs = dict[str, RunStorage]


def uri(runs: Runs) -> str:
    return runs["live"].uri()


READING = {
    "status": ["status"],
    "status --all": ["status", "--all"],
    "metrics": ["metrics"],
    "status --checkpoints": ["status", "--checkpoints"],
    "diff": ["diff", "finished"],
}
# They show what lies beside run.json, also where that is damaged.
WITHOUT_RECORD = ("metrics", "status --checkpoints")


@pytest.mark.parametrize("more", [[], ["--json"]], ids=["text", "json"])
@pytest.mark.parametrize("command", READING)
def test_command_takes_a_run_of_every_state(
    raydist: Run, four_runs: Runs, command: str, more: list[str]
) -> None:
    for run in ("live", "finished", "failed"):
        code, out, err = raydist(*READING[command], run, "--storage", uri(four_runs), *more)
        assert (code, err) == (0, ""), run
        assert run in out
        assert not more or json.loads(out)
    code, out, err = raydist(*READING[command], "damaged", "--storage", uri(four_runs), *more)
    assert "damaged/run.json is damaged" in err
    assert code == (0 if command in WITHOUT_RECORD else 4)
    if more:
        told = json.loads(out)
        assert told["run"] == "damaged" if code == 0 else told["error"]["type"] == "StorageError"


@ON_EACH_STORAGE
def test_reading_commands_take_each_storage(raydist: Run, four_runs: Runs) -> None:
    for name, command in READING.items():
        assert raydist(*command, "failed", "--storage", uri(four_runs))[0] == 0
        damaged, _, err = raydist(*command, "damaged", "--storage", uri(four_runs))
        assert (damaged, "run.json is damaged" in err) == (0 if name in WITHOUT_RECORD else 4, True)


def test_describe_shows_options_checkpoints_and_sizes(raydist: Run, four_runs: Runs) -> None:
    out = raydist("status", "--all", "fin", "--storage", uri(four_runs))[1]
    assert "restart: " in out
    for fact in ("  seed     0", "  workers  2", "\ncheckpoints\n", "\nstored\n"):
        assert fact in out
    told = json.loads(raydist("status", "--all", "fin", "--storage", uri(four_runs), "--json")[1])
    assert [one["step"] for one in told["checkpoints"]] == [20, 10]
    assert told["stored"]["export"] == {"num_files": 2, "bytes": 10}
    assert told["spec"]["params"] == {"epochs": 3}


def test_diff_shows_what_differs_and_with_all_the_rest(raydist: Run, four_runs: Runs) -> None:
    out = raydist("diff", "finished", "failed", "--storage", uri(four_runs))[1]
    rows = {tuple(line.split()[:2]): line.split()[2:] for line in out.splitlines()}
    assert rows["section", "name"] == ["finished", "failed"]
    assert rows["params", "epochs"] == ["3", "4"]
    assert rows["params", "rate"] == ["-", "0.5"]
    assert rows["results", "state"] == ["SUCCEEDED", "FAILED"]
    assert rows["metrics", "loss"] == ["0.25", "0.5"]
    assert ("options", "workers") not in rows
    everything = raydist("diff", "finished", "failed", "--all", "--storage", uri(four_runs))[1]
    assert any(line.split() == ["options", "workers", "2", "2"] for line in everything.splitlines())
    assert "do not differ" in raydist("diff", "failed", "failed", "--storage", uri(four_runs))[1]


def test_infinite_param_is_shown_and_differs_from_its_text(raydist: Run, tmp_path: Path) -> None:
    for name, params in (("a", {"margin": math.inf}), ("b", {"margin": math.inf}), ("c", {"margin": ".inf"})):
        storage = open_run(str(tmp_path / "runs"), run=name)
        RunRecordStore(storage).replace(make_record(storage, state="FAILED", spec=keep_params(params)))
    place = ("--storage", str(tmp_path / "runs"))
    assert json.loads(raydist("diff", "a", "b", *place, "--json")[1])["differences"] == []
    assert [line.split() for line in raydist("diff", "a", "c", *place)[1].splitlines()[1:]] == [
        ["params", "margin", ".inf", '".inf"']
    ]
    assert "margin=.inf\n" in raydist("status", "--all", "a", *place)[1]
    told = json.loads(raydist("status", "--all", "a", *place, "--json")[1])
    assert told["spec"] == {"params": {"margin": ".inf"}, "param_types": {"number": [["margin"]]}}


@pytest.mark.parametrize(("run", "expected"), [("finished", 0), ("failed", 1)])
def test_wait_ends_with_the_exit_code_of_the_run(
    raydist: Run, four_runs: Runs, run: str, expected: int
) -> None:
    code, out, _ = raydist("wait", run, "--storage", uri(four_runs))
    assert code == expected
    assert out.startswith(f"run {run}: {'SUCCEEDED after 20' if expected == 0 else 'FAILED after 7'} steps")
    code, out, _ = raydist("wait", run, "--storage", uri(four_runs), "--json")
    assert (code, json.loads(out)["run"]) == (expected, run)


def test_wait_waits_for_the_end_and_no_longer_than_asked(raydist: Run, four_runs: Runs) -> None:
    storage = four_runs["live"]
    code, _, err = raydist("wait", "live", "--storage", uri(four_runs), "--timeout", "0.5")
    assert code == 3
    assert "run live did not end within 0.5 s; process " in err

    def end() -> None:
        time.sleep(1)
        RunRecordStore(storage).replace(make_record(storage, state="CANCELLED", steps=9))

    thread = threading.Thread(target=end)
    thread.start()
    code, out, _ = raydist("wait", "live", "--storage", uri(four_runs), "--timeout", "60s")
    thread.join()
    assert (code, out) == (130, "run live: CANCELLED after 9 steps\n")


@ON_EACH_STORAGE
def test_checkpoint_is_downloaded_whole(raydist: Run, four_runs: Runs, tmp_path: Path) -> None:
    arguments = ("download", "finished", "checkpoint", "--storage", uri(four_runs))
    code, out, _ = raydist(*arguments, str(tmp_path / "newest"))
    assert code == 0
    assert out.startswith("checkpoint of step 20 of run finished: 2 files, 102 B, in ")
    assert (tmp_path / "newest/v.npz").read_bytes() == b"x" * 100
    told = json.loads(raydist(*arguments, str(tmp_path / "old"), "--step", "10", "--json")[1])
    assert (told["step"], told["num_files"], told["bytes"]) == (10, 2, 102)


def test_damaged_checkpoint_is_passed_over_and_named(raydist: Run, four_runs: Runs, tmp_path: Path) -> None:
    storage = four_runs["failed"]
    storage.write_bytes(f"{storage.checkpoint(step=20, attempt=0)}/v.npz", b"y" * 100)
    arguments = ("download", "failed", "checkpoint", str(tmp_path / "copy"), "--storage", uri(four_runs))
    assert raydist(*arguments, "--step", "20")[0] == 4
    assert not list((tmp_path / "copy").glob("*"))
    code, out, _ = raydist(*arguments)
    assert code == 0
    assert "note: " in out
    assert "step-20-a0 is damaged, and was passed over" in out
    assert "checkpoint of step 10" in out


@ON_EACH_STORAGE
def test_export_is_downloaded_with_its_folders(raydist: Run, four_runs: Runs, tmp_path: Path) -> None:
    code, out, _ = raydist("download", "live", "export", str(tmp_path / "model"), "--storage", uri(four_runs))
    assert code == 0
    assert "2 files, 10 B" in out
    assert (tmp_path / "model/saved_model/variables/index").read_bytes() == b"index"
    assert (tmp_path / "model/model.keras").read_bytes() == b"keras"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        pytest.param(["finished", "checkpoint", "new", "--step", "7"], "it has 20, 10", id="step"),
        pytest.param(["finished", "export", "new", "--step", "10"], "a run has one export", id="export-step"),
        pytest.param(["finished", "export", "."], "is not an empty folder", id="not-empty"),
        pytest.param(["finished", "model", "new"], "'model' is not one of", id="what"),
        pytest.param(["finnished", "export", "new"], "did you mean finished?", id="near"),
    ],
)
def test_download_that_cannot_be_is_exit_2(
    raydist: Run, four_runs: Runs, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    (tmp_path / "mine").write_text("")
    code, out, err = raydist("download", *arguments, "--storage", uri(four_runs))
    assert (code, out) == (2, "")
    assert sentence in err
    assert not (tmp_path / "new").exists()


@ON_EACH_STORAGE
def test_output_is_downloaded_into_a_folder_of_its_name(
    raydist: Run, four_runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = four_runs["finished"]
    storage.write_text(f"{storage.output}/log.csv", "epoch")
    storage.write_text(f"{storage.working_files}/model.keras", "model")
    monkeypatch.chdir(tmp_path)
    code, out, _ = raydist("download", "finished", "output", "--storage", uri(four_runs))
    assert (code, out) == (0, "output of run finished: 2 files, 10 B, in finished-output\n")
    copy = tmp_path / "finished-output"
    assert (copy / "log.csv").read_text() == "epoch"
    assert (copy / "working_dir" / "model.keras").read_text() == "model"


def test_run_without_an_export_or_checkpoint_says_so(raydist: Run, four_runs: Runs, tmp_path: Path) -> None:
    storage = four_runs["finished"]
    storage.delete(storage.export)
    storage.delete(storage.checkpoints)
    for what, sentence in (
        ("export", "has no exported model"),
        ("checkpoint", "has no committed checkpoint"),
        ("output", "has no output"),
    ):
        code, _, err = raydist(
            "download", "finished", what, str(tmp_path / "new"), "--storage", uri(four_runs)
        )
        assert code == 2
        assert sentence in err
