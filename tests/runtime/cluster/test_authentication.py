"""Asking Ray for a token changes nothing in the process that asks."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_CODE = """
import ray
from raydist.runtime.cluster.ray_internals import has_token
assert has_token()
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")

@ray.remote
class Actor:
    def answer(self):
        return 1

print(ray.get(Actor.remote().answer.remote(), timeout=60))
"""


@pytest.mark.slow
def test_process_that_asked_for_a_token_uses_a_ray_without_authentication() -> None:
    # As with Ray up to 2.58 by itself.
    environ = {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "0" * 64}
    environ.pop("RAY_ADDRESS", None)
    done = subprocess.run(
        [sys.executable, "-c", _CODE], env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.split() == ["1"], done.stderr[-2000:]
