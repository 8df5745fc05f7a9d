"""How jobs/imdb.py gets its reviews; without TensorFlow."""

from __future__ import annotations

import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jobs import imdb
from raydist import SpecError

TEXTS = {
    "train/pos/0_9.txt": "A great film!<br /><br />Not boring at all.",
    "train/neg/0_2.txt": "Boring. Great only in being boring…",
    "train/unsup/0_0.txt": "Nobody knows.",
    "test/pos/0_10.txt": "Great",
    "test/neg/0_1.txt": "...",
    "train/urls_pos.txt": "http://example.org",
}
PARAMS = {"data": "auto", "data_dir": "", "vocabulary_size": 4, "length": 5, "num_reviews": 100}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keras's cache of this test, empty."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    (tmp_path / "keras" / "datasets").mkdir(parents=True)
    return tmp_path / "keras" / "datasets"


def write_folder(parent: Path) -> Path:
    for name, text in TEXTS.items():
        file = parent / "aclImdb" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return parent / "aclImdb"


def write_archive(parent: Path) -> Path:
    folder = write_folder(parent / "unpacked")
    with tarfile.open(parent / "aclImdb_v1.tar.gz", "w:gz") as archive:
        archive.add(folder, "aclImdb")
    return parent / "aclImdb_v1.tar.gz"


def write_npz(parent: Path, **replaced: Any) -> Path:
    arrays = {
        "x_train": np.array([[5, 3, 3], [3, 7]], dtype=object),
        "y_train": np.array([1, 0]),
        "x_test": np.array([[5], [9, 9, 9]], dtype=object),
        "y_test": np.array([1, 0]),
        **replaced,
    }
    np.savez(parent / "imdb.npz", **arrays)
    return parent / "imdb.npz"


def load(**params: Any) -> tuple[Any, list[str]]:
    """Loads as the chief under ParameterServer does; returns the data and the notes."""
    notes: list[str] = []
    context = SimpleNamespace(coordinator=object(), note=notes.append)
    return imdb.load_data(context, {**PARAMS, **params}), notes


@pytest.mark.parametrize("write", [write_folder, write_archive])
def test_texts_are_read_from_a_folder_and_from_an_archive(tmp_path: Path, write: Any) -> None:
    parts = imdb.read_reviews(write(tmp_path))
    train = sorted(zip(*parts["train"], strict=True))
    assert train == [
        (["a", "great", "film", "not boring", "at", "all"], 1),
        (["boring", "great", "only", "in", "being", "boring"], 0),
    ]
    assert sorted(zip(*parts["test"], strict=True)) == [([], 0), (["great"], 1)]


def test_words_become_numbers_by_their_frequency(tmp_path: Path) -> None:
    write_folder(tmp_path)
    (training, validation), notes = load(data_dir=str(tmp_path))
    # Two words of the training reviews fit beside PADDING and UNKNOWN: boring, great.
    assert training[0].tolist() == [[2, 3, 1, 1, 1], [1, 3, 1, 1, 1]]
    assert training[1].tolist() == [[0], [1]]
    assert validation[0].tolist() == [[1, 0, 0, 0, 0], [3, 0, 0, 0, 0]]
    assert notes == [f"data: the IMDb reviews in {tmp_path / 'aclImdb'}"]


