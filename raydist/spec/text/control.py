"""Control sequences of terminals in text that a run holds: a name, a note or a log may have any of them.

They could change a terminal's title, clear it, or write over what raydist printed.
"""

from __future__ import annotations

import re

_COLOUR = r"\x1b\[[0-9;:]*m"
_RESET = "\x1b[0m"
# ECMA-48: CSI with its parameters, the strings (OSC, DCS, SOS, PM, APC) with their text, any other escape,
# and single controls but for tab and line feed.
_SEQUENCE = (
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_COLOURS = re.compile(_COLOUR)
_SEQUENCES = re.compile(_SEQUENCE)
_COLOURS_OR_SEQUENCES = re.compile(f"(?P<colour>{_COLOUR})|{_SEQUENCE}")


def escaped(text: str) -> str:
    r"""Returns `text` with each control character but tab and line feed written out, as `\x1b`."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


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
