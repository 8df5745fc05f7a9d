"""Text for people: counts, spelling suggestions, text made safe for a terminal, and small tables of HTML.

A name, a note or a log may contain control sequences, which could change a terminal's title, clear it, or
overwrite what raydist printed.
"""

from __future__ import annotations

import difflib
import html
import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

_Value = TypeVar("_Value")
# Begins a note that asks nothing of the user. `status --all` and JSON have it, other views leave it out.
DETAIL = "detail: "


def counted(number: float, noun: str) -> str:
    """Returns `1 worker`, or `2 workers`."""
    shown = f"{number:g}" if isinstance(number, float) else str(number)
    return f"{shown} {noun}{'' if number == 1 else 's'}"


def of_total(count: int, total: int | None) -> str:
    """Returns `340/1200`; without a total that is known `340`."""
    return str(count) if total is None else f"{count}/{total}"


def listed(words: Iterable[object], *, most: int = 8) -> str:
    """Returns `a, b, c`, cut short where there are many: `a, b and 7 more`."""
    texts = [str(word) for word in words]
    more = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {more} more" if more > 0 else "")


def suggest(name: str, names: Iterable[str]) -> str:
    """Returns `did you mean mirrored?` when a name is near, else `write one of a, b, c`."""
    known = list(names)
    if near := nearest(name, known):
        return f"did you mean {' or '.join(near)}?"
    return f"write one of {', '.join(known)}" if known else "there are none"


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """Returns the names that may have been meant, of which there may be none."""
    by_folded = {each.casefold(): each for each in names}
    near = difflib.get_close_matches(name.casefold(), by_folded, n=3, cutoff=0.7)
    return [by_folded[each] for each in near]


# In a task's scratch folder, `raydist-0/RUN-0-worker-1-56b0cf96-0`, below any temporary folder.
_COPY = re.compile(r"/raydist-\d{1,10}/[^/\s'\"]{1,255}-\d+-[0-9a-f]{8}-\d+/code/(?=[^\s'\"])")
# A folder's name may have spaces, and then ends as names do, not as a sentence before a path: `3/4 (`.
_WORD = r"[^/\s'\"]+"
_FOLDER = re.compile(rf"{_WORD}(?:(?: {_WORD}){{1,8}}(?<=[\w.-]))?")


def as_submitted(text: str) -> str:
    """Returns `text` with the job's files as seen from the folder that was submitted: `prog.py:53`.

    The same sentence then comes from every task. Linear in the text, which may be anybody's.
    """
    if "/code/" not in text:
        return text
    kept, end = [], 0
    for found in _COPY.finditer(text):
        start = found.start()
        while (slash := text.rfind("/", end, start)) >= 0 and _FOLDER.fullmatch(text, slash + 1, start):
            start = slash
        if start < found.start():
            kept.append(text[end:start])
            end = found.end()
    return "".join([*kept, text[end:]])


_COLOUR = r"\x1b\[[0-9;:]*m"
_RESET = "\x1b[0m"
# ECMA-48: CSI with its parameters, the strings (OSC, DCS, SOS, PM, APC) with their text, any other escape,
# and single controls but for tab and line feed. Then Unicode's, which change the order of what follows.
_SEQUENCE = (
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)
# Marks that change the direction of what follows, which could then be read as something else.
_DIRECTIONS = r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_CONTROL = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{_DIRECTIONS}]")
_COLOURS = re.compile(_COLOUR)
_SEQUENCES = re.compile(_SEQUENCE)
_COLOURS_OR_SEQUENCES = re.compile(f"(?P<colour>{_COLOUR})|{_SEQUENCE}")


def escaped(text: str) -> str:
    r"""Returns `text` with each control character but tab and line feed written out: `\x1b`, `\u202e`."""

    def written(found: re.Match[str]) -> str:
        number = ord(found[0])
        return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"

    return _CONTROL.sub(written, text)


def without_colours(text: str) -> str:
    """Returns `text` without the colours and styles that libraries, such as Keras, put into messages."""
    return _COLOURS.sub("", text)


def without_sequences(text: str) -> str:
    """Returns `text` without any control sequence."""
    return "\n".join(_SEQUENCES.sub("", _last_drawn(line)) for line in text.split("\n"))


def coloured_line(line: str) -> str:
    """Returns a line of a log with its colours, which end with it, and without any other control sequence."""
    kept = _COLOURS_OR_SEQUENCES.sub(lambda found: found["colour"] or "", _last_drawn(line))
    colours = _COLOURS.findall(kept)
    return kept if not colours or colours[-1] in (_RESET, "\x1b[m") else kept + _RESET


def _last_drawn(line: str) -> str:
    """Returns what a terminal shows of a line that was written over, as progress bars do."""
    return next((part for part in reversed(line.split("\r")) if part), "")


def facts_html(title: str, facts: Iterable[tuple[str, object]]) -> str:
    """Returns a table of names and values, escaped; a value that is None or empty has no row."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
        f"<td style='text-align:left'>{html.escape(str(value))}</td></tr>"
        for name, value in facts
        if value not in (None, "", (), {})
    )
    return f"<div><b>{html.escape(title)}</b><table>{rows}</table></div>"


def loss_first(values: Mapping[str, _Value]) -> list[tuple[str, _Value]]:
    """Returns the values by name: behind the loss, as the train function reported them."""
    return sorted(values.items(), key=lambda item: item[0] != "loss")


def metrics_text(metrics: Mapping[str, float]) -> str:
    """Returns `loss 0.3112, accuracy 0.89`."""
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
