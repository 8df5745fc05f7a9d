"""What an export needs, without TensorFlow."""

from __future__ import annotations

import pytest

from raydist.errors import UnsupportedError
from raydist.inference import exporting
from raydist.inference.served_model import in_order


def test_missing_packages_are_named_with_the_command_that_installs_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exporting, "NEEDS", {"onnx": ("a_missing_module", "json")})
    exporting.check_packages(["keras", "saved_model"])
    with pytest.raises(
        UnsupportedError, match=r"onnx needs a_missing_module, .*; run pip install 'raydist\[onnx\]'$"
    ):
        exporting.check_packages(["keras", "onnx"])


def test_outputs_are_in_the_model_s_order() -> None:
    names = [f"output_{number}" for number in range(12)]
    assert in_order(sorted(names)) == names
