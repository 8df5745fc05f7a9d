"""A job's own source: its file and the modules of its own that it imports, parsed and not run."""

from __future__ import annotations

import ast
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MOST_MODULES = 500
_RAYDIST = Path(__file__).parents[1]
# Python up to 3.12 counts the depth of all threads' trees in one number.
_PARSING = threading.Lock()


@dataclass(frozen=True)
class Part:
    """A piece of source that messages can name: a file, or a cell of a notebook.

    Attributes:
      mentions_keras: Whether it has the word at all.
    """

    shown: str
    tree: ast.Module
    mentions_keras: bool = True


def parse(source: str | bytes, *, filename: str = "<unknown>") -> ast.Module:
    """Parses source, also where several threads do, such as those that each submit a run."""
    with _PARSING:
        return ast.parse(source, filename=filename)


def imported_by(node: ast.AST) -> Iterator[tuple[str, int]]:
    """Yields the modules that a statement names, with the level of a relative import."""
    match node:
        case ast.Import(names=names):
            yield from ((alias.name, 0) for alias in names)
        case ast.ImportFrom(module=module, names=names, level=level):
            if module is not None:
                yield module, level
            yield from (
                (alias.name if module is None else f"{module}.{alias.name}", level) for alias in names
            )


def own_modules(parts: Sequence[Part], *, file: Path | None, roots: Sequence[Path]) -> Iterator[Part]:
    """Yields the modules below `roots` that the parts import, and those that these import.

    raydist's own are none of them, where a job is run in a checkout of it.
    """
    seen = set() if file is None else {file}
    ahead = [(part.tree, file) for part in parts]
    while ahead and len(seen) < _MOST_MODULES:
        tree, place = ahead.pop(0)
        for node in _statements(tree):
            for name, level in imported_by(node):
                starts = roots if level == 0 else [] if place is None else [*place.parents[level - 1 : level]]
                for found in (one for root in starts for one in _files_of(name, root)):
                    if found in seen or found.is_relative_to(_RAYDIST):
                        continue
                    seen.add(found)
                    if (part := _parsed(found, roots)) is not None:
                        ahead.append((part.tree, found))
                        yield part


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yields the statements, also those inside others, without looking into their expressions."""
    found: list[Any] = [tree]
    for node in found:  # which grows
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            found += getattr(node, name, ())
        yield node


def _files_of(module: str, root: Path) -> Iterator[Path]:
    """Yields the files that an import of a module runs, its packages' included, as far as they exist."""
    place = root
    for name in module.split("."):
        place = place / name
        for file in (place / "__init__.py", place.with_name(f"{name}.py")):
            if file.is_file():
                yield file


def _parsed(file: Path, roots: Sequence[Path]) -> Part | None:
    base = next((one for one in roots if file.is_relative_to(one)), file.parent)
    try:
        source = file.read_bytes()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = parse(source)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # if it matters, it fails in the task, with its place
    mentions_keras = b"keras" in source.lower()
    return Part(file.relative_to(base).as_posix(), tree, mentions_keras)
