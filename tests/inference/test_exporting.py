"""What an export needs, without TensorFlow."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from raydist.errors import MistakeError, StorageError, UnsupportedError
from raydist.inference import exporting
from raydist.inference.formats import NAMES, SAVED_MODEL
from raydist.inference.served_model import identity, in_order
from raydist.storage.filesystem import Storage
from raydist.storage.run_record import RunRecordStore
from raydist.storage.run_storage import open_run
from tests.support.disks import mounted_disk
from tests.support.records import make_record


def test_missing_packages_are_named_with_the_command_that_installs_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exporting, "NEEDS", {"onnx": ("a_missing_module", "json")})
    exporting.check_packages(["keras", "saved_model"])
    with pytest.raises(
        UnsupportedError, match=r"onnx needs a_missing_module, .*; run pip install 'raydist\[onnx\]'$"
    ):
        exporting.check_packages(["keras", "onnx"])


@pytest.mark.parametrize(
    ("state", "remedy"),
    [
        ("SUCCEEDED", "unless --no-export is given"),
        ("RUNNING", "the run is still RUNNING"),
        ("CANCELLED", "the run is CANCELLED: raydist resume r --storage {storage}"),
    ],
)
def test_run_without_an_export_says_how_to_get_one(state: str, remedy: str, tmp_path: Path) -> None:
    run = open_run(str(tmp_path), run="r")
    RunRecordStore(run).replace(make_record(run, state=state))
    with pytest.raises(
        MistakeError, match=f"run r has no exported model; .*{remedy.format(storage=tmp_path)}$"
    ):
        identity(run)


def made_model(folder: Path) -> Path:
    """Returns a folder in which the exporter has written a SavedModel."""
    model = folder / "made" / NAMES[SAVED_MODEL]
    (model / "variables").mkdir(parents=True)
    (model / "saved_model.pb").write_bytes(b"graph")
    (model / "variables" / "data").write_bytes(b"weights" * 10_000)
    return folder / "made"


def test_each_saved_model_has_the_next_number_also_of_several_at_once(tmp_path: Path) -> None:
    made, out = made_model(tmp_path), Storage.open(str(tmp_path / "out"))
    with ThreadPoolExecutor(4) as threads:
        uris = list(threads.map(lambda _: exporting._store_saved_model(made, out), range(8)))
    assert sorted(uris) == [str(tmp_path / "out" / str(number)) for number in range(1, 9)]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        str(number) for number in range(1, 9)
    ]
    assert {(Path(uri) / "variables/data").stat().st_size for uri in uris} == {70_000}


def test_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    made = made_model(tmp_path)
    with mounted_disk(tmp_path / "out", size="32k") as out:
        with pytest.raises(
            StorageError, match=r"No space left on device; free some space there, or choose another place$"
        ):
            exporting._store_saved_model(made, Storage.open(str(out)))
        assert list(out.iterdir()) == []


def test_outputs_are_in_the_model_s_order() -> None:
    names = [f"output_{number}" for number in range(12)]
    assert in_order(sorted(names)) == names
