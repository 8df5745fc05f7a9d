from __future__ import annotations

from collections.abc import Mapping

import pytest

from raydist.errors import SpecError
from raydist.spec.best import Best, Direction, best_of, best_step, better, direction_of, parse_keep_best
from raydist.spec.settings.options import find_option


def best_after(*reports: Mapping[str, float], keep_best: str | None = None) -> Best | None:
    best = None
    for number, metrics in enumerate(reports, start=1):
        best = best_of(best, metrics, step=10 * number, keep_best=keep_best)
    return best


@pytest.mark.parametrize(
    ("reports", "keep_best", "expected"),
    [
        pytest.param([{"loss": 2.0}, {"loss": 1.0}, {"loss": 1.5}], None, ("loss", 1.0, 20), id="least-loss"),
        pytest.param([{"accuracy": 0.5}, {"accuracy": 0.25}], None, ("accuracy", 0.5, 10), id="most"),
        pytest.param([{"loss": 1.0}, {"loss": 1.0}], None, ("loss", 1.0, 10), id="earliest"),
        pytest.param(
            [{"loss": 0.1}, {"loss": 2.0, "val_loss": 3.0}], None, ("val_loss", 3.0, 20), id="val_loss-wins"
        ),
        pytest.param(
            [{"val_loss": 3.0}, {"loss": 0.1}], None, ("val_loss", 3.0, 10), id="loss-does-not-replace"
        ),
        pytest.param(
            [{"loss": 1.0, "auc": 0.5}, {"loss": 0.5, "auc": 0.7}], "auc", ("auc", 0.7, 20), id="keep_best"
        ),
        pytest.param([{"val_mae": 2.0}, {"val_mae": 1.0}], "val_mae", ("val_mae", 1.0, 20), id="lowest-mae"),
        pytest.param([{"loss": float("nan")}, {"loss": 2.0}], None, ("loss", 2.0, 20), id="nan"),
        pytest.param([{"norm": 4.0}, {"norm": 5.0, "z": 1.0}], None, ("norm", 5.0, 20), id="first-metric"),
    ],
)
def test_best_value_of_a_run(
    reports: list[Mapping[str, float]], keep_best: str | None, expected: tuple[str, float, int]
) -> None:
    name, value, step = expected
    assert best_after(*reports, keep_best=keep_best) == Best(name=name, value=value, step=step)


@pytest.mark.parametrize("reports", [[], [{}], [{"loss": float("inf")}]], ids=["none", "empty", "infinite"])
def test_without_a_finite_value_there_is_no_best(reports: list[Mapping[str, float]]) -> None:
    assert best_after(*reports) is None


def test_new_attempt_does_not_lose_the_best_of_the_one_before() -> None:
    before, after = Best(name="loss", value=1.0, step=50), Best(name="loss", value=1.5, step=40)
    assert better(before, after, keep_best=None) == before
    assert better(Best(name="val_loss", value=3.0, step=50), after, keep_best=None).name == "val_loss"
    assert better(before, Best(name="auc", value=0.5, step=60), keep_best=None).name == "auc"


