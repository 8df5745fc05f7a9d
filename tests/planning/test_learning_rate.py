from __future__ import annotations

import math

import pytest

from raydist.errors import UnsupportedError
from raydist.planning.batch_sizes import ScaledRate


@pytest.mark.parametrize(
    ("rule", "batch_size", "expected"),
    [("linear", 256, 0.4), ("linear", 32, 0.05), ("linear", 64, 0.1), ("sqrt", 256, 0.2), ("sqrt", 16, 0.05)],
)
def test_rule_scales(rule: str, batch_size: int, expected: float) -> None:
    rate = ScaledRate(base=0.1, base_batch_size=64, batch_size=batch_size, rule=rule)
    assert rate.scaled == pytest.approx(expected, rel=1e-12)
    assert rate.at(0) == rate.scaled


def test_warm_up_goes_from_base_to_scaled_and_stays() -> None:
    rate = ScaledRate(base=0.1, base_batch_size=64, batch_size=256, warmup_steps=3)
    assert [rate.at(step) for step in range(6)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])


def test_text_says_what_was_made_of_what() -> None:
    rate = ScaledRate(base=0.1, base_batch_size=64, batch_size=256, rule="sqrt", warmup_steps=5)
    assert str(rate) == (
        "0.2: 0.1 for batches of 64, scaled by the sqrt rule to 256, over 5 steps of warm-up"
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"batch_size": 0}, "batch_size=0; give a number above 0"),
        ({"base_batch_size": -8}, "base_batch_size=-8; give a number above 0"),
        ({"base": math.inf}, "base=inf; give a number above 0"),
        ({"batch_size": None}, "batch_size=None; give a number above 0"),
        ({"rule": "linaer"}, r"rule='linaer'; did you mean linear\?"),
        ({"warmup_steps": -1}, "warmup_steps=-1; give a number of steps, 0 for no warm-up"),
        ({"warmup_steps": 0.5}, "warmup_steps=0.5; give a number of steps"),
    ],
    ids=str,
)
def test_bad_value_is_named_with_its_remedy(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        ScaledRate(**{"base": 0.1, "base_batch_size": 64, "batch_size": 64, **wrong})  # type: ignore[arg-type]
