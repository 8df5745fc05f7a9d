from __future__ import annotations

from tests.e2e.conftest import raydist, running_ray

__all__ = ["raydist", "running_ray"]  # fixtures
