"""What a script finds in place of a terminal, and how its task tells where its output is."""

from __future__ import annotations

import getpass
import os
import tempfile
from collections.abc import Callable

import pytest

from raydist.outcome.printed import OutputSpan
from raydist.training.reporting.progress import TaskProgress, say
from raydist.training.reporting.script_terminal import without_terminal
from tests.support.fakes import task


@pytest.mark.parametrize("ask", [lambda: input("name? "), lambda: getpass.getpass("name? ")])
def test_input_is_refused_with_the_remedy(ask: Callable[[], str]) -> None:
    with without_terminal(given=()), pytest.raises(EOFError, match=r"input \('name\? '\).* no terminal.* --"):
        ask()


def test_plots_are_drawn_into_files_unless_the_job_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    with without_terminal(given=["MPLBACKEND"]):
        assert os.environ["MPLBACKEND"] == "module://matplotlib_inline.backend_inline"
    with without_terminal(given=()):
        assert os.environ["MPLBACKEND"] == "Agg"


def test_output_is_what_is_printed_in_the_block(capfd: pytest.CaptureFixture[str]) -> None:
    progress = TaskProgress(task("worker/0"))
    start = os.lseek(1, 0, os.SEEK_END)
    os.write(1, b"import\n")
    assert progress.status().output is None
    with progress.prints_output():
        assert progress.status().output == OutputSpan(start=start + 7, end=start + 7)
        os.write(1, b"a\n")
        assert progress.status().output == OutputSpan(start=start + 7, end=start + 9)
        os.write(1, b"b")
    os.write(1, b"Traceback\n")
    assert progress.status().output == OutputSpan(start=start + 7, end=start + 10, is_over=True)


def test_sentence_of_raydist_begins_a_line(capfd: pytest.CaptureFixture[str]) -> None:
    with capfd.disabled(), tempfile.TemporaryFile() as log:
        before = os.dup(1)
        os.dup2(log.fileno(), 1)
        try:
            say("one")
            os.write(1, b"epoch 0")
            say("two")
        finally:
            os.dup2(before, 1)
            os.close(before)
        log.seek(0)
        assert log.read() == b"raydist: one\nepoch 0\nraydist: two\n"
