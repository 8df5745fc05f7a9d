from __future__ import annotations

import pytest

from raydist.spec.text import coloured_line, escaped, without_colours, without_sequences

TITLE = "\x1b]0;owned\x07"
CLEAR = "\x1b[2J\x1b[H"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("a\x1b[31mred", r"a\x1b[31mred", id="colour"),
        pytest.param(TITLE, r"\x1b]0;owned\x07", id="title"),
        pytest.param("true\rfalse\x08", r"true\x0dfalse\x08", id="written-over"),
        pytest.param("\x9b2J\x7f", r"\x9b2J\x7f", id="eight-bits"),
        pytest.param("a\tb\nĉ ✓", "a\tb\nĉ ✓", id="text"),
        pytest.param(r"C:\x1b", r"C:\x1b", id="escaped-before"),
        pytest.param("a\u202egpj.exe", r"a\u202egpj.exe", id="direction"),
    ],
)
def test_control_characters_are_written_out(text: str, shown: str) -> None:
    assert escaped(text) == shown


def test_colours_alone_are_left_out_of_messages() -> None:
    text = f"calling \x1b[1mDense.call()\x1b[0m: \x1b[38;5;4mno{CLEAR}"
    assert without_colours(text) == f"calling Dense.call(): no{CLEAR}"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        pytest.param(f"a{TITLE}b{CLEAR}c", "abc", id="title-and-clear"),
        pytest.param("a\x1bPq#0\x1b\\b\x1b(0c\x1b7d\x1bce", "abcde", id="other-escapes"),
        pytest.param("\x1b]0;open\nnext", "\nnext", id="string-that-does-not-end"),
        pytest.param("\x1b[1m 1/10\x1b[0m loss\x08\x08", " 1/10 loss", id="keras-bar"),
        pytest.param("10%\r20%\r30%\nend\r\n", "30%\nend\n", id="written-over"),
        pytest.param("\x9b31mx\x9d0;t\x9cy\x85", "xy", id="eight-bits"),
    ],
)
def test_sequences_are_left_out_of_excerpts(text: str, left: str) -> None:
    assert without_sequences(text) == left


@pytest.mark.parametrize(
    ("line", "left"),
    [
        pytest.param("\x1b[32mgreen\x1b[0m", "\x1b[32mgreen\x1b[0m", id="reset"),
        pytest.param("\x1b[8mhidden", "\x1b[8mhidden\x1b[0m", id="left-on"),
        pytest.param(f"{TITLE}\x1b[32mg{CLEAR}\x1b[m", "\x1b[32mg\x1b[m", id="others-dropped"),
        pytest.param("plain", "plain", id="plain"),
    ],
)
def test_line_of_a_log_keeps_colours_alone(line: str, left: str) -> None:
    assert coloured_line(line) == left
