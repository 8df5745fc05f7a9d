"""The command that asks for what a run had."""

from __future__ import annotations

import shlex

import pytest

from raydist.cli.screen.submit_line import submit_line
from raydist.spec.settings.options import find_option


@pytest.mark.parametrize("seconds", [2_592_000.0, 43_200.0, 0.5, 1_234_567.0])
def test_age_is_written_with_its_unit_and_read_again(seconds: float) -> None:
    *_, flag, text = shlex.split(submit_line("job.py", {"keep_runs": seconds}, defaults={}))
    assert flag == "--keep-runs"
    assert find_option("keep_runs").parse(text) == seconds
