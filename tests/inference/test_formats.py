"""When an exported model counts as equal to the run's own, and which one is not loaded."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raydist.errors import UnsupportedError
from raydist.inference.formats import code_in, compared

ONE = np.array([1.0, np.nan, np.inf, -np.inf], np.float32)


def test_what_both_have_is_no_difference() -> None:
    assert compared([ONE], [ONE.copy()]) == {"difference": 0.0}
    assert compared([ONE + np.float32(1e-5)], [ONE])["difference"] == pytest.approx(1e-5, rel=0.1)
    assert compared([np.zeros((0, 3))], [np.zeros((0, 3))]) == {"difference": 0.0}
    assert compared([np.array([True, False])], [np.array([True, False])]) == {"difference": 0.0}


@pytest.mark.parametrize(
    "found",
    [
        pytest.param([2.0, np.nan, np.inf, -np.inf], id="number"),
        pytest.param([np.nan, np.nan, np.inf, -np.inf], id="nan-for-a-number"),
        pytest.param([1.0, 0.0, np.inf, -np.inf], id="number-for-nan"),
        pytest.param([1.0, np.nan, -np.inf, -np.inf], id="sign-of-infinity"),
    ],
)
def test_difference_is_told(found: list[float]) -> None:
    assert "differ from those of the run's model by up to" in compared([np.array(found)], [ONE])["error"]


def test_difference_is_measured_by_the_largest_finite_output() -> None:
    large = np.array([1e6, np.inf])
    assert compared([large + np.array([50.0, 0.0])], [large]) == {"difference": 50.0}
    assert "error" in compared([large + np.array([200.0, 0.0])], [large])


def test_shapes_and_texts_have_to_be_the_same() -> None:
    assert "have the shapes [[2]]" in compared([np.zeros(2)], [np.zeros(3)])["error"]
    texts = np.array([b"cat", b"dog"], object)
    assert compared([np.array(["cat", "dog"], object)], [texts]) == {"difference": 0.0}
    assert compared([np.array([b"cat", b"cow"], object)], [texts]) == {
        "error": "its texts differ from those of the run's model"
    }


def test_difference_is_measured_by_the_precision_of_the_model() -> None:
    assert compared([np.array([1.05])], [np.array([1.0])], tolerance=0.1)["difference"] == pytest.approx(0.05)


DENSE = {
    "module": "keras.layers",
    "class_name": "Dense",
    "config": {"activation": "relu", "dtype": {"module": "keras", "class_name": "DTypePolicy", "config": {}}},
    "registered_name": None,
}


def lambda_of(function: Any) -> dict[str, Any]:
    return {"module": "tf_keras.layers", "class_name": "Lambda", "config": {"function": function}}


@pytest.mark.parametrize(
    ("layer", "found"),
    [
        pytest.param(DENSE, [], id="of Keras"),
        pytest.param(
            {
                **DENSE,
                "config": {"activation": {"module": "builtins", "class_name": "function", "config": "relu"}},
            },
            [],
            id="function of Keras",
        ),
        pytest.param({**DENSE, "module": "job", "class_name": "Own"}, ["job.Own"], id="own layer"),
        pytest.param(
            lambda_of({"module": "os", "class_name": "function", "config": "system"}),
            ["a Lambda", "os.system"],
            id="os",
        ),
        pytest.param(
            lambda_of({"module": "builtins", "class_name": "function", "config": "eval"}),
            ["a Lambda", "builtins.eval"],
            id="builtins",
        ),
        pytest.param(
            lambda_of({"module": "keras.utils", "class_name": "function", "config": "get_file"}),
            ["a Lambda", "keras.utils.get_file"],
            id="function that loads files",
        ),
        pytest.param(
            lambda_of({"class_name": "__lambda__", "config": {"value": ["4wAA"]}}),
            ["a Lambda", "a lambda"],
            id="lambda",
        ),
        pytest.param({**DENSE, "class_name": "TFSMLayer"}, ["a TFSMLayer"], id="program"),
    ],
)
def test_code_in_a_model_is_found_without_loading_it(
    tmp_path: Path, layer: dict[str, Any], found: list[str]
) -> None:
    config = {"module": "keras", "class_name": "Sequential", "config": {"layers": [layer]}}
    loss = {"module": "job", "class_name": "function", "config": "own_loss"}
    with zipfile.ZipFile(tmp_path / "model.keras", "w") as archive:
        archive.writestr("config.json", json.dumps({**config, "compile_config": {"loss": loss}}))
    assert code_in(tmp_path / "model.keras") == found


def test_config_that_unpacks_to_far_more_is_not_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.keras", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", bytes(33 * 2**20))
    with pytest.raises(UnsupportedError, match=r"unpacks to more than 33\.6 MB, which is too much"):
        code_in(tmp_path / "model.keras")


def test_config_with_a_matrix_among_the_arguments_is_read(tmp_path: Path) -> None:
    content = json.dumps({"config": {"matrix": list(range(5_000_000))}})
    assert len(content) > 32 * 2**20
    with zipfile.ZipFile(tmp_path / "model.keras", "w") as archive:  # not packed, as Keras writes it
        archive.writestr("config.json", content)
    assert code_in(tmp_path / "model.keras") == []
