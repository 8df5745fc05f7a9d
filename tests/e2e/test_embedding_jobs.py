"""The jobs of jobs/ with embeddings, small, where no parameter server is needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT, Ended

pytestmark = pytest.mark.slow

Raydist = Callable[..., Ended]
RECOMMENDER = str(ROOT / "jobs" / "recommender.py")
IMDB = str(ROOT / "jobs" / "imdb.py")
SMALL_RECOMMENDER = ["-p", "num_ratings=20000", "-p", "batch_size=100", "-p", "epochs=4"]
SMALL_IMDB = ["-p", "num_reviews=6000", "-p", "batch_size=50", "-p", "length=60", "-p", "epochs=3"]
SMALL_IMDB += ["-p", "data=generated"]  # whatever is in this machine's cache of Keras

KERASES = ["3", pytest.param("legacy", marks=pytest.mark.slow)]


@pytest.mark.exhaustive("legacy", covered_by="[3], and tests/compat for tf_keras")
@pytest.mark.parametrize("keras", KERASES)
def test_recommender_learns_nearly_to_the_noise(raydist: Raydist, keras: str) -> None:
    ended = raydist(
        "submit", RECOMMENDER, *SMALL_RECOMMENDER, "--strategy", "one_device", "--keras", keras, "--json"
    )
    assert ended.code == 0, ended.err
    result = ended.json
    assert (result["state"], result["steps"]) == ("SUCCEEDED", 4 * 180)
    assert result["metrics"]["val_rmse"] < 0.55  # the noise is 0.5, the ratings' deviation about 1
    generated, reached = result["notes"]
    assert generated.startswith("data: 20000 generated ratings")
    assert reached.startswith(f"validation RMSE is {result['metrics']['val_rmse']:.3f}")


@pytest.mark.exhaustive(covered_by="[recommender-3], tests/jobs/test_imdb.py, tests/compat")
@pytest.mark.parametrize("keras", KERASES)
def test_imdb_learns_nearly_to_the_label_noise(raydist: Raydist, keras: str) -> None:
    ended = raydist("submit", IMDB, *SMALL_IMDB, "--strategy", "one_device", "--keras", keras, "--json")
    assert ended.code == 0, ended.err
    result = ended.json
    assert (result["state"], result["steps"]) == ("SUCCEEDED", 3 * 100)
    assert result["metrics"]["val_accuracy"] > 0.92  # 0.95 is what the wrong labels leave
    assert [note for note in result["notes"] if note.startswith("data: 6000 generated reviews")]


@pytest.mark.exhaustive(covered_by="programs/test_equality.py: recommender, efficient_embeddings")
@pytest.mark.parametrize(
    ("job", "params", "metric"),
    [(RECOMMENDER, SMALL_RECOMMENDER, "val_rmse"), (IMDB, SMALL_IMDB, "val_loss")],
    ids=["recommender", "imdb"],
)
def test_workers_that_exchange_sparse_gradients_reach_what_one_device_does(
    raydist: Raydist, job: str, params: list[str], metric: str
) -> None:
    one, two = (
        raydist("submit", job, *params, "-p", "epochs=2", *options, "--json")
        for options in (["--strategy", "one_device"], ["--workers", "2"])
    )
    assert (one.code, two.code) == (0, 0), one.err + two.err
    assert two.json["strategy"] == "multi_worker_mirrored"
    assert two.json["attempts"] == 1
    assert two.json["metrics"][metric] == pytest.approx(one.json["metrics"][metric], rel=1e-3)


def test_ratings_of_movielens_are_trained_on(raydist: Raydist, tmp_path: Path) -> None:
    lines = (
        f"{user * 101},{movie * 1009},{1 + user * movie % 5}" for user in range(20) for movie in range(20)
    )
    (tmp_path / "ratings.csv").write_text("\n".join(["userId,movieId,rating", *lines]))
    params = ["-p", f"data_dir={tmp_path}", "-p", "batch_size=60", "-p", "epochs=1"]
    ended = raydist("submit", RECOMMENDER, *params, "--strategy", "one_device", "--json")
    assert ended.code == 0, ended.err
    assert (ended.json["steps"], ended.json["notes"]) == (6, [])


def test_folder_without_ratings_is_a_mistake_and_not_tried_again(raydist: Raydist, tmp_path: Path) -> None:
    ended = raydist("submit", RECOMMENDER, "-p", f"data_dir={tmp_path}", "--json")
    assert ended.code == 2
    error = ended.json["error"]
    assert (error["type"], error["attempt"]) == ("SpecError", 0)
    assert "which has no ratings.csv" in error["message"]
