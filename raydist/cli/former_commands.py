"""Former commands, which are taken as the line that does the same today."""

from __future__ import annotations

import itertools
from collections.abc import Sequence


def line_instead(command: str, arguments: Sequence[str]) -> list[str] | None:
    """Returns the words after `raydist` that do the same; None for any other command."""
    words = list(arguments)
    match command:
        case "describe":
            return ["status", *words, "--all"]
        case "checkpoints":
            return ["status", *words, "--checkpoints"]
        case "scale":
            return ["compare", *words]
        case "verify":
            asks = any(word.partition("=")[0] == "--workers" for word in words)
            words = [word.replace("--workers", "--verify", 1) for word in words]
            return ["reproduce", *words] if asks else ["reproduce", *words, "--verify"]
        case "report":
            return ["download", *_page_and_file(words)]
        case "completion":
            return ["--completion", *words]
    return None


def _page_and_file(arguments: Sequence[str]) -> list[str]:
    """Returns what is left without -o or --output, then `page` and that option's file."""
    words: list[str] = []
    file: list[str] = []
    ahead = iter(arguments)
    for word in ahead:
        flag, equals, value = word.partition("=")
        if flag in ("-o", "--output"):
            file = [value] if equals else [*itertools.islice(ahead, 1)]
        elif word.startswith("-o"):
            file = [word.removeprefix("-o")]
        else:
            words.append(word)
    return [*words, "page", *file]
