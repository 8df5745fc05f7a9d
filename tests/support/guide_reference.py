"""Parts of the documents that are made from code; `python -m tests.support.guide_reference` writes them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from raydist.cli import job_options, main
from raydist.spec.settings.option import Option, OptionKind
from raydist.spec.settings.options import GROUPS
from tests.support.guide import FOLDER, ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

COMMANDS = FOLDER / "commands.md"
COMPARED = ROOT / "docs" / "compared.md"
# The columns of compared.md, and who else is in compared.toml.
COLUMNS = {"RT": "Ray Train", "TFJ": "TFJob", "TF": "TensorFlow alone"}
OTHERS = ("rtf", "ToS", "yarn", "TonY", "spk", "hvd", "Orca", "DLR")
_PAGE = re.compile(r"`raydist guide ([\w-]+)`")


@dataclass(frozen=True)
class Part:
    """A table or list of a page.

    Attributes:
      page: The page's file.
      begin: How its lines in the page begin, which no other lines of that page do, as a regular expression.
      lines: What the code says that it is.
    """

    page: Path
    begin: str
    lines: tuple[str, ...]

    def written(self) -> str:
        """Returns the page with this part as the code has it."""
        text = self.page.read_text()
        pattern = rf"^{self.begin}.*\n(?:\|.*\n|{self.begin}.*\n)*"
        new, count = re.subn(pattern, lambda _: "\n".join(self.lines) + "\n", text, flags=re.MULTILINE)
        assert count == 1, f"{self.page.name} has {self.begin!r} {count} times"
        return new


def parts() -> list[Part]:
    return [
        Part(COMMANDS, r"- \[?`\w+`(?:\]\S+)?: ", tuple(_commands())),
        Part(COMMANDS, r"- \*\*[^*]+\*\*: `-", tuple(_options())),
        Part(COMPARED, r"\| feature \|", tuple(_compared())),
    ]


@dataclass(frozen=True, kw_only=True)
class Feature:
    """A feature that a runner of distributed TensorFlow may have.

    Attributes:
      ids: The row's names in the list that the features come from.
      raydist: Whether raydist has it.
      remark: What it lacks; empty if there is nothing to say.
      peers: The short names of those that have all of it.
      test: The test that shows it, as pytest names it.
    """

    ids: list[str]
    feature: str
    raydist: str
    remark: str = ""
    peers: str = ""
    test: str


def features() -> dict[str, list[Feature]]:
    """Returns the features of compared.toml by the names of their groups."""
    tables = tomllib.loads((ROOT / "tests" / "support" / "compared.toml").read_text())
    return {group: [Feature(**row) for row in rows] for group, rows in tables.items()}


def _commands() -> Iterator[str]:
    top = click.Context(main.cli, info_name="raydist")
    for name in main.cli.list_commands(top):
        command = main.cli.get_command(top, name)
        pages = [page for page in _PAGE.findall(command.epilog or "") if page != "commands"]
        linked = f"[`{name}`]({pages[0]}.md)" if pages else f"`{name}`"
        yield f"- {linked}: {main.first_sentence(command.help)}"


def _options() -> Iterator[str]:
    for group, options in GROUPS.items():
        yield f"- **{group.partition(' (')[0]}**: {', '.join(f'`{_shown(option)}`' for option in options)}"


def _shown(option: Option) -> str:
    if option.kind is OptionKind.AMOUNTS:
        return "`, `".join(f"--{amount} {metavar}" for amount, (metavar, _) in job_options.AMOUNTS.items())
    if option.kind is OptionKind.MAPPING:
        return f"{option.name}:"
    return f"{option.flag} {option.metavar}".rstrip()


def _compared() -> Iterator[str]:
    yield f"| feature | raydist | {' | '.join(COLUMNS.values())} | test |"
    yield "|---" * (len(COLUMNS) + 3) + "|"
    for group, rows in features().items():
        yield f"| **{group}** |" + " |" * (len(COLUMNS) + 2)
        for row in rows:
            state = f"{row.raydist} ({row.remark})" if row.remark else row.raydist
            others = ["yes" if peer in row.peers.split() else "" for peer in COLUMNS]
            path = row.test.partition("::")[0]
            test = f"[{path.removeprefix('tests/').removesuffix('.py')}](../{path})"
            cells = [row.feature, state, *others, test]
            yield "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)


if __name__ == "__main__":
    for part in parts():
        part.page.write_text(part.written())
