from __future__ import annotations

import json
import shlex
import sys
from typing import Any

import click
import pytest

from raydist.storage.layout import INDEX
from raydist.storage.run_names import run_names
from raydist.storage.run_record import RunRecordStore
from raydist.storage.run_storage import RunStorage
from tests.cli.conftest import ON_EACH_STORAGE, Run

Runs = dict[str, RunStorage]


def uri(runs: Runs) -> str:
    return runs["live"].uri()


@ON_EACH_STORAGE
def test_delete_removes_all_of_the_runs_and_tells_what_it_frees(raydist: Run, four_runs: Runs) -> None:
    files = four_runs["finished"].list_files("finished")
    code, out, _ = raydist(
        "delete", "finished", "damaged", "fini", "--storage", uri(four_runs), "--yes", "--json"
    )
    told = json.loads(out)
    assert code == 0
    assert [(one["run"], one["state"]) for one in told["deleted"]] == [
        ("finished", "SUCCEEDED"),
        ("damaged", "damaged"),
    ]
    assert told["deleted"][0]["num_files"] == len(files)
    assert told["deleted"][0]["bytes"] == sum(file.size_bytes for file in files)
    assert run_names(four_runs["live"]) == ["failed", "live"]
    assert four_runs["live"].list_files("finished") == []
    assert sorted(name.rpartition("-")[2] for name in four_runs["live"].list_names(INDEX)) == [
        "failed",
        "live",
    ]


@pytest.mark.parametrize("others", [[], ["finished"]], ids=["alone", "with-another"])
def test_run_that_goes_on_is_refused_and_nothing_is_deleted(
    raydist: Run, four_runs: Runs, others: list[str]
) -> None:
    code, out, err = raydist("delete", *others, "live", "--storage", uri(four_runs), "--yes")
    assert (code, out) == (2, "")
    assert "run live is still running" in err
    assert f"raydist stop live --storage {shlex.quote(uri(four_runs))}" in err
    assert len(run_names(four_runs["live"])) == 4


def test_older_than_takes_what_has_ended_and_names_what_it_keeps(raydist: Run, four_runs: Runs) -> None:
    code, out, _ = raydist("delete", "--older-than", "0.5h", "--storage", uri(four_runs), "--yes")
    assert code == 0
    assert "deleted 2 runs, " in out
    assert "kept damaged: " in out
    assert run_names(four_runs["live"]) == ["damaged", "live"]
    code, out, _ = raydist("delete", "--older-than", "30d", "--storage", uri(four_runs))
    assert (code, out.splitlines()[-1]) == (0, "nothing to delete")


def test_without_a_terminal_yes_has_to_be_given(raydist: Run, four_runs: Runs) -> None:
    code, out, err = raydist("delete", "failed", "--storage", uri(four_runs))
    assert code == 2
    assert "failed  FAILED" in out
    assert "1 run would be deleted; nobody can be asked here: give --yes" in err
    assert "failed" in run_names(four_runs["live"])


@pytest.mark.parametrize("answer", [True, False], ids=["yes", "no"])
def test_person_is_asked(
    raydist: Run, four_runs: Runs, monkeypatch: pytest.MonkeyPatch, answer: bool
) -> None:
    asked: list[str] = []

    def confirm(text: str, **_: Any) -> bool:
        asked.append(text)
        if not answer:
            raise click.Abort
        return True

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(click, "confirm", confirm)
    code, _, _ = raydist("delete", "failed", "--storage", uri(four_runs))
    assert asked[0].startswith("Delete 1 run and free ")
    assert (code == 0, "failed" in run_names(four_runs["live"])) == (answer, not answer)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        pytest.param([], "Name runs, or give --older-than", id="nothing"),
        pytest.param(["failed", "--older-than", "1d"], "Name runs, or give --older-than", id="both"),
        pytest.param(["filed"], "did you mean failed", id="near"),
        pytest.param(["fi", "f"], "2 runs in", id="ambiguous"),
        pytest.param(["--older-than", "old"], "--older-than is 'old'; write an age", id="no-duration"),
        pytest.param(["--older-than", "30"], "--older-than is '30', without a unit", id="no-unit"),
    ],
)
def test_mistake_deletes_nothing(raydist: Run, four_runs: Runs, arguments: list[str], sentence: str) -> None:
    code, _, err = raydist("delete", *arguments, "--storage", uri(four_runs), "--yes")
    assert code == 2
    assert sentence in err
    assert len(run_names(four_runs["live"])) == 4


def test_removal_that_was_cut_off_can_be_repeated(raydist: Run, four_runs: Runs) -> None:
    storage = four_runs["failed"]
    storage.delete(storage.checkpoints)
    storage.delete(storage.events)
    assert raydist("delete", "failed", "--storage", uri(four_runs), "--yes")[0] == 0
    assert storage.list_files("failed") == []


def test_run_that_is_resumed_while_it_is_asked_stays(raydist: Run, four_runs: Runs) -> None:
    """The state is looked at again right before the removal."""
    from raydist.errors import MistakeError
    from raydist.storage.run_record import read_record
    from raydist.storage.run_removal import remove_run

    record = read_record(four_runs["live"])
    with pytest.raises(MistakeError, match="is still running"):
        remove_run(four_runs["live"], record)
    assert RunRecordStore(four_runs["live"]).exists()
