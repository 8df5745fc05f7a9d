"""`raydist reproduce` and `download RUN code`, on kept runs: what is printed runs what the run had."""

from __future__ import annotations

import io
import json
import shlex
import zipfile
from pathlib import Path
from typing import Any

import pytest

from raydist import api
from raydist.cli import main
from raydist.cli.job_options import given_options
from raydist.planning.describe import describe_job
from raydist.runtime.task.code_archive import pack
from raydist.spec.params import ParamTexts
from raydist.storage.run_folder import RunFolder
from raydist.storage.run_record import RunRecordStore
from raydist.storage.run_storage import RunStorage, open_run
from tests.support.records import make_record

JOB = """
import pathlib, raydist

pathlib.Path("executed").touch()

PARAMS = {"epochs": 3, "word": "a", "shape": None, "api_key": ""}

@raydist.job(workers=3, timeout="2h", keep=None, params=PARAMS, label_selector={"zone": "a"})
def train(ctx): ...
"""
OPTIONS: dict[str, Any] = {
    **{"workers": 1, "timeout": None, "keep": 3, "seed": 7, "export": False},
    **{"env": {"OPEN": "a b"}, "runtime_env": {"pip": ["einops"]}},
    **{"resources": {"worker": {"memory": "1MiB", "resources": {"ssd": 0.5}}}, "memory_retry": "1.5x"},
    "label_selector": {},
}
PARAMS = {"epochs": 5, "word": "it's", "shape": ["x", 1], "api_key": "hush"}


@pytest.fixture
def kept(tmp_path: Path) -> RunStorage:
    """A run with its code, whose own folder is gone."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "job.py").write_text(JOB)
    job = api.plan(str(folder / "job.py"), params=PARAMS, address="local", **OPTIONS).job
    run = open_run(str(tmp_path / "runs"), run="first")
    file = RunFolder(run, resume=False).keep_code(pack(folder))
    (folder / "job.py").unlink()
    code = {"digest": "d" * 64, "num_bytes": 9, "file": file, "dirty": True, "omitted": [".env"]}
    versions = {"python": "2.7.1", "tensorflow": "1.15.0", "some-package": "1.0"}
    store(run, spec=describe_job(job), code=code, versions=versions)
    return run


def store(run: RunStorage, **facts: Any) -> None:
    RunRecordStore(run).replace(make_record(run, **{"state": "SUCCEEDED", **facts}))


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code = main.run([*arguments, "--json"])
    out = capsys.readouterr().out
    return {**json.loads(out), "code": code}


def test_printed_commands_ask_for_what_the_run_had(
    kept: RunStorage, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "executed").unlink()  # by the plan of the run itself
    storage = str(tmp_path / "runs")
    download, submit = told(capsys, "reproduce", "first", "--storage", storage)["commands"]
    assert main.run(shlex.split(download)[1:]) == 0
    assert (tmp_path / "first-code/job.py").read_text() == JOB
    assert not (tmp_path / "executed").exists()  # the copy may be anybody's
    capsys.readouterr()
    planned = told(capsys, "plan", *shlex.split(submit)[2:])
    assert planned["code"] == 0
    assert planned["params"] == {**PARAMS, "api_key": ""}
    words = shlex.split(submit)
    assert [words[words.index(each) + 1] for each in ("--workers", "--timeout", "--seed")] == [
        "1",
        "none",
        "7",
    ]
    assert "--no-export" in words
    assert "--max-failures" in words  # only a run of the file would tell that it is not asked for


def test_printed_command_leaves_out_what_literals_in_the_source_ask_for(
    kept: RunStorage, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "literal").mkdir()
    (tmp_path / "literal" / "job.py").write_text(JOB.replace("params=PARAMS", "params={'epochs': 3}"))
    file = RunFolder(kept, resume=False).keep_code(pack(tmp_path / "literal"))
    spec = json.loads(kept.read_text(kept.record))["spec"]
    store(
        kept, spec=spec, code={"digest": "d" * 64, "num_bytes": 9, "file": file, "dirty": True, "omitted": []}
    )
    _, submit = told(capsys, "reproduce", "first", "--storage", str(tmp_path / "runs"))["commands"]
    assert "--max-failures" not in submit
    assert "--workers 1" in submit


def test_line_break_in_a_record_stays_in_its_comment(
    kept: RunStorage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "runs/first/run.json"
    record = json.loads(path.read_text())
    record["code"]["omitted"] = ["a\ntouch b\rc"]
    path.write_text(json.dumps(record))
    assert main.run(["reproduce", "first", "--storage", str(tmp_path / "runs")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith(("#", "raydist ")) for line in lines)
    assert any("a touch b c" in line for line in lines)


def test_options_of_the_printed_command_are_those_of_the_run(
    kept: RunStorage, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them, also where the run had unset what its job sets."""
    monkeypatch.chdir(tmp_path)
    download, submit = told(capsys, "reproduce", "first", "--storage", str(tmp_path / "runs"))["commands"]
    assert main.run(shlex.split(download)[1:]) == 0
    command = main.cli.get_command(None, "submit")  # type: ignore[arg-type]
    parsed = command.make_context("submit", shlex.split(submit)[2:]).params  # type: ignore[union-attr]
    options = given_options(parsed)
    texts = ParamTexts.parse(parsed["param_texts"])
    job = api.plan(parsed["job"], params=texts, **{**options, "address": "local"}).job
    was = json.loads(kept.read_text(kept.record))["spec"]
    different = {
        name for name, value in json.loads(json.dumps(describe_job(job))).items() if was[name] != value
    }
    assert different == {"name", "params", "working_dir", "storage"}  # the secret is no longer in params


