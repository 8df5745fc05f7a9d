"""Former commands do what they did, and tell the line of today."""

from __future__ import annotations

import shlex

import click
import pytest

from raydist.cli import main
from tests.cli.conftest import Run
from tests.support.guide import parsed


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("describe RUN --storage s", "status RUN --storage s --all"),
        ("checkpoints RUN --verify --json", "status RUN --verify --json --checkpoints"),
        ("scale job.py --workers 1,2 --plot a.svg", "compare job.py --workers 1,2 --plot a.svg"),
        ("verify RUN --workers 4 --steps 20", "reproduce RUN --verify 4 --steps 20"),
        ("verify RUN --workers=4", "reproduce RUN --verify=4"),
        ("report RUN", "download RUN page"),
        ("report --storage s RUN -o a.html", "download --storage s RUN page a.html"),
        ("report RUN --output a.html", "download RUN page a.html"),
        ("completion bash", "--completion bash"),
    ],
    ids=lambda text: text.split()[0],
)
def test_former_command_is_taken_as_the_line_of_today(raydist: Run, old: str, new: str) -> None:
    assert old.split()[0] not in main.COMMANDS
    code, out, err = raydist(*shlex.split(old))
    told = f"note: raydist {old.split()[0]} is now written raydist {new}\n"
    assert err.startswith(told)
    assert (code, out, err.removeprefix(told)) == raydist(*shlex.split(new))
    if not new.startswith("--"):
        assert isinstance(parsed(shlex.split(new)), click.Context)


def test_dry_run_is_refused_with_the_plan_that_does_the_same(raydist: Run) -> None:
    code, out, err = raydist("submit", "job.py", "--dry-run", "--workers", "2", "--", "--epochs", "3")
    assert (code, out) == (2, "")
    assert "was removed; write raydist plan job.py --workers 2 -- --epochs 3 (see" in err


def test_line_of_today_is_told_without_secrets(raydist: Run) -> None:
    _, _, err = raydist("describe", "RUN", "--storage", "s3://key:hush@bucket/runs")
    assert "hush" not in err
    assert "is now written raydist status RUN --storage " in err
