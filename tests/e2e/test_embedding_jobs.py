"""The jobs of jobs/ with embeddings, small, where no parameter server is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT, Raydist

pytestmark = pytest.mark.slow

RECOMMENDER = str(ROOT / "jobs" / "recommender.py")
SMALL_RECOMMENDER = ["-p", "num_ratings=20000", "-p", "batch_size=100", "-p", "epochs=4"]


def test_recommender_learns_nearly_to_the_noise(raydist: Raydist) -> None:
    ended = raydist("submit", RECOMMENDER, *SMALL_RECOMMENDER, "--strategy", "one_device", "--json")
    assert ended.code == 0, ended.err
    result = ended.json
    assert (result["state"], result["steps"]) == ("SUCCEEDED", 4 * 180)
    assert result["metrics"]["val_rmse"] < 0.55  # the noise is 0.5, the ratings' deviation about 1
    generated, reached = result["notes"]
    assert generated.startswith("data: 20000 generated ratings")
    assert reached.startswith(f"validation RMSE is {result['metrics']['val_rmse']:.3f}")


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
