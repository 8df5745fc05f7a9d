"""The command that asks for what a run had."""

from __future__ import annotations

import math
import shlex

import pytest

from raydist.cli.kept_job import submit_line
from raydist.spec.params import ParamTexts, merge_params


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
