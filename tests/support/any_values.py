"""How tests with Hypothesis run: the same examples each time, as many as there is time for, and no files."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

any_values = settings(
    deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
