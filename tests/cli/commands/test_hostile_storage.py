"""Whoever can write on a storage cannot make a command read or write outside of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raydist.storage.checkpoint_marker import StoredFile, encode_marker
from raydist.storage.filesystem import Storage
from raydist.storage.layout import RunLayout
from tests.cli.conftest import Run

pytestmark = pytest.mark.usefixtures("stored_run")

RUN = "digits-1"  # as `stored_run` has it
SECRET = "what only the victim may read"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "victim"
    (folder / "0" / "worker-0").mkdir(parents=True)
    for name in ("0/worker-0/000000.log", "key", "state.json", "model.keras", "run.json"):
        (folder / name).write_text(SECRET)
    return folder


def files_in(folder: Path) -> dict[str, str]:
    return {str(path): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_links_of_a_run_lead_nowhere(raydist: Run, outside: Path) -> None:
    run = Path("raydist_runs", RUN)
    before = files_in(outside)
    for folder in ("logs", "export", "checkpoints"):
        if (run / folder).exists():
            (run / folder).rename(run / f"{folder}-before")
        (run / folder).symlink_to(outside)
    (run / "linked.txt").symlink_to(outside / "key")
    for command in (
        ["logs", run.name],
        ["status", run.name, "--checkpoints"],
        ["download", run.name, "export", "copied"],
        ["download", run.name, "checkpoint", "copied-too"],
    ):
        code, out, err = raydist(*command)
        assert code in (2, 4), command
        assert SECRET not in out + err
        assert "leads out of" in err
    assert not files_in(Path("copied"))
    assert not files_in(Path("copied-too"))
    code, out, err = raydist("delete", run.name, "--yes")
    assert (code, err) == (0, "")
    assert not run.exists()
    assert files_in(outside) == before


def test_run_that_is_a_link_is_no_run(raydist: Run, outside: Path) -> None:
    record = Path("raydist_runs", RUN, "run.json").read_text()
    (outside / "run.json").write_text(record)
    Path("raydist_runs", "evil").symlink_to(outside)
    before = files_in(outside)
    out = raydist("list", "--json")[1]
    assert [run["run"] for run in json.loads(out)["runs"]] == [RUN]
    for command in (["delete", "evil", "--yes"], ["logs", "evil"], ["download", "evil", "export", "copied"]):
        code, _, err = raydist(*command)
        assert code in (2, 4), command
        assert "raydist_runs/evil" in err
        assert "leads out of" in err
    assert raydist("delete", "--older-than", "0.0001s", "--yes")[0] == 0
    assert files_in(outside) == before


def test_name_inside_of_a_record_is_not_used(raydist: Run, outside: Path) -> None:
    path = Path("raydist_runs", RUN, "run.json")
    record = json.loads(path.read_text())
    before = files_in(outside)
    path.write_text(json.dumps({**record, "run": "../victim", "updated_at_s": 1.0}))
    code, out, _ = raydist("delete", "--older-than", "1s", "--yes")
    assert (code, files_in(outside)) == (0, before)
    assert RUN in out
    assert not path.exists()


def test_code_of_a_record_is_not_looked_for_elsewhere(raydist: Run, outside: Path) -> None:
    path = Path("raydist_runs", RUN, "run.json")
    record = json.loads(path.read_text())
    code = {"digest": "d", "num_bytes": 1, "file": "../../victim/key"}
    path.write_text(json.dumps({**record, "code": code}))
    exit_code, out, err = raydist("download", RUN, "code", "copied")
    assert exit_code == 4
    assert SECRET not in out + err
    assert "victim" not in err


def test_names_in_a_commit_marker_stay_in_the_checkpoint(raydist: Run, outside: Path) -> None:
    layout = RunLayout(run=RUN)
    storage = Storage.open("raydist_runs")
    for name in ("../../../../victim/key", "/etc/hostname"):
        file = StoredFile(name=name, size_bytes=len(SECRET), crc32=0)
        marker = encode_marker(step=900, attempt=9, files=[file], info={})
        storage.write_bytes(layout.checkpoint_marker(step=900, attempt=9), marker)
        assert raydist("download", RUN, "checkpoint", "copied", "--step", "900")[0] == 2
        assert not Path("copied").exists()


@pytest.mark.parametrize("key", ["../x", "a/../../x", "..", "a/.."])
def test_key_that_leads_out_is_refused(tmp_path: Path, key: str) -> None:
    from raydist.errors import StorageError

    storage = Storage.open(str(tmp_path / "runs"))
    for use in (storage.read_bytes, storage.delete, storage.exists, storage.list_names, storage.local_path):
        with pytest.raises(StorageError, match="leads out of"):
            use(key)  # type: ignore[operator]
    with pytest.raises(StorageError, match="leads out of"):
        storage.write_bytes(key, b"x")
