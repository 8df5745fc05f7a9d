"""Which study a command continues."""

from __future__ import annotations

import time

import pytest

from raydist.errors import MistakeError, SpecError, StorageError
from raydist.storage.claims import Claim, ClaimStore, this_process
from raydist.storage.filesystem import Storage
from raydist.storage.run_removal import list_runs
from raydist.storage.run_storage import RunStorage
from raydist.storage.studies import StudyStore

SETTINGS = {"job": "f.py:train", "--num": 3, "-p": {"rate": "0..1"}}


@pytest.fixture
def store(storage_uri: str) -> StudyStore:
    times = iter((1.0, 2.0, 3.0))
    return StudyStore(Storage.open(storage_uri), clock=lambda: next(times))


def test_newest_study_with_the_same_settings_is_continued(store: StudyStore) -> None:
    store.begin("old", SETTINGS)
    store.begin("new", SETTINGS)
    store.begin("other", {**SETTINGS, "--num": 4})
    assert store.find(SETTINGS, name=None) == "new"
    assert store.find(SETTINGS, name="old") == "old"


def test_what_cannot_be_continued_is_one_sentence(store: StudyStore) -> None:
    with pytest.raises(MistakeError, match=r"no study in .* was begun with this command"):
        store.find(SETTINGS, name=None)
    store.begin("s", SETTINGS)
    with pytest.raises(MistakeError, match="no study named 't'"):
        store.find(SETTINGS, name="t")
    with pytest.raises(MistakeError, match="study s was begun with --num 3, and is to continue with 5"):
        store.find({**SETTINGS, "--num": 5}, name="s")


def test_study_is_searched_by_one_process_at_a_time(storage_uri: str) -> None:
    store = StudyStore(Storage.open(storage_uri))
    store.begin("s", SETTINGS)
    with store.held("s"):
        with (
            pytest.raises(
                SpecError, match=r"study 's' is searched by process \d+ of host .* wait for its end"
            ),
            store.held("s"),
        ):
            pass
        with store.held("t"):
            pass
    with pytest.raises(KeyError), store.held("s"):
        raise KeyError
    with store.held("s"):
        assert store.find(SETTINGS, name=None) == "s"


def test_study_of_a_process_that_died_is_free(storage_uri: str) -> None:
    holder = {**this_process(), "pid": 2**22 - 1, "start": 1}
    study = RunStorage(Storage.open(storage_uri), run=".studies/s")
    assert ClaimStore(study).add(Claim(number=0, id="a", holder=holder, at_s=time.time()))
    with StudyStore(Storage.open(storage_uri)).held("s"):
        newest = ClaimStore(study).newest()
        assert newest.number == 1


def test_values_and_comparison_are_read_back(store: StudyStore, storage_uri: str) -> None:
    assert (store.values("s"), store.comparison("s")) == ({}, None)
    store.keep_values("s", {"s-0": 0.5, "s-1": float("nan")})
    assert store.values("s") == {"s-0": 0.5}
    Storage.open(storage_uri).write_text(".studies/s/values.json", "{")
    with pytest.raises(StorageError, match=r"values\.json is damaged"):
        store.values("s")


def test_name_is_taken_once(store: StudyStore) -> None:
    store.begin("s", SETTINGS)
    with pytest.raises(SpecError, match="choose another --study, or continue that one with --resume"):
        store.begin("s", SETTINGS)


def test_studies_are_no_runs(store: StudyStore, storage_uri: str) -> None:
    store.begin("s", SETTINGS)
    assert list_runs(Storage.open(storage_uri)).num_known == 0


@pytest.mark.parametrize(
    "content",
    [*("{", '{"created_at_s": 1, "settings": ""}', '{"created_at_s": 1' + "0" * 400 + ', "settings": {}}')],
)
def test_damaged_study_is_named(store: StudyStore, storage_uri: str, content: str) -> None:
    store.begin("s", SETTINGS)
    Storage.open(storage_uri).write_text(f"{store.folder}/s/study.json", content)
    for ask in (lambda: store.find(SETTINGS, name="s"), lambda: store.compared_by("s")):
        with pytest.raises(StorageError, match=r"study\.json is damaged"):
            ask()


def test_value_that_is_no_number_is_left_out(store: StudyStore, storage_uri: str) -> None:
    text = '{"a": 0.5, "b": "x", "c": 1' + "0" * 400 + ', "d": NaN}'
    Storage.open(storage_uri).write_text(f"{store.folder}/s/values.json", text)
    assert store.values("s") == {"a": 0.5}
