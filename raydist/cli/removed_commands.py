"""Commands that raydist no longer has, each with the line that does the same."""

from __future__ import annotations

from collections.abc import Sequence


def line_instead(command: str, arguments: Sequence[str]) -> list[str] | None:
    """Returns the words after `raydist` that do the same; None for a command that never was."""
    words = list(arguments)
    match command:
        case "describe":
            return ["status", *words, "--all"]
        case "checkpoints":
            return ["status", *words, "--checkpoints"]
        case "scale":
            return ["compare", *words]
        case "verify":
            return ["reproduce", *(word.replace("--workers", "--verify", 1) for word in words)]
        case "report":
            for flag in {"-o", "--output"}.intersection(words):
                at = words.index(flag)
                words[at : at + 2] = []
                return ["download", *words, "page", *arguments[at + 1 : at + 2]]
            return ["download", *words, "page"]
        case "completion":
            return ["--completion", *words]
    return None
