"""The copy of the code that stays on storage leaves out what .gitignore names, as git does."""

from __future__ import annotations

import io
import os
import subprocess
import zipfile
from pathlib import Path

from raydist.runtime.task.code_archive import ignored_by_git, omitted_from_copy, pack, unpack, without

FILES = {
    ".gitignore": "*.env\n/data/\n!keep.env\n[\nout/**\n",
    "job.py": "",
    "secret.env": "hush",
    "keep.env": "",
    "data/big.bin": "x",
    "data/deep/er.bin": "x",
    "src/data/code.py": "",
    "src/.gitignore": "local.py\n!secret.env\n",
    "src/local.py": "",
    "src/secret.env": "",
    "local.py": "",
    "excluded.txt": "",
}


def write(folder: Path) -> Path:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def names(code: bytes) -> set[str]:
    return set(zipfile.ZipFile(io.BytesIO(code)).namelist())


def test_copy_has_what_git_would_add(tmp_path: Path) -> None:
    folder = write(tmp_path)
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    (folder / ".git/info/exclude").write_text("excluded.txt\n")
    code = pack(folder)
    listed = subprocess.run(
        ["git", "-C", str(folder), "ls-files", "--others", "--exclude-standard"],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "HOME": str(tmp_path / "nobody")},
    ).stdout.splitlines()
    omitted = ignored_by_git(code, folder)
    assert omitted == ("data/", "excluded.txt", "secret.env", "src/local.py")
    assert names(without(code, omitted)) == set(listed)


def test_gitignore_above_the_working_directory_counts_up_to_the_repository(tmp_path: Path) -> None:
    folder = write(tmp_path / "repository/jobs")
    (tmp_path / "repository/.git").mkdir()
    (tmp_path / "repository/.gitignore").write_text("jobs/job.py\n")
    (tmp_path / ".gitignore").write_text("*\n")
    omitted = ignored_by_git(pack(folder), folder)
    assert "job.py" in omitted
    assert "local.py" not in omitted


def test_without_a_gitignore_the_copy_is_what_travelled(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("")
    code = pack(tmp_path)
    assert ignored_by_git(code, tmp_path) == ()
    assert without(code, ()) is code


def test_copy_is_without_the_file_of_variables(tmp_path: Path) -> None:
    folder = write(tmp_path / "jobs")
    code = pack(folder)
    omitted = omitted_from_copy(code, folder, env_file=str(folder / "src/../job.env"))
    assert set(omitted) == {*ignored_by_git(code, folder), "job.env"}
    for elsewhere in (None, str(tmp_path / "job.env")):
        assert omitted_from_copy(code, folder, env_file=elsewhere) == ignored_by_git(code, folder)


def test_stripped_copy_keeps_content_and_permissions(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("echo\n")
    (tmp_path / "job.sh").chmod(0o755)
    (tmp_path / "a.env").write_text("hush")
    unpack(without(pack(tmp_path), ["a.env"]), tmp_path / "out")
    assert (tmp_path / "out/job.sh").read_text() == "echo\n"
    assert os.access(tmp_path / "out/job.sh", os.X_OK)
    assert not (tmp_path / "out/a.env").exists()