# The names that Keras 3.15 and tf_keras 2.21 give to their metrics; Keras 3 has the same as `_direction`.
KERAS_HIGHEST = (
    *("accuracy", "acc", "binary_accuracy", "categorical_accuracy", "sparse_categorical_accuracy"),
    *("top_k_categorical_accuracy", "sparse_top_k_categorical_accuracy", "auc", "AUC", "precision", "recall"),
    *("f1_score", "f_beta_score", "fbeta_score", "r2_score", "io_u", "binary_io_u", "mean_io_u"),
    *("one_hot_io_u", "one_hot_mean_io_u", "cosine_similarity", "concordance_correlation"),
    *("pearson_correlation", "precision_at_recall", "recall_at_precision"),
    *("sensitivity_at_specificity", "specificity_at_sensitivity"),
)
KERAS_LOWEST = (
    *(
        "loss",
        "mse",
        "MSE",
        "mae",
        "MAE",
        "mape",
        "msle",
        "bce",
        "ce",
        "kld",
        "KLD",
        "hinge",
        "squared_hinge",
    ),
    *("categorical_hinge", "poisson", "kl_divergence", "kullback_leibler_divergence", "logcosh", "log_cosh"),
    *("log_cosh_error", "huber", "binary_crossentropy", "categorical_crossentropy", "crossentropy"),
    *("sparse_categorical_crossentropy", "binary_focal_crossentropy", "categorical_focal_crossentropy"),
    *("mean_absolute_error", "mean_squared_error", "mean_absolute_percentage_error", "mean_relative_error"),
    *("mean_squared_logarithmic_error", "root_mean_squared_error"),
)
DIRECTIONS = [
    *((name, Direction.HIGHEST) for name in KERAS_HIGHEST),
    *((name, Direction.LOWEST) for name in KERAS_LOWEST),
]


@pytest.mark.parametrize(("name", "direction"), DIRECTIONS)
def test_name_of_a_metric_of_keras_says_which_value_is_best(name: str, direction: Direction) -> None:
    written = ("{}", "val_{}", "{}_1", "val_head_{}_2", "loss_head_{}", "accuracy_{}")
    assert {form: direction_of(form.format(name)) for form in written} == dict.fromkeys(written, direction)


@pytest.mark.parametrize(
    ("name", "direction"),
    [
        ("F1Score", Direction.HIGHEST),
        ("R2Score", Direction.HIGHEST),
        ("MeanIoU", Direction.HIGHEST),
        ("mIoU", Direction.HIGHEST),
        ("val_fmeasure", Direction.HIGHEST),
        ("top_5", Direction.HIGHEST),
        ("val_perplexity", Direction.LOWEST),
        ("RMSE", Direction.LOWEST),
        ("val_precision_loss", Direction.LOWEST),
        ("score", None),
        ("lr", None),
        ("false_positives", None),
        ("dice", None),
        ("stop_5", None),
        ("maestro", None),
        ("vaccine", None),
    ],
)
def test_other_names(name: str, direction: Direction | None) -> None:
    assert direction_of(name) is direction


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("val_dice:max", ("val_dice", Direction.HIGHEST)),
        ("val_dice:min", ("val_dice", Direction.LOWEST)),
        ("accuracy:min", ("accuracy", Direction.LOWEST)),
        ("val_mae", ("val_mae", Direction.LOWEST)),
        ("train:loss", ("train:loss", Direction.LOWEST)),
        ("val_dice", ("val_dice", None)),
    ],
)
def test_option_may_say_which_value_is_best(written: str, expected: tuple[str, Direction | None]) -> None:
    assert parse_keep_best(written) == expected


def test_what_the_option_says_decides_each_comparison() -> None:
    reports = [{"dice": 0.7}, {"dice": 0.5}, {"dice": 0.9}]
    assert best_after(*reports, keep_best="dice:min") == Best(name="dice", value=0.5, step=20)
    assert best_after(*reports, keep_best="dice:max") == Best(name="dice", value=0.9, step=30)
    values = [(0.7, 10), (0.5, 20), (0.9, 30)]
    assert [best_step(values, f"dice:{mode}") for mode in ("min", "max")] == [20, 30]
    before, after = Best(name="dice", value=0.5, step=20), Best(name="dice", value=0.9, step=30)
    assert better(before, after, keep_best="dice:min") == before


def test_metric_of_unknown_direction_is_refused_before_the_run_starts() -> None:
    option = find_option("keep_best")
    with pytest.raises(SpecError) as refused:
        option.parse("val_dice")
    assert str(refused.value) == (
        "keep_best is 'val_dice', and that name does not say which values are better; write val_dice:max "
        "if the highest value is best, or val_dice:min if the lowest is"
    )
    assert option.parse("val_dice:max") == "val_dice:max"
