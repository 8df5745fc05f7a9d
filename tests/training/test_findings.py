"""What the errors of a step's gradients say of its loss, and which rule follows."""

from __future__ import annotations

import pytest

from raydist.training.checks.findings import (
    NOT_COMPUTED,
    TOLERANCE,
    LossVerdict,
    StepFindings,
    finding_of_errors,
)
from raydist.training.replicas.model_states import LossRule


@pytest.mark.parametrize(
    ("errors", "options", "verdict", "rule"),
    [
        ((1e-7, 1e-6, 1.0), {}, LossVerdict.EITHER, LossRule.LOCAL_MEAN),
        ((1e-7, 0.5, 1.0), {}, LossVerdict.SCALED, LossRule.SCALED),
        ((1.0, 1e-7, 1.0), {}, LossVerdict.LOCAL_MEAN, LossRule.LOCAL_MEAN),
        ((0.5, 0.5, 1e-7), {}, LossVerdict.SUM, LossRule.SUM),
        ((1.1, 0.2, 1.1), {}, LossVerdict.UNEQUAL, LossRule.LOCAL_MEAN),
        ((0.75, 0.75, 0.5), {}, LossVerdict.UNEQUAL, LossRule.SUM),
        ((0.2, 0.6, 1.1), {}, LossVerdict.UNEQUAL, LossRule.SCALED),
        ((0.9, 0.8, 1.1), {"asks_for_replicas": True}, LossVerdict.UNEQUAL, LossRule.SCALED),
        ((1.1, 0.2, 1.1), {"asks_for_replicas": True}, LossVerdict.UNEQUAL, LossRule.LOCAL_MEAN),
        ((1e-7, 1e-6, 1.0), {"asks_for_replicas": True}, LossVerdict.SCALED, LossRule.SCALED),
        ((1e-7, 0.5, 1.0), {"reduces_itself": True}, LossVerdict.SCALED, LossRule.SCALED),
        ((1.0, 1e-7, 1.0), {"reduces_itself": True}, LossVerdict.UNEQUAL, LossRule.SCALED),
        ((NOT_COMPUTED, NOT_COMPUTED, NOT_COMPUTED), {}, LossVerdict.UNKNOWN, LossRule.LOCAL_MEAN),
        (
            (NOT_COMPUTED, NOT_COMPUTED, NOT_COMPUTED),
            {"asks_for_replicas": True},
            LossVerdict.UNKNOWN,
            LossRule.SCALED,
        ),
        ((1.2, 0.6, 1.3), {"may_divide": True}, LossVerdict.UNEQUAL, LossRule.SCALED),
    ],
)
def test_decision(
    errors: tuple[float, float, float], options: dict[str, bool], verdict: LossVerdict, rule: LossRule
) -> None:
    found = StepFindings(**{"tolerance": TOLERANCE, "is_checked": 1.0, **options})
    finding = finding_of_errors(errors, found)
    assert (finding.verdict, finding.rule) == (verdict, rule)
