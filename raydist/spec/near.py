"""What was meant, for messages about names that do not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggest(name: str, names: Iterable[str]) -> str:
    """Returns `did you mean mirrored?` when a name is near, else `write one of a, b, c`."""
    known = list(names)
    by_folded = {each.casefold(): each for each in known}
    near = difflib.get_close_matches(name.casefold(), by_folded, n=3, cutoff=0.7)
    if near:
        return f"did you mean {' or '.join(by_folded[each] for each in near)}?"
    return f"write one of {', '.join(known)}" if known else "there are none"
