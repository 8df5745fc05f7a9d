"""What an editor and a type checker know of raydist.run, submit, plan and job."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import raydist
from raydist.spec.settings.decorator import RunOptions
from raydist.spec.settings.options import OPTIONS

ROOT = Path(__file__).parents[1]

# A comment is what mypy has to say of its line.
CHECKED = """
import raydist

def train(ctx: raydist.TrainContext) -> None: ...

@raydist.job(workers="2:4", timeout="2h", params={"n": 20})
def typed(ctx: raydist.TrainContext) -> None: ...

raydist.run(train, workers=2, strategy="mirrored", start_timeout="5m", keep=None, params={"n": 20})
raydist.submit("job.py", ports="20000-20099", checkpoint_every=100, on_event=print, timeout=90)
raydist.plan(typed, address="local", partitioner=None, evaluator=True, resume="auto")
raydist.run(train, wokers=2)  # Unexpected keyword argument "wokers" for "run"; did you mean "workers"?
raydist.run(train, workers=[2])  # Argument "workers" to "run" has incompatible type "list[int]"
raydist.submit(train, strategy="miror")  # Argument "strategy" to "submit" has incompatible type
raydist.plan(train, ps="many")  # Argument "ps" to "plan" has incompatible type "str"; expected "int"
raydist.plan(train, param_texts=["a=1"])  # Unexpected keyword argument "param_texts" for "plan"
raydist.job(wokers=2)  # Unexpected keyword argument "wokers" for overloaded function "job"
reveal_type(raydist.run(train).state)  # Revealed type is "raydist.outcome.status.RunState"
reveal_type(raydist.submit(train))  # Revealed type is "raydist.runs.handle.RunHandle"
reveal_type(raydist.data.from_arrays)  # Revealed type is "def (
raydist.InvalidTransitionError  # Module has no attribute "InvalidTransitionError"
"""


def test_keywords_are_the_options_with_the_types_that_they_take() -> None:
    assert get_type_hints(RunOptions) == {option.name: option.parser.takes for option in OPTIONS}


@pytest.mark.parametrize("function", [raydist.run, raydist.submit, raydist.plan])
def test_signature_shows_every_option(function: Any) -> None:
    parameters = inspect.signature(function).parameters
    assert [name for name in parameters if name in get_type_hints(RunOptions)] == [o.name for o in OPTIONS]
    assert {parameter.kind for parameter in parameters.values()} == {
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    }
    assert "param_texts" not in parameters


@pytest.mark.slow
def test_type_checker_knows_names_and_types_of_options(tmp_path: Path) -> None:
    (tmp_path / "checked.py").write_text(CHECKED)
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--follow-imports=silent"]
    done = subprocess.run(
        [*command, f"--cache-dir={tmp_path / 'cache'}", "checked.py"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    said: dict[int, str] = {}
    for line in done.stdout.splitlines():
        match = re.fullmatch(r"checked\.py:(\d+): (?:error|note): (.*)", line)
        assert match is not None, done.stdout + done.stderr
        said.setdefault(int(match[1]), match[2])
    expected = {
        number: line.partition("  # ")[2]
        for number, line in enumerate(CHECKED.splitlines(), start=1)
        if "  # " in line
    }
    assert said.keys() == expected.keys(), done.stdout
    assert [(said[n], text) for n, text in expected.items() if not said[n].startswith(text)] == []
