"""A run is found by its name, a prefix or as the latest; the index orders runs without reading them."""

from __future__ import annotations

import pytest

from raydist.errors import MistakeError, SpecError
from raydist.storage.filesystem import Storage
from raydist.storage.layout import INDEX
from raydist.storage.run_names import find_run, names_by_age
from raydist.storage.run_record import RunRecordStore
from raydist.storage.run_removal import list_runs
from raydist.storage.run_storage import RunStorage
from tests.support.records import make_record


def add_run(storage: Storage, name: str, *, created_at_s: float, **facts: object) -> RunStorage:
    folder = RunStorage(storage, run=name)
    RunRecordStore(folder, clock=lambda: created_at_s).replace(make_record(folder, **facts))
    return folder


@pytest.fixture
def runs(storage: RunStorage) -> Storage:
    """Four runs, of which the one that was created last has neither the last nor the first name."""
    for created_at_s, name in ((1.0, "cifar-1"), (4.0, "cifar-10"), (3.0, "mnist"), (2.0, "cifar-2")):
        add_run(storage, name, created_at_s=created_at_s)
    return storage


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        pytest.param("mnist", "mnist", id="name"),
        pytest.param("m", "mnist", id="prefix"),
        pytest.param("cifar-1", "cifar-1", id="name-that-is-a-prefix-of-another"),
        pytest.param("@latest", "cifar-10", id="latest"),
    ],
)
def test_run_is_found(runs: Storage, asked: str, found: str) -> None:
    assert find_run(runs, asked).run == found


@pytest.mark.parametrize(
    ("asked", "error", "sentence"),
    [
        pytest.param(
            "cifar",
            MistakeError,
            "3 runs in .* begin with 'cifar': cifar-1, cifar-10, cifar-2;",
            id="several",
        ),
        pytest.param("mnits", MistakeError, "did you mean mnist", id="near"),
        pytest.param("../x", SpecError, "name is '../x'", id="no-name"),
        pytest.param("@newest", SpecError, "name is '@newest'", id="no-such-word"),
    ],
)
def test_run_that_is_not_meant_clearly_is_a_mistake(
    runs: Storage, asked: str, error: type[MistakeError], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        find_run(runs, asked)


def test_latest_of_no_runs_is_a_mistake(storage: RunStorage) -> None:
    with pytest.raises(MistakeError, match="no latest run: no runs are kept in"):
        find_run(storage, "@latest")


def test_folder_without_a_record_is_not_taken_for_a_prefix(runs: Storage) -> None:
    runs.write_bytes("mni/claims/000000.json", b"{}")
    with pytest.raises(MistakeError, match=r"its folder has no run\.json"):
        find_run(runs, "mni")
    assert find_run(runs, "mnis").run == "mnist"


def test_order_comes_from_the_index_and_for_older_runs_from_the_record(runs: Storage) -> None:
    runs.delete(INDEX)
    add_run(runs, "newest", created_at_s=9.0)
    assert names_by_age(runs) == ["newest", "cifar-10", "mnist", "cifar-2", "cifar-1"]


def test_run_that_was_removed_by_hand_is_not_in_the_list_nor_the_latest(runs: Storage) -> None:
    runs.delete("cifar-10")
    assert names_by_age(runs)[0] == "mnist"
    runs.delete("mnist/run.json")
    runs.write_bytes("mnist/logs/x", b"x")
    assert find_run(runs, "@latest").run == "cifar-2"
    assert [run.run for run in list_runs(runs, limit=1).runs] == ["cifar-2"]


def test_resume_keeps_the_place_of_a_run(runs: Storage) -> None:
    add_run(runs, "cifar-1", created_at_s=99.0)
    assert names_by_age(runs)[-1] == "cifar-1"
    assert len(runs.list_names(INDEX)) == 4


def test_only_the_records_that_are_shown_are_read(runs: Storage) -> None:
    runs.write_bytes("cifar-1/run.json", b"{")
    newest = list_runs(runs, limit=2)
    assert [run.run for run in newest.runs] == ["cifar-10", "mnist"]
    assert (newest.num_known, newest.is_complete) == (4, False)
    everything = list_runs(runs)
    assert [run.run for run in everything.runs] == ["cifar-10", "mnist", "cifar-2", "cifar-1"]
    assert everything.is_complete


def test_limit_counts_those_that_match(runs: Storage) -> None:
    add_run(runs, "later", created_at_s=5.0, state="FAILED")
    add_run(runs, "sooner", created_at_s=0.5, state="FAILED")
    found = list_runs(runs, limit=2, matches=lambda run: run.state.value == "FAILED")
    assert [run.run for run in found.runs] == ["later", "sooner"]