def test_data_dir_may_be_the_unpacked_folder_itself(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    _, notes = load(data_dir=str(folder))
    assert notes == [f"data: the IMDb reviews in {folder}"]


def test_archive_is_taken_before_the_npz(tmp_path: Path) -> None:
    write_npz(tmp_path)
    assert imdb.find_reviews(tmp_path) == tmp_path / "imdb.npz"
    archive = write_archive(tmp_path)
    assert imdb.find_reviews(tmp_path) == archive


def test_npz_of_keras_cache_is_read_without_a_data_dir(cache: Path) -> None:
    path = write_npz(cache)
    (training, validation), notes = load()
    assert training[0].tolist() == [[3, 2, 2, 0, 0], [2, 1, 0, 0, 0]]
    assert training[1].tolist() == [[1], [0]]
    assert validation[0].tolist() == [[3, 0, 0, 0, 0], [1, 1, 1, 0, 0]]
    assert notes == [f"data: the IMDb reviews in {path}"]


def test_without_any_data_reviews_are_generated_and_that_is_said() -> None:
    (training, validation), notes = load(num_reviews=600, vocabulary_size=100, length=40)
    assert (training[0].shape, validation[0].shape) == ((500, 40), (100, 40))
    (note,) = notes
    assert note.startswith("data: 600 generated reviews, because not every task has IMDb's")
    assert "the best accuracy is about 0.95" in note


def test_generated_reviews_are_taken_where_asked_for(cache: Path) -> None:
    write_npz(cache)
    _, notes = load(data="generated")
    assert notes[0].startswith("data: 100 generated reviews, as asked; 5% of them have a wrong label")


def test_generated_reviews_are_the_same_for_a_seed() -> None:
    assert imdb.generate_reviews(200, seed=3) == imdb.generate_reviews(200, seed=3)
    assert imdb.generate_reviews(200, seed=3) != imdb.generate_reviews(200, seed=4)


@pytest.mark.slow
def test_generated_labels_are_what_the_reviews_say_but_for_the_noise() -> None:
    reviews, labels = imdb.generate_reviews(12_000)["train"]
    good = {*imdb.GOOD, *(f"not {word}" for word in imdb.BAD)}
    bad = {*imdb.BAD, *(f"not {word}" for word in imdb.GOOD)}
    says = [sum((word in good) - (word in bad) for word in review) > 0 for review in reviews]
    assert np.mean(np.array(says) != np.array(labels)) == pytest.approx(imdb.LABEL_NOISE, abs=0.01)
    assert np.mean(labels) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("params", [{"data_dir": "{tmp_path}"}, {"data": "imdb"}], ids=["data_dir", "data"])
def test_asked_for_reviews_that_are_not_there_names_the_folder(
    tmp_path: Path, cache: Path, params: dict[str, str]
) -> None:
    folder = tmp_path if "data_dir" in params else cache
    with pytest.raises(SpecError, match=r"has no aclImdb, aclImdb_v1\.tar\.gz or imdb\.npz") as raised:
        load(**{key: value.format(tmp_path=tmp_path) for key, value in params.items()})
    assert str(raised.value).startswith(f"{folder} has no ")


def test_unknown_data_is_a_mistake() -> None:
    with pytest.raises(SpecError, match="param data is 'IMDb'; give auto, imdb or generated"):
        load(data="IMDb")


def test_folder_without_positive_reviews_is_a_mistake(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    (folder / "train" / "pos" / "0_9.txt").unlink()
    with pytest.raises(
        SpecError, match=r"has the labels \[0\] in train; both 0 \(negative\) and 1 are needed"
    ):
        imdb.read_reviews(folder)


@pytest.mark.parametrize("length", [0, 10, 200], ids=["empty", "cut in its header", "cut in its data"])
def test_archive_that_is_cut_off_is_a_mistake(tmp_path: Path, length: int) -> None:
    archive = write_archive(tmp_path)
    archive.write_bytes(archive.read_bytes()[:length])
    with pytest.raises(SpecError, match=r"aclImdb_v1\.tar\.gz cannot be read: "):
        imdb.read_reviews(archive)


@pytest.mark.parametrize(
    ("replaced", "said"),
    [
        ({"x_train": np.array([1, 2])}, "is not Keras's imdb.npz: "),
        ({"y_test": np.array([1, 0, 1])}, "has 2 reviews and 3 labels in test"),
        ({"y_train": np.array([1, 5])}, r"has the labels \[1, 5\] in train"),
    ],
    ids=["no lists", "more labels than reviews", "other labels"],
)
def test_npz_with_other_content_is_a_mistake(tmp_path: Path, replaced: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        imdb.read_reviews(write_npz(tmp_path, **replaced))


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 cut off"])
def test_npz_that_is_none_is_a_mistake(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "imdb.npz").write_bytes(content)
    with pytest.raises(SpecError, match=r"imdb\.npz"):
        imdb.read_reviews(tmp_path / "imdb.npz")


def test_npz_without_an_array_is_a_mistake(tmp_path: Path) -> None:
    np.savez(tmp_path / "imdb.npz", x_train=np.array([[1], [2, 3]], dtype=object))
    with pytest.raises(SpecError, match=r"is not Keras's imdb\.npz: .*y_train"):
        imdb.read_reviews(tmp_path / "imdb.npz")
