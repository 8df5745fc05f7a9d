"""The command that asks for what a run had."""

from __future__ import annotations

import math
import shlex

import pytest

from raydist.cli.kept_job import kept_settings, submit_line
from raydist.spec.params import ParamTexts, merge_params
from raydist.spec.settings.options import find_option


@pytest.mark.parametrize("seconds", [2_592_000.0, 43_200.0, 0.5, 1_234_567.0])
def test_age_is_written_with_its_unit_and_read_again(seconds: float) -> None:
    *_, flag, text = shlex.split(submit_line("job.py", {"keep_runs": seconds}, defaults={}))
    assert flag == "--keep-runs"
    assert find_option("keep_runs").parse(text) == seconds


def test_age_of_a_kept_run_is_written_as_it_is_kept() -> None:
    settings = kept_settings({"keep_runs": 2_592_000.0})
    assert submit_line("job.py", settings, defaults={}).endswith("--keep-runs 30d")


@pytest.mark.parametrize(
    ("default", "value"),
    [
        *[(None, value) for value in (math.inf, -math.inf, ".inf", "é 😀", [math.inf, 1, "x"])],
        (None, {"a": [-math.inf], "b c": {"c": ".nan"}}),
        (0.5, math.inf),
        ("text", ".inf"),
        ([1], [-math.inf]),
    ],
    ids=repr,
)
def test_param_is_written_and_read_again(default: object, value: object) -> None:
    defaults = {"it": default}
    line = submit_line("job.py", {"params": {"it": value}}, defaults={"params": defaults})
    *_, flag, text = shlex.split(line)
    assert flag == "-p"
    assert merge_params(defaults, [(ParamTexts.parse([text]), "")]) == {"it": value}
