"""The copy of a run's code that stays on storage: without secrets and data that .gitignore names."""

from __future__ import annotations

import functools
import io
import zipfile
from collections.abc import Collection
from pathlib import Path

from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from raydist.runtime.task.code_archive import ignore_verdict, parse_patterns


def omitted_from_copy(code: bytes, working_dir: Path, *, env_file: str | None) -> tuple[str, ...]:
    """Returns the packed files that the copy leaves out: those that .gitignore names, and `env_file`.

    Args:
      env_file: The file that `--env-file` names, which often holds secrets.
    """
    omitted = ignored_by_git(code, working_dir)
    if env_file is None or not Path(env_file).resolve().is_relative_to(working_dir.resolve()):
        return omitted
    own = Path(env_file).resolve().relative_to(working_dir.resolve()).as_posix()
    return tuple(sorted({*omitted, own}))


def ignored_by_git(code: bytes, working_dir: Path) -> tuple[str, ...]:
    """Returns the packed files that .gitignore names, sorted; of a folder its name alone, with `/`.

    Files named .gitignore count up to the top of the repository, and its .git/info/exclude. git itself is not
    needed. Patterns that git cannot read are passed over, as git does.
    """
    top = next((one for one in (working_dir, *working_dir.parents) if (one / ".git").exists()), working_dir)

    @functools.cache
    def patterns_of(folder: Path) -> list[GitIgnoreSpecPattern]:
        files = [folder / ".gitignore"] + ([folder / ".git/info/exclude"] if folder == top else [])
        texts = [file.read_text(encoding="utf-8", errors="replace") for file in files if file.is_file()]
        # The last one that matches decides, and a .gitignore counts more than the repository's exclude.
        return [pattern for text in reversed(texts) for pattern in parse_patterns(text)]

    @functools.cache
    def is_ignored(path: Path, is_folder: bool) -> bool:
        for folder in path.parents:
            relative = path.relative_to(folder).as_posix() + ("/" if is_folder else "")
            verdict = ignore_verdict(relative, patterns_of(folder))
            if verdict is not None or folder == top:
                return bool(verdict)
        return False

    def ignored_part(name: str) -> str | None:
        for folder in reversed(Path(name).parents[:-1]):
            if is_ignored(working_dir / folder, True):
                return f"{folder.as_posix()}/"
        return name if is_ignored(working_dir / name, False) else None

    with zipfile.ZipFile(io.BytesIO(code)) as archive:
        parts = {ignored_part(name) for name in archive.namelist()}
    return tuple(sorted(part for part in parts if part is not None))


def without(code: bytes, omitted: Collection[str]) -> bytes:
    """Returns the archive without those files and folders; the same bytes where there are none."""
    if not omitted:
        return code
    files = set(omitted)
    folders = tuple(name for name in omitted if name.endswith("/"))
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(code)) as archive, zipfile.ZipFile(buffer, "w") as kept:
        for entry in archive.infolist():
            if entry.filename not in files and not entry.filename.startswith(folders):
                kept.writestr(entry, archive.read(entry), zipfile.ZIP_DEFLATED, compresslevel=1)
    return buffer.getvalue()
