"""Commands that are gone: what is told in their place is accepted."""

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
        ("checkpoints RUN --verify", "status RUN --verify --checkpoints"),
        ("scale job.py --workers 1,2 --plot a.svg", "compare job.py --workers 1,2 --plot a.svg"),
        ("verify RUN --workers 4 --steps 20", "reproduce RUN --verify 4 --steps 20"),
        ("verify RUN --workers=4", "reproduce RUN --verify=4"),
        ("report RUN", "download RUN page"),
        ("report --storage s RUN -o a.html", "download --storage s RUN page a.html"),
        ("report RUN --output a.html", "download RUN page a.html"),
        ("completion bash", "--completion bash"),
        ("submit job.py --dry-run --workers 2 -- --epochs 3", "plan job.py --workers 2 -- --epochs 3"),
    ],
    ids=lambda text: text.split()[0],
)
def test_command_that_is_gone_is_refused_with_the_line_that_does_the_same(
    raydist: Run, old: str, new: str
) -> None:
    assert old.split()[0] == "submit" or old.split()[0] not in main.COMMANDS
    code, out, err = raydist(*shlex.split(old))
    assert (code, out) == (2, "")
    assert f" was removed; write raydist {new} (see" in err
    if new.startswith("--"):
        assert raydist(*shlex.split(new))[0] == 0
    else:
        assert isinstance(parsed(shlex.split(new)), click.Context)


def test_line_to_write_has_no_secret(raydist: Run) -> None:
    _, _, err = raydist("describe", "RUN", "--storage", "s3://key:hush@bucket/runs")
    assert "hush" not in err
    assert "write raydist status RUN --storage " in err
