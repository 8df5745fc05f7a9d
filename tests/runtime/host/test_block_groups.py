from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from raydist.runtime.host.scratch import Scratch, scratch_root, spread_subfolders


def attributes(folder: Path) -> str:
    """What e2fsprogs' own tool says, such as `-------------Te-------`."""
    told = subprocess.run(["lsattr", "-d", str(folder)], capture_output=True, text=True, check=True)
    return told.stdout.split()[0]


def file_system(folder: Path) -> str:
    told = subprocess.run(["stat", "-f", "-c", "%T", str(folder)], capture_output=True, text=True, check=True)
    return told.stdout.strip()


@pytest.fixture
def on_ext4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if shutil.which("lsattr") is None or file_system(tmp_path) != "ext2/ext3":
        pytest.skip("needs lsattr (e2fsprogs) and a temporary folder on ext4: others have no block groups")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_scratch_folders_of_tasks_are_spread_over_an_ext4_disk(on_ext4: Path) -> None:
    for name in "run-0-worker-0", "run-1-worker-0":
        Scratch.create(name).remove()
        assert "T" in attributes(scratch_root())
    assert "T" not in attributes(on_ext4)


def test_other_attributes_of_the_folder_stay(on_ext4: Path) -> None:
    subprocess.run(["chattr", "+Ad", str(on_ext4)], check=True)
    before = set(attributes(on_ext4))
    spread_subfolders(on_ext4)
    assert set(attributes(on_ext4)) == before | {"T"}


@pytest.mark.parametrize(
    "folder", ["/proc", "/dev/shm", "/no/such/folder"], ids=["no flags", "no such flag", "no folder"]
)
def test_a_folder_that_cannot_be_spread_is_no_error(folder: str) -> None:
    spread_subfolders(Path(folder))
