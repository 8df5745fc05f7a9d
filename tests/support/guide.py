"""What README and guide hold: code blocks, the commands in them, and what a command line parses to."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from raydist.cli import job_options, main
from raydist.spec.settings.resolution import typed_values

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "raydist" / "guide"
README = ROOT / "README.md"
PAGES = [
    README,
    *(ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(FOLDER.glob("*.md")),
]
CLUSTER_FILES = sorted(path for path in (ROOT / "cluster_configs").rglob("*") if path.is_file())

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE_CODE = re.compile(r"`([^`\n]+)`")
# At the begin of a line, of a comment's indented line, after a prompt, or as what another program is to run.
_COMMAND = re.compile(r"(?:^\s*|^\$ |^#\s{2,}|\s--\s+|(?:&&|\|\||;)\s*)raydist\s+(.*)$")
_ENTRYPOINT = re.compile(r"^ *entrypoint: >-\n((?: {4,}.*\n)+)", re.MULTILINE)


def blocks(page: Path, *languages: str) -> list[str]:
    """Returns the fenced code blocks in one of these languages."""
    return [code for language, code in FENCE.findall(page.read_text()) if language in languages]


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


def commands(page: Path) -> Iterator[list[str]]:
    """Yields the arguments of each `raydist …` in code blocks."""
    for block in blocks(page, "bash", "console"):
        yield from commands_in(block)


def commands_in(script: str) -> Iterator[list[str]]:
    """Yields the arguments of each `raydist …` in a shell script or a cluster's file, comments included."""
    script = _ENTRYPOINT.sub(lambda match: " ".join(match[1].split()) + "\n", script)
    for line in re.sub(r"\\\n#?", " ", script).splitlines():
        while match := _COMMAND.search(line):
            line = match[1]
            yield _arguments(re.split(r"&&|\|\|?|;", line)[0])


def _arguments(text: str) -> list[str]:
    """Returns the words of a command line, with values for the variables of a script."""
    words = shlex.split(text.rstrip(" \\&"), comments=True)
    return ["jobs/cifar.py" if word == "$@" else re.sub(r"\$[A-Z_]+", "4", word) for word in words]


def mentions(page: Path) -> Iterator[list[str]]:
    """Yields the arguments of each `raydist …` in the text, where the job may be left out."""
    yield from arguments_in(INLINE_CODE.findall(prose(page)))


def arguments_in(texts: Iterable[str]) -> Iterator[list[str]]:
    for text in texts:
        if text.startswith("raydist "):
            yield shlex.split(text.partition("|")[0].rstrip(" \\"), comments=True)[1:]


def parsed(arguments: list[str]) -> click.Context:
    """Parses a command line as the command does, and the values of its options. Runs nothing."""
    top = click.Context(main.cli, info_name="raydist")
    name, command, rest = main.cli.resolve_command(top, arguments)
    context = command.make_context(name, rest, parent=top)
    typed_values(job_options.given_options(context.params))
    return context
