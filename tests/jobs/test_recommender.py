"""How jobs/recommender.py gets its ratings; without TensorFlow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from jobs import recommender
from raydist import SpecError

CSV = """userId,movieId,rating,timestamp
7,110,4.0,1425941529
7,1000000007,3.5,1425941530
162541,110,0.5,1425941531
"""


def written(folder: Path, text: str) -> str:
    (folder / "ratings.csv").write_text(text)
    return str(folder)


def test_movielens_file_is_read(tmp_path: Path) -> None:
    ratings = recommender.read_movielens(written(tmp_path, CSV))
    assert ratings.users.tolist() == [7, 7, 162541]
    assert ratings.movies.tolist() == [110, 1000000007, 110]
    assert ratings.stars.tolist() == [4.0, 3.5, 0.5]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Empty CSV"),
        ("userId,movieId,rating,timestamp\n", "holds 0 ratings"),
        ("user,movieId,rating\n1,2,3.0\n", "userId"),
        ("userId,movieId,rating\n1,2,3.0\n1,two,3.0\n", "two"),
        ("userId,movieId,rating\n1,2,3.0\n1,2\n", "Expected 3 columns, got 2"),
        ("userId,movieId,rating\n1,2,3.0\n1,,3.0\n", "rating 2 has no finite number as its movieId"),
        ("userId,movieId,rating\n1,2,nan\n1,3,3.0\n", "rating 1 has no finite number as its rating"),
    ],
    ids=["empty", "header only", "no column userId", "no number", "short line", "missing id", "nan"],
)
def test_malformed_file_is_said_in_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SpecError) as raised:
        recommender.read_movielens(written(tmp_path, text))
    message = str(raised.value)
    assert str(tmp_path / "ratings.csv") in message
    assert said in message
    assert "\n" not in message


def test_data_dir_without_ratings_names_where_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"has no ratings\.csv; unpack an archive of https://grouplens"):
        recommender.read_movielens(str(tmp_path))


def test_id_without_a_training_rating_gets_the_row_for_unseen_ones() -> None:
    known = np.array([110, 2571, 1 << 40])
    ids = np.array([1 << 40, 1, 110, 111, 2571, (1 << 40) + 1])
    assert recommender.rows_of(ids, known).tolist() == [3, 0, 1, 0, 2, 0]


def test_split_is_the_same_each_time_and_loses_nothing() -> None:
    ratings = recommender.generate_ratings(2000)
    training, validation = recommender.split(ratings)
    again, _ = recommender.split(ratings)
    assert (len(training), len(validation)) == (1800, 200)
    assert training.stars.tolist() == again.stars.tolist()
    parts = np.concatenate([training.stars, validation.stars])
    assert sorted(parts.tolist()) == sorted(ratings.stars.tolist())


def test_generated_ratings_are_the_same_for_a_seed() -> None:
    one, same = recommender.generate_ratings(2000, seed=3), recommender.generate_ratings(2000, seed=3)
    other = recommender.generate_ratings(2000, seed=4)
    assert one.stars.tolist() == same.stars.tolist()
    assert one.users.tolist() == same.users.tolist()
    assert one.stars.tolist() != other.stars.tolist()


def test_generated_ratings_are_of_few_popular_and_sparse_ids() -> None:
    ratings = recommender.generate_ratings(60_000)
    ids, counts = np.unique(ratings.users, return_counts=True)
    assert len(ids) == 300
    assert ids.max() > 1 << 32
    assert counts.max() > 5 * counts.min()


def test_what_the_factors_leave_of_generated_ratings_is_the_noise() -> None:
    ratings = recommender.generate_ratings(60_000)
    pairs = np.stack([ratings.users, ratings.movies])
    _, pair, counts = np.unique(pairs, axis=1, return_inverse=True, return_counts=True)
    # The same user and movie rated twice differ by nothing but the noise.
    means = np.bincount(pair.ravel(), weights=ratings.stars) / counts
    squares = np.sum((ratings.stars - means[pair.ravel()]) ** 2)
    assert np.sqrt(squares / (len(ratings) - len(counts))) == pytest.approx(recommender.NOISE, rel=0.02)
