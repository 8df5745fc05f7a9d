"""What a chief under ParameterServer has its workers read: never unpickled unless the chief left it."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from raydist.errors import ClusterError
from tests.support.late import LateModule
from tests.support.parcels import FolderParcels

sources = LateModule("raydist.training.parameter_server.sources")


class Recipe:
    """Stands for Batches, of which only this is asked here."""

    def without_maps(self) -> dict[str, int]:
        return {"seed": 3}


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, executed: Path) -> None:
        self._executed = executed

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self._executed),)


def published(tmp_path: Path) -> tuple[FolderParcels, Path]:
    parcels = FolderParcels(tmp_path / "parcels")
    sources.SharedSources(parcels).publish(Recipe())  # type: ignore[arg-type]
    [file] = parcels.folder.iterdir()
    return parcels, file


@pytest.mark.slow
def test_worker_reads_what_the_chief_published(tmp_path: Path) -> None:
    parcels, file = published(tmp_path)
    assert sources.load(parcels, file.name) == {"seed": 3}


@pytest.mark.slow
def test_content_that_was_replaced_is_not_unpickled(tmp_path: Path) -> None:
    parcels, file = published(tmp_path)
    executed = tmp_path / "executed"
    content = pickle.dumps(Evil(executed))
    file.write_bytes(content)
    with pytest.raises(ClusterError, match="came back changed"):
        sources.load(parcels, file.name)
    assert not executed.exists()
    pickle.loads(content)
    assert executed.exists()  # it would have been
