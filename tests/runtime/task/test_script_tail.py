"""What is read of a script's output, as the spool grows."""

from __future__ import annotations

from pathlib import Path

import pytest

from raydist.outcome.printed import OutputSpan, Printed
from raydist.runtime.task.script_tail import ScriptTail
from tests.support.fakes import task

BEFORE, AFTER = b"import\n", b"Traceback\n"
BAR = "  0%|    |\r 50%|##  |\r100%|####|"


class Spool:
    """A spool that a script prints to, and what is read of it."""

    def __init__(self, folder: Path, *, max_bytes: int = 1000) -> None:
        self._path = folder / "log"
        self._path.write_bytes(BEFORE)
        self._max_bytes = max_bytes
        self.tail = ScriptTail(self._path, task("worker/1"))
        assert self.read() == (Printed(task=task("worker/1")),)

    def prints(self, content: str) -> None:
        with self._path.open("a") as file:
            file.write(content)

    def read(self, *, is_over: bool = False) -> tuple[Printed, ...]:
        end = self._path.stat().st_size
        if is_over:
            self.prints(AFTER.decode())
        span = OutputSpan(start=len(BEFORE), end=end, is_over=is_over)
        return self.tail.read(span, max_bytes=self._max_bytes)

    def lines(self, *, is_over: bool = False) -> list[str]:
        return [line.text for part in self.read(is_over=is_over) for line in part.lines]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        pytest.param(["a\nb\n"], ["a", "b"], id="lines"),
        pytest.param(["a", "b\n", "c"], ["ab", "c"], id="parts of a line"),
        pytest.param(["a\r\n\n"], ["a", ""], id="line ends of Windows"),
        pytest.param([f"\r{BAR}\nb\n"], ["100%|####|", "b"], id="bar"),
        pytest.param([BAR[:6], BAR[6:12], BAR[12:], "\n"], ["100%|####|"], id="bar in parts"),
        pytest.param(["1%\r", "2%\r", "\n"], ["2%"], id="bar that is left at its beginning"),
        pytest.param(["x" * 20_000], ["x" * 16384 + " …"], id="long line"),
        pytest.param(
            ["outer\n\rinner 1\x1b[A", "\n\rinner 2\x1b[A\n\n"], ["outer", "inner 2"], id="two bars"
        ),
    ],
)
def test_lines_are_read_as_a_terminal_shows_them(
    tmp_path: Path, parts: list[str], expected: list[str]
) -> None:
    spool, found = Spool(tmp_path, max_bytes=100_000), []
    for part in parts:
        spool.prints(part)
        found += spool.lines()
    assert found + spool.lines(is_over=True) == expected


def test_bar_is_told_from_other_lines(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.prints(f"a\r\n{BAR}\nb\n")
    [printed] = spool.read()
    assert [line.is_redrawn for line in printed.lines] == [False, True, False]


def test_script_that_prints_too_fast_is_counted_until_it_is_quiet(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_bytes=100)
    spool.prints("first\n" + "".join(f"{number:04}\n" for number in range(1000)))
    [flood] = spool.read()
    assert [line.text for line in flood.lines[:2]] == ["first", "0000"]
    spool.prints("more\n" * 100)
    [rest] = spool.read()
    assert rest.lines == ()
    [last] = spool.read()
    assert [line.text for line in last.lines] == ["more"] * 10
    assert len(flood.lines) + flood.num_left_out + rest.num_left_out + len(last.lines) == 1101
    spool.prints("quiet\n")
    assert spool.lines() == ["quiet"]
    spool.prints("x\n" * 100)
    kept, end = spool.read(is_over=True)
    assert (len(kept.lines), kept.num_left_out, len(end.lines)) == (50, 40, 10)


def test_spool_that_is_gone_has_no_lines(tmp_path: Path) -> None:
    tail = ScriptTail(tmp_path / "log", task("worker/0"))
    assert not [part.lines for part in tail.read(OutputSpan(start=0, end=9), max_bytes=9) if part.lines]