def test_text_that_may_be_read_as_a_number_is_told(
    kept: RunStorage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = json.loads(kept.read_text(kept.record))
    spec = {**record["spec"], "params": {"shape": "1", "word": "a b"}}
    store(kept, spec=spec, code=record["code"], versions=record["versions"])
    notes = told(capsys, "reproduce", "first", "--storage", str(tmp_path / "runs"))["notes"]
    assert [note for note in notes if note.startswith("-p shape may be read as a number")]


def test_differences_are_told(kept: RunStorage, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notes = told(capsys, "reproduce", "first", "--storage", str(tmp_path / "runs"))["notes"]
    assert notes[0] == "secrets are not kept; give api_key with -p"
    assert notes[1] == "the copy of the code is without what .gitignore or --env-file names: .env"
    assert "python 2.7.1 (here 3." in notes[2]
    assert "tensorflow 1.15.0 (here 2." in notes[2]
    assert notes[3].startswith("1 other packages")


def test_copy_that_is_damaged_is_storage_error(
    kept: RunStorage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [file] = kept.list_files(kept.kept_codes)
    kept.write_bytes(file.key, b"PK damaged")
    for command in (["reproduce", "first"], ["download", "first", "code", str(tmp_path / "out")]):
        assert main.run([*command, "--storage", str(tmp_path / "runs")]) == 4
        assert "is damaged: its content does not have the digest" in capsys.readouterr().err
    kept.delete(file.key)
    assert main.run(["reproduce", "first", "--storage", str(tmp_path / "runs")]) == 4
    assert "is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"code": None}, "keeps no copy of its code: it is of an older raydist"),
        ({"datasets": ["train"]}, "was given the datasets train, which are not kept"),
        ({"spec": {"entry_point": {"file": None, "module": None, "function": None}}}, "kept nowhere"),
        (
            {
                "spec": {
                    "entry_point": {"file": "a.py", "module": None, "function": None},
                    "args": ["--key=***"],
                }
            },
            "secret",
        ),
    ],
    ids=["older", "datasets", "pickled", "secret-args"],
)
def test_run_that_cannot_be_repeated_is_exit_2(
    kept: RunStorage, tmp_path: Path, capsys: pytest.CaptureFixture[str], facts: dict[str, Any], sentence: str
) -> None:
    whole = json.loads(kept.read_text(kept.record))
    store(kept, **{"spec": whole["spec"], "code": whole["code"], **facts})
    assert main.run(["reproduce", "first", "--storage", str(tmp_path / "runs")]) == 2
    assert sentence in capsys.readouterr().err


def test_folder_that_is_not_empty_is_left_alone(
    kept: RunStorage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["reproduce", "first", "--run", "--to", str(tmp_path), "--storage", str(tmp_path / "runs")]
    assert main.run(arguments) == 2
    assert "is not an empty folder" in capsys.readouterr().err


def test_code_with_a_name_outside_of_the_folder_is_damaged(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A copy that somebody else made may name any path."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("../outside.py", "")
    run = open_run(str(tmp_path / "runs"), run="first")
    file = RunFolder(run, resume=False).keep_code(buffer.getvalue())
    store(run, code={"digest": "d", "num_bytes": 1, "file": file})
    out = tmp_path / "deep/out"
    assert main.run(["download", "first", "code", str(out), "--storage", str(tmp_path / "runs")]) == 4
    assert "is damaged: '../outside.py' leads out of the folder" in capfd.readouterr().err
    assert not (tmp_path / "deep/outside.py").exists()
