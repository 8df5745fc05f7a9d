"""What the tasks of a run find out once: the requests that they make together, and that they agree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raydist import data
from raydist.data import shared
from raydist.errors import DataError
from tests.support.object_store import s3_environ
from tests.support.parcels import FolderParcels
from tests.support.static_store import StaticStore, static_store

NUM_TASKS = 2

# A task: makes sources as its arguments say, and prints what it found.
TASK = """
import json, sys
from pathlib import Path
from raydist import data
from raydist.data import shared
from raydist.errors import DataError
from tests.support.parcels import FolderParcels

shared.set_parcels(FolderParcels(Path(sys.argv[1])))
try:
    source = getattr(data, sys.argv[2])("s3://bucket/data")
    print(json.dumps([source.fingerprint(), len(source.files), len(source)]))
except DataError as error:
    print(json.dumps(str(error)))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "store/bucket/data").mkdir(parents=True)
    return tmp_path / "store/bucket/data"


@pytest.fixture
def store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StaticStore]:
    with static_store(folder.parents[1]) as found:
        for name, value in s3_environ(found.endpoint).items():
            monkeypatch.setenv(name, value)
        yield found


def in_tasks(parcels: Path, source: str, *, num_tasks: int = NUM_TASKS) -> list[Any]:
    """Returns what each of some tasks of a run has found."""
    tasks = []
    for _ in range(num_tasks):
        command = [sys.executable, "-c", TASK, str(parcels), source]
        tasks.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ))
    return [json.loads(task.communicate(timeout=100)[0]) for task in tasks]


def write_images(folder: Path, count: int) -> None:
    for label in range(4):
        (folder / f"class{label}").mkdir()
    (folder / "class0/0.png").write_bytes(b"\x89PNG")
    for number in range(1, count):
        os.link(folder / "class0/0.png", folder / f"class{number % 4}/{number}.png")


def write_parquet(folder: Path, count: int) -> None:
    pq.write_table(pa.table({"n": np.arange(10)}), folder / "0.parquet", row_group_size=5)
    for number in range(1, count):
        os.link(folder / "0.parquet", folder / f"{number}.parquet")


def write_records(folder: Path, count: int) -> None:
    record = (3).to_bytes(8, "little") + bytes(4) + b"abc" + bytes(4)
    for number in range(count):
        (folder / f"{number}.tfrecord").write_bytes(record * 10)


def write_csv(folder: Path, count: int) -> None:
    for number in range(count):
        (folder / f"{number}.csv").write_text("n\n" + "1\n" * 10)


@pytest.mark.slow
def test_folder_of_3000_files_is_listed_by_one_task_a_thousand_at_a_time(
    store: StaticStore, folder: Path, tmp_path: Path
) -> None:
    """And none is asked for by itself. The HEAD asks whether the folder is a file."""
    write_images(folder, 3000)
    store.look_again()
    first, *others = in_tasks(tmp_path / "parcels", "from_images")
    assert first[1:] == [3000, 3000]
    assert others == [first] * (NUM_TASKS - 1)
    assert store.take_counts() == {"HEAD": 1, "LIST": 3 + 1}


@pytest.mark.slow
def test_footers_are_read_by_one_task_each(store: StaticStore, folder: Path, tmp_path: Path) -> None:
    """Two requests for each file: one that opens it, also telling whether it changed, and one that reads."""
    write_parquet(folder, 200)
    store.look_again()
    first, *others = in_tasks(tmp_path / "parcels", "from_parquet")
    assert first[1:] == [200, 2000]
    assert others == [first] * (NUM_TASKS - 1)
    counts = store.take_counts()
    assert counts["LIST"] == 2
    # That of the first file is read for its schema too.
    assert (counts["HEAD"], counts["GET"]) == (1 + 201, 201)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "write", "requests"), [("from_tfrecord", write_records, 1), ("from_csv", write_csv, 2)]
)
def test_rows_are_looked_for_by_one_task_in_each_file(
    store: StaticStore,
    folder: Path,
    tmp_path: Path,
    source: str,
    write: Callable[[Path, int], None],
    requests: int,
) -> None:
    """And of CSV the first rows are read for their types too."""
    write(folder, 20)
    store.look_again()
    first, *others = in_tasks(tmp_path / "parcels", source)
    assert first[1:] == [20, 200]
    assert others == [first] * (NUM_TASKS - 1)
    assert store.take_counts()["GET"] == 20 * requests


def test_all_tasks_have_the_list_of_the_first_whatever_comes_meanwhile(
    store: StaticStore, folder: Path, tmp_path: Path
) -> None:
    write_images(folder, 40)
    store.look_again()
    [first] = in_tasks(tmp_path / "parcels", "from_images", num_tasks=1)
    os.link(folder / "class0/0.png", folder / "class1/new.png")
    store.look_again()
    [second] = in_tasks(tmp_path / "parcels", "from_images", num_tasks=1)
    assert first == second
    # The next attempt, whose parcels are others, finds it.
    [resumed] = in_tasks(tmp_path / "next", "from_images", num_tasks=1)
    assert resumed[1] == 41
    assert resumed[0] != first[0]


def test_all_tasks_have_the_mistake_that_one_found(store: StaticStore, folder: Path, tmp_path: Path) -> None:
    write_parquet(folder, 130)
    (folder / "99.parquet").unlink()
    (folder / "99.parquet").write_text("no Parquet")
    store.look_again()
    first, *others = in_tasks(tmp_path / "parcels", "from_parquet")
    assert "s3://bucket/data/99.parquet is not a Parquet file" in first
    assert others == [first] * (NUM_TASKS - 1)
    [none] = in_tasks(tmp_path / "none", "from_images", num_tasks=1)
    assert "from_images found no files at s3://bucket/data" in none


def test_a_task_that_asks_again_looks_anew(tmp_path: Path) -> None:
    found = iter(range(100))
    shared.set_parcels(FolderParcels(tmp_path / "parcels"))
    try:
        asked = [shared.divided("what", 3, lambda items: [next(found) for _ in items]) for _ in range(2)]
    finally:
        shared.set_parcels(None)
    assert asked == [[0, 1, 2], [3, 4, 5]]


def test_files_of_a_host_are_looked_for_by_each_task(tmp_path: Path) -> None:
    """They may be copies, on each host's own disk."""
    write_parquet(tmp_path, 3)
    shared.set_parcels(FolderParcels(tmp_path / "parcels"))
    try:
        assert len(data.from_parquet(tmp_path)) == 30
        with pytest.raises(DataError):
            data.from_parquet(tmp_path / "nothing")
    finally:
        shared.set_parcels(None)
    assert not (tmp_path / "parcels").exists()
