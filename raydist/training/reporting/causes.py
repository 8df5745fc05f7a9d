"""The one line of an error that says what went wrong, without what AutoGraph and Keras write around it."""

from __future__ import annotations

from raydist.spec.text import without_colours

_OF_AUTOGRAPH = "in user code:"
_OF_KERAS = "Exception encountered when calling"


def cause_of(error: BaseException) -> str:
    """Returns the error's type and the first line of what was raised in the user's code."""
    name = type(error).__name__
    told = _first_told([line for line in without_colours(str(error)).splitlines() if line.strip()])
    if not told:
        return name
    return told if told.startswith(f"{name}:") else f"{name}: {told}"


def _first_told(lines: list[str]) -> str:
    """Returns the first line that is neither a wrapper's nor of the frames that AutoGraph lists."""
    frame_indent = None
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if line.lstrip().startswith('File "'):
            frame_indent = indent
        elif frame_indent is not None and indent > frame_indent:  # the source of a frame
            continue
        elif line.strip() != _OF_AUTOGRAPH and _OF_KERAS not in line:
            return line.strip()
        else:
            frame_indent = None
    return lines[0].strip() if lines else ""
