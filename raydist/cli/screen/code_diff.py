"""The files in which the kept code of two runs differs, as unified diffs."""

from __future__ import annotations

import difflib
import io
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

# difflib takes seconds for more, and nobody reads it.
_MAX_BYTES = 256 << 10


@dataclass(frozen=True, kw_only=True)
class FileDifference:
    """A file that two runs have not alike.

    Attributes:
      diff: The unified diff; None where a file is not text, or too large to compare by lines.
    """

    name: str
    diff: str | None


def compare_code(left: bytes, right: bytes, *, runs: tuple[str, str]) -> list[FileDifference]:
    """Returns the files that differ between two zips, or are in one of them only, by name."""
    archives = [zipfile.ZipFile(io.BytesIO(code)) for code in (left, right)]
    before, after = ({entry.filename: entry for entry in archive.infolist()} for archive in archives)
    found = []
    for name in sorted({*before, *after}):
        if _sum(before.get(name)) != _sum(after.get(name)):
            texts = [_text(archives[0], before, name), _text(archives[1], after, name)]
            found.append(FileDifference(name=name, diff=_diff(texts, name, runs)))
    return found


def diff_lines(differences: list[FileDifference]) -> Iterator[str]:
    """Yields what a person reads of them."""
    for one in differences:
        if one.diff is None:
            yield f"{one.name} differs; it is not text, or larger than {_MAX_BYTES >> 10} KiB"
        else:
            yield one.diff or f"{one.name} differs in the ends of its lines only"


def _sum(entry: zipfile.ZipInfo | None) -> tuple[int, int] | None:
    return None if entry is None else (entry.CRC, entry.file_size)


def _text(archive: zipfile.ZipFile, entries: Mapping[str, zipfile.ZipInfo], name: str) -> str | None:
    """Returns a file's text, "" where it does not exist; None where it is not to be compared by lines."""
    if name not in entries:
        return ""
    if entries[name].file_size > _MAX_BYTES:
        return None
    try:
        text = archive.read(name).decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _diff(texts: list[str | None], name: str, runs: tuple[str, str]) -> str | None:
    if None in texts:
        return None
    left, right = ((text or "").splitlines() for text in texts)
    before, after = (f"{run}/{name}" for run in runs)
    return "\n".join(difflib.unified_diff(left, right, before, after, lineterm=""))
