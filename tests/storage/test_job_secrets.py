"""Where a job may have secrets."""

from __future__ import annotations

from typing import Any

import pytest

from raydist.entry.entry_point import EntryPoint
from raydist.spec.job import JobSpec
from raydist.spec.secrecy import secrets_of


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"params": {"api_key": "swordfish"}}, id="param"),
        pytest.param({"args": ("--api-key", "swordfish")}, id="argument"),
        pytest.param({"env": {"PGPASSWORD": "swordfish"}}, id="variable"),
        pytest.param({"env": {"DATABASE": "postgres://me:swordfish@db/x"}}, id="uri_in_a_variable"),
        pytest.param({"runtime_env": {"pip": ["-i", "https://me:swordfish@index/x"]}}, id="runtime_env"),
        pytest.param({"storage": "s3://KEY:swordfish@bucket/runs"}, id="storage"),
        pytest.param({"on_end": "curl https://me:swordfish@hooks/x"}, id="on_end"),
    ],
)
def test_secret_of_a_job_is_hidden_wherever_it_was_given(given: dict[str, Any]) -> None:
    job = JobSpec(name="r", entry_point=EntryPoint(function="train", file="job.py"), **given)
    assert secrets_of(job).hide("swordfish was refused") == "*** was refused"
