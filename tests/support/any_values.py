"""How tests with Hypothesis run: the same examples each time, without a time limit, and without files."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

any_values = settings(
    deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
