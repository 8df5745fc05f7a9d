"""What an export needs, without TensorFlow."""

from __future__ import annotations

import pytest

from raydist.errors import UnsupportedError
from raydist.inference import exporting
from raydist.inference.served_model import in_order


def test_missing_packages_are_named_with_the_command_that_installs_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needs = {"onnx": {"a_module_that_is_missing": "its-package", "json": "json"}}
    monkeypatch.setattr(exporting, "NEEDS", needs)
    exporting.check_packages(["keras", "saved_model"])
    with pytest.raises(UnsupportedError, match=r"onnx needs packages .*; run pip install its-package$"):
        exporting.check_packages(["keras", "onnx"])


def test_outputs_are_in_the_model_s_order() -> None:
    names = [f"output_{number}" for number in range(12)]
    assert in_order(sorted(names)) == names
