"""What a host reports about itself at once, without a Ray."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

import pytest

from raydist.runtime.checkup.probe import glance, versions_here
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


def test_disk_that_cannot_be_written_is_told(proof: StorageProof, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc")
    [disk] = glance(proof).disks
    assert (disk.path, bool(disk.error)) == ("/proc", True)
