"""`raydist reproduce --verify` refuses what it cannot repeat before it starts anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raydist.cli import main
from raydist.storage.filesystem import uri_below
from raydist.storage.run_record import RunRecordStore
from raydist.storage.run_storage import open_run
from tests.support.records import make_record

SPEC = {
    "entry_point": {"file": "job.py", "module": None, "function": "train"},
    **{"workers": "2", "virtual_replicas": 4},
}


def store(folder: Path, **facts: Any) -> None:
    run = open_run(str(folder), run="small")
    RunRecordStore(run).replace(make_record(run, state="SUCCEEDED", spec={**SPEC, **facts}))


@pytest.mark.parametrize(
    ("facts", "arguments", "sentence"),
    [
        ({"virtual_replicas": None}, ["--verify", "1"], "train it with --virtual-replicas K"),
        ({"reduce_order": "any"}, ["--verify", "1"], "had reduce_order any, which this raydist no longer"),
        ({}, ["--verify", "5"], "use --verify 4 or fewer"),
        ({}, ["--verify", "0"], "--verify"),
        ({}, ["--verify", "1", "--run"], "--run does not go together with --verify"),
        ({}, ["--address", "auto"], "--address goes only together with --verify"),
        ({"working_dir": "code"}, ["--verify", "1"], "keeps no copy of its code"),
        ({}, ["--verify", "1", "--from-step", "7"], "has no checkpoint of step 7"),
    ],
    ids=[
        "no-virtual-replicas",
        "any-order",
        "too-many",
        "none",
        "with-run",
        "address-alone",
        "no-code",
        "no-checkpoint",
    ],
)
def test_what_cannot_be_verified_is_exit_2(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    facts: dict[str, Any],
    arguments: list[str],
    sentence: str,
) -> None:
    store(tmp_path, **facts)
    assert main.run(["reproduce", "small", "--storage", str(tmp_path), *arguments]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "small/verify").exists()


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("runs/", "runs/a/b"),
        ("/a?b", "/a?b/a/b"),
        ("file:///runs", "file:///runs/a/b"),
        ("s3://key:secret@bucket/runs?region=x", "s3://key:secret@bucket/runs/a/b?region=x"),
    ],
)
def test_storage_below_another_has_its_query(uri: str, expected: str) -> None:
    assert uri_below(uri, "a/b") == expected
