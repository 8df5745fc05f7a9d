"""What a host reports about itself at once, without a Ray."""

from __future__ import annotations

import dataclasses
import resource
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from raydist.runtime.doctor.probe import glance, versions_here
from raydist.storage.proof import StorageProof


@pytest.fixture
def proof(tmp_path: Path) -> StorageProof:
    return StorageProof.leave(storage_uri=str(tmp_path), run="r")


def test_host_that_sees_the_storage_reports_no_error(proof: StorageProof) -> None:
    facts = glance(proof)
    [disk] = facts.disks
    assert (facts.storage_error, disk.error) == (None, None)
    assert facts.versions == versions_here()


def test_host_with_another_folder_in_the_storages_place_says_so(proof: StorageProof) -> None:
    error = glance(dataclasses.replace(proof, token="another")).storage_error
    assert "does not see the storage that the driver writes to" in str(error)


@pytest.fixture
def full_disk() -> Iterator[None]:
    """Makes every write to a file fail in this process, root's too."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)  # Python ignores SIGXFSZ
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("is_known", [False, True])
def test_disk_that_cannot_be_written_is_told(
    is_known: bool, proof: StorageProof, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full_disk: None
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path) if is_known else None)
    [disk] = glance(proof).disks
    assert (disk.path, disk.error) == (str(tmp_path), "File too large")


def test_host_without_the_folder_for_temporary_files_names_the_next_one(
    proof: StorageProof, monkeypatch: pytest.MonkeyPatch, full_disk: None
) -> None:
    monkeypatch.setenv("TMPDIR", "/nowhere")
    monkeypatch.setattr(tempfile, "tempdir", None)
    [disk] = glance(proof).disks
    assert (disk.path, disk.error) == ("/tmp", "File too large")
