"""Which study a command continues."""

from __future__ import annotations

import pytest

from raydist.errors import MistakeError, SpecError, StorageError
from raydist.storage.filesystem import Storage
from raydist.storage.run_removal import list_runs
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


def test_name_is_taken_once(store: StudyStore) -> None:
    store.begin("s", SETTINGS)
    with pytest.raises(SpecError, match="choose another --study, or continue that one with --resume"):
        store.begin("s", SETTINGS)


def test_studies_are_no_runs(store: StudyStore, storage_uri: str) -> None:
    store.begin("s", SETTINGS)
    assert list_runs(Storage.open(storage_uri)).num_known == 0


def test_damaged_study_is_named(store: StudyStore, storage_uri: str) -> None:
    store.begin("s", SETTINGS)
    Storage.open(storage_uri).write_text(f"{store.folder}/s/study.json", "{")
    with pytest.raises(StorageError, match=r"study\.json is damaged"):
        store.find(SETTINGS, name="s")
