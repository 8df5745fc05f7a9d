"""Versions are compared with those of each reference, where that has any."""

from __future__ import annotations

import pytest

from raydist.runtime.host.software import describe_difference

FULL = {"raydist": "0.1.0", "tensorflow": "2.21.0", "keras": "3.13.0"}
CLIENT = {**FULL, "tensorflow": "none", "keras": "none"}
OTHER = {**FULL, "keras": "3.10.0"}


@pytest.mark.parametrize(
    ("theirs", "references", "expected"),
    [
        (FULL, {"the driver": FULL}, None),
        (FULL, {"the driver": CLIENT, "host a": FULL}, None),
        (OTHER, {"the driver": FULL}, "host b has keras 3.10.0, but the driver has keras 3.13.0;"),
        (OTHER, {"the driver": CLIENT, "host a": FULL}, "but host a has keras 3.13.0;"),
        (CLIENT, {"the driver": FULL}, "host b has tensorflow none, keras none, but the driver"),
        (CLIENT, {"the driver": CLIENT}, "host b has no TensorFlow; `pip install"),
    ],
    ids=["equal", "client", "other", "other-than-the-first", "without", "without-at-either"],
)
def test_difference_names_the_first_that_differs(
    theirs: dict[str, str], references: dict[str, dict[str, str]], expected: str | None
) -> None:
    found = describe_difference("b", theirs, references=references)
    assert (expected is None) == (found is None)
    assert expected is None or expected in str(found)
