"""`raydist diff` on runs whose code was kept: which files differ, and how."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from raydist.runtime.task.code_archive import pack
from raydist.storage.run_folder import RunFolder
from raydist.storage.run_record import RunRecordStore
from raydist.storage.run_storage import open_run
from tests.cli.conftest import Run
from tests.support.records import make_record

BEFORE = {
    "job.py": b"epochs = 3\nrate = 0.1\n",
    "old.py": b"pass\n",
    "same.py": b"pass\n",
    "data.bin": b"\0\1",
    "end.py": b"x",
}
AFTER = {
    "job.py": b"epochs = 4\nrate = 0.1",
    "new/\x1b[2J.py": b"pass\n",
    "same.py": b"pass\n",
    "data.bin": b"\0",
    "end.py": b"x\n",
}


def keep(name: str, files: dict[str, bytes], tmp_path: Path, **more: Any) -> None:
    folder = tmp_path / name
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    run, packed = open_run("raydist_runs", run=name), pack(folder)
    code = {"digest": hashlib.sha256(packed).hexdigest(), "num_bytes": len(packed)}
    code |= {"file": RunFolder(run, resume=False).keep_code(packed), **more}
    RunRecordStore(run).replace(make_record(run, state="SUCCEEDED", code=code))


def test_text_of_the_files_that_differ_is_shown(raydist: Run, tmp_path: Path) -> None:
    keep("a", BEFORE, tmp_path)
    keep("b", AFTER, tmp_path)
    told = json.loads(raydist("diff", "a", "b", "--json")[1])
    files = {one["name"]: one["diff"] for one in told["files"]}
    assert files["job.py"].splitlines() == [
        *("--- a/job.py", "+++ b/job.py", "@@ -1,2 +1,2 @@"),
        *("-epochs = 3", "+epochs = 4", " rate = 0.1"),
    ]
    assert files["old.py"].splitlines()[-1] == "-pass"
    assert files["new/\x1b[2J.py"].splitlines()[-1] == "+pass"
    assert (files["data.bin"], files.keys() - BEFORE.keys() - AFTER.keys(), "same.py" in files) == (
        *(None, set()),
        False,
    )
    out = raydist("diff", "a", "b")[1]
    assert "\nend.py differs in the ends of its lines only\n" in out
    assert "\ndata.bin differs; it is not text, or larger than 256 KiB\n" in out
    assert "\n-epochs = 3\n+epochs = 4\n rate = 0.1\n" in out
    assert "\n+++ b/new/\\x1b[2J.py\n" in out


def test_file_that_is_not_kept_is_named(raydist: Run, tmp_path: Path) -> None:
    keep("a", {"job.py": b"pass\n"}, tmp_path, digest="a" * 64, omitted=[".env"])
    keep("b", {"job.py": b"pass\n"}, tmp_path, digest="b" * 64, omitted=[".env"])
    out = raydist("diff", "a", "b")[1]
    assert out.endswith("\nnote: the code differs in files that are not kept: .env\n")


@pytest.mark.parametrize(
    ("file", "reason"),
    [(None, "run b keeps no copy of its code"), ("code/" + "c" * 64 + ".zip", "is missing")],
    ids=["none", "lost"],
)
def test_run_without_a_copy_has_digests_alone(
    raydist: Run, tmp_path: Path, file: str | None, reason: str
) -> None:
    keep("a", BEFORE, tmp_path)
    keep("b", AFTER, tmp_path, file=file)
    code, out, _ = raydist("diff", "a", "b")
    note = out.splitlines()[-1]
    assert (code, note.startswith("note: only digests of the code can be compared: ")) == (0, True)
    assert reason in note
