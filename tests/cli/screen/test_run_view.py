"""What of a run's record is shown in red."""

from __future__ import annotations

import io

import pytest

from raydist.cli.screen import output, run_view


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("note: not finite after step 3: loss is nan", True),
        ("metrics     loss nan  accuracy 0.1", True),
        ("metrics     loss 0.5  val_loss inf", True),
        ("metrics     finance 0.5  nano 1", False),
        ("note: a filter is not finite", False),
    ],
)
def test_values_that_are_not_finite_are_alarming(line: str, expected: bool) -> None:
    assert run_view.is_alarming(line) is expected


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "shown"), [(_Terminal(), "\x1b[31mnan\x1b[0m\n"), (io.StringIO(), "nan\n")]
)
def test_what_is_alarming_is_red_on_a_terminal(stream: io.StringIO, shown: str) -> None:
    output.show("nan", stream=stream, is_alarming=True)
    assert stream.getvalue() == shown
