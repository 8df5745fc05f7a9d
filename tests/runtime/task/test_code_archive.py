from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import pytest

from raydist.errors import MistakeError
from raydist.runtime.task import code_archive
from raydist.runtime.task.code_archive import pack, unpack


def write(folder: Path, *names: str, text: str = "x = 1\n") -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def names_in(data: bytes) -> list[str]:
    return zipfile.ZipFile(io.BytesIO(data)).namelist()


def test_files_arrive_as_they_were(tmp_path: Path) -> None:
    source, target = tmp_path / "a folder's name", tmp_path / "target"
    write(source, "job.py", "package/__init__.py", "data/schéma.txt")
    write(source, "tool.sh", text="#!/bin/sh\n")
    (source / "tool.sh").chmod(0o755)
    unpack(pack(source), target)

    found = {str(path.relative_to(target)): path.read_text() for path in target.rglob("*") if path.is_file()}
    assert found == {
        "job.py": "x = 1\n",
        "package/__init__.py": "x = 1\n",
        "data/schéma.txt": "x = 1\n",
        "tool.sh": "#!/bin/sh\n",
    }
    assert os.access(target / "tool.sh", os.X_OK)
    assert not os.access(target / "job.py", os.X_OK)


def test_archive_with_much_data_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "job.py", "src/model.py")
    assert code_archive.size_note(pack(tmp_path)) is None
    monkeypatch.setattr(code_archive, "NOTED_BYTES", 40_000)
    (tmp_path / "data").mkdir()
    for name in ("data/a.npz", "data/b.npz", "weights.bin"):
        (tmp_path / name).write_bytes(os.urandom(20_000))
    code = pack(tmp_path)
    assert code_archive.size_note(code) == (
        f"the code that travels to each host takes {len(code) / 1000:.1f} kB, of which "
        "data/ 40.0 kB, weights.bin 20.0 kB; "
        "list what is not code in .raydistignore"
    )


def test_equal_code_is_equal_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(tmp_path / name, "b.py", "a.py", "c/d.py")
    os.utime(tmp_path / "two" / "a.py", (0, 0))
    assert pack(tmp_path / "one") == pack(tmp_path / "two")


def test_what_is_no_code_stays_behind(tmp_path: Path) -> None:
    write(tmp_path, "job.py", ".git/HEAD", "__pycache__/job.pyc", "old.pyc", "raydist_runs/r/x")
    write(tmp_path, "elsewhere/run-1/run.json", "elsewhere/run-1/big", "env/pyvenv.cfg", "env/lib/x.py")
    write(tmp_path, "package/.mypy_cache/x", "package/module.py", ".hidden")
    run = "cifar-20261121-093012-1f3a"
    write(tmp_path, f"{run}.html", f"{run}-code/job.py", f"package/{run}-export/model.keras")
    assert names_in(pack(tmp_path)) == [".hidden", "job.py", "package/module.py"]


@pytest.mark.parametrize(
    ("patterns", "left"),
    [
        ("*.ckpt", ["data/keep.txt", "data/sub/keep.txt", "keep.txt"]),
        ("data/", ["a.ckpt", "keep.txt"]),
        ("/keep.txt", ["a.ckpt", "data/b.ckpt", "data/keep.txt", "data/sub/keep.txt"]),
        ("data/sub", ["a.ckpt", "data/b.ckpt", "data/keep.txt", "keep.txt"]),
        ("*.ckpt\n!a.ckpt", ["a.ckpt", "data/keep.txt", "data/sub/keep.txt", "keep.txt"]),
        (
            "# comment\n\nkeep.txt/",
            ["a.ckpt", "data/b.ckpt", "data/keep.txt", "data/sub/keep.txt", "keep.txt"],
        ),
    ],
)
def test_ignore_file_names_more(tmp_path: Path, patterns: str, left: list[str]) -> None:
    write(tmp_path, "a.ckpt", "keep.txt", "data/b.ckpt", "data/keep.txt", "data/sub/keep.txt")
    (tmp_path / ".raydistignore").write_text(patterns)
    assert names_in(pack(tmp_path)) == [".raydistignore", *left]


@pytest.mark.parametrize(
    ("patterns", "left"),
    [
        pytest.param(
            "src/*.ckpt", ["src/deep/b.ckpt", "src/deep/end/c", "src/keep"], id="star-stops-at-slash"
        ),
        pytest.param("src/**/end", ["src/a.ckpt", "src/deep/b.ckpt", "src/keep"], id="two-stars"),
        pytest.param(
            "src/**/keep", ["src/a.ckpt", "src/deep/b.ckpt", "src/deep/end/c"], id="no-folder-between"
        ),
        pytest.param(
            "**/src/a.ckpt", ["src/deep/b.ckpt", "src/deep/end/c", "src/keep"], id="no-folder-above"
        ),
        pytest.param("**/deep", ["src/a.ckpt", "src/keep"], id="any-depth"),
        pytest.param("src/**\n!src/keep", ["src/keep"], id="content-but-one"),
        pytest.param("src/\n!src/keep", [], id="ignored-folder-stays-ignored"),
        pytest.param("*.ckpt\ndeep/\n!/src", ["src/keep"], id="kept-folder-with-ignored-files"),
        pytest.param("src/[!ad]*\n*.ckpt ", ["src/deep/end/c"], id="class-and-trailing-space"),
    ],
)
def test_ignore_file_means_what_git_makes_of_it(tmp_path: Path, patterns: str, left: list[str]) -> None:
    write(tmp_path, "src/a.ckpt", "src/keep", "src/deep/b.ckpt", "src/deep/end/c")
    (tmp_path / ".raydistignore").write_text(patterns)
    assert names_in(pack(tmp_path)) == [".raydistignore", *left]


def test_ill_pattern_is_a_mistake_that_names_the_line(tmp_path: Path) -> None:
    write(tmp_path, "job.py")
    (tmp_path / ".raydistignore").write_text("*.ckpt\n!\n")
    with pytest.raises(MistakeError, match=r"\.raydistignore, line 2: '!' is not a \.gitignore pattern; fix"):
        pack(tmp_path)


def test_link_to_code_is_followed_and_a_loop_ends(tmp_path: Path) -> None:
    write(tmp_path / "library", "module.py")
    write(tmp_path / "job", "job.py")
    (tmp_path / "job" / "library").symlink_to(tmp_path / "library")
    (tmp_path / "job" / "loop").symlink_to(tmp_path / "job")
    (tmp_path / "job" / "broken").symlink_to(tmp_path / "nowhere")
    assert names_in(pack(tmp_path / "job")) == ["job.py", "library/module.py"]


def test_too_large_a_folder_names_what_makes_it_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_archive, "MAX_BYTES", 3 * 2**20)
    write(tmp_path, "job.py")
    write(tmp_path, "images/one", "images/two", text="x" * 2**21)
    with pytest.raises(MistakeError, match=r"more than 3 MB, most of it in images \(4 MB\)") as caught:
        pack(tmp_path)
    assert f"{tmp_path}/.raydistignore" in str(caught.value)


def test_missing_folder_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(MistakeError, match="which is not a folder"):
        pack(tmp_path / "nowhere")
