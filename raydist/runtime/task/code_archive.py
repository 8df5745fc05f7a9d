"""The user's code as bytes: how the working directory travels to every host, and the copy on storage.

The copy leaves out secrets, and data that .gitignore names.
"""

from __future__ import annotations

import functools
import io
import os
import re
import stat
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from raydist.errors import MistakeError, StorageError
from raydist.runtime.host.scratch import Scratch
from raydist.runtime.host.task_files import is_bytecode, is_product, is_tools_folder, top_of
from raydist.spec.quantities import size_text
from raydist.storage.limits import MAX_CODE_BYTES

IGNORE_FILE = ".raydistignore"
MAX_BYTES = MAX_CODE_BYTES
# An archive of this size is noted: it has data in it, or what is not needed.
NOTED_BYTES = 10 * 10**6
# What has less of it is not worth a name.
_LARGE_SHARE = 0.1

# Zip knows no earlier date; a fixed one makes equal code equal bytes.
_EPOCH = (1980, 1, 1, 0, 0, 0)


def pack(working_dir: Path) -> bytes:
    """Returns the files below `working_dir` as a zip; the same files give the same bytes.

    Left out are version control, caches, virtual environments, run folders, what raydist makes of runs beside
    them (RUN-code, RUN.html), and what `.raydistignore` names, with the patterns of .gitignore: `name`,
    `folder/`, `/from/the/top`, `src/*.ckpt`, `a/**/b`, `!but/not/this`.

    Raises:
      MistakeError: `working_dir` is not a folder or holds more than 100 MB, or a pattern is not valid.
    """
    if not working_dir.is_dir():
        raise MistakeError(f"working_dir is {str(working_dir)!r}, which is not a folder")
    try:
        return _zip(working_dir)
    except (OSError, UnicodeError) as error:
        raise MistakeError(
            f"working_dir {working_dir} cannot be packed: {error}; "
            f"list what is not code in {IGNORE_FILE} (UTF-8), or give another folder with --working-dir"
        ) from error


def _zip(working_dir: Path) -> bytes:
    paths = sorted(_files_within_limit(working_dir), key=str)
    buffer = io.BytesIO()
    # Level 1: a launch waits for it, and code is small.
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path in paths:
            entry = zipfile.ZipInfo(path.relative_to(working_dir).as_posix(), date_time=_EPOCH)
            entry.external_attr = (stat.S_IFREG | (0o755 if os.access(path, os.X_OK) else 0o644)) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())
    return buffer.getvalue()


def size_note(data: bytes) -> str | None:
    """Returns what of the code makes its archive large; None unless it is."""
    if len(data) < NOTED_BYTES:
        return None
    num_bytes_by_entry: Counter[str] = Counter()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for entry in archive.infolist():
            num_bytes_by_entry[top_of(entry.filename)] += entry.compress_size
    first, *others = num_bytes_by_entry.most_common(3)
    large = [first, *(one for one in others if one[1] >= _LARGE_SHARE * len(data))]
    return (
        f"the code that travels to each host takes {size_text(len(data))}, of which "
        f"{', '.join(f'{name} {size_text(num_bytes)}' for name, num_bytes in large)}; "
        f"list what is not code in {IGNORE_FILE}"
    )


def unpack(data: bytes, folder: Path) -> None:
    """Writes what `pack` returned into `folder`, making it."""
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for entry in archive.infolist():
            # extractall would forget which files can be run.
            os.chmod(archive.extract(entry, folder), (entry.external_attr >> 16) & 0o777)


def unpack_for_task(code: bytes | None, scratch: Scratch, *, host: str) -> Path | None:
    """Unpacks the code into the folder of a task, and returns where it is; None where none travelled.

    Raises:
      StorageError: It cannot be written, such as on a full disk.
    """
    if code is None:
        return None
    folder = scratch.code_path
    try:
        unpack(code, folder)
    except OSError as error:
        raise StorageError(
            f"host {host} cannot unpack the job's code into {folder}: {error.strerror}; "
            "free some space there, or point TMPDIR on that host to another disk"
        ) from error
    return folder


def _files_within_limit(working_dir: Path) -> Iterator[Path]:
    num_bytes_by_entry: Counter[str] = Counter()
    for path in _files(working_dir):
        num_bytes_by_entry[path.relative_to(working_dir).parts[0]] += path.stat().st_size
        if num_bytes_by_entry.total() > MAX_BYTES:
            # Stopping here keeps a home folder from being read to its end just to be refused.
            raise _too_large(working_dir, num_bytes_by_entry)
        yield path


def _too_large(working_dir: Path, num_bytes_by_entry: Counter[str]) -> MistakeError:
    largest = ", ".join(
        f"{name} ({num_bytes / 2**20:.0f} MB)" for name, num_bytes in num_bytes_by_entry.most_common(3)
    )
    return MistakeError(
        f"working_dir {working_dir} holds more than {MAX_BYTES // 2**20} MB, most of it in {largest}; "
        f"list what is not code in {working_dir / IGNORE_FILE}, or give a smaller folder with --working-dir"
    )


def _files(working_dir: Path) -> Iterator[Path]:
    patterns = _read_patterns(working_dir / IGNORE_FILE)
    seen = {working_dir.resolve()}
    # Links are followed, as an import does on the driver.
    for parent, folders, names in os.walk(working_dir, followlinks=True):
        here = Path(parent)
        folders[:] = sorted(
            name for name in folders if _is_wanted_folder(here / name, working_dir, patterns, seen)
        )
        for name in names:
            path = here / name
            relative = path.relative_to(working_dir).as_posix()
            is_ignored = is_bytecode(name) or is_product(name) or ignore_verdict(relative, patterns)
            if not is_ignored and path.is_file():
                yield path


def _is_wanted_folder(
    folder: Path, working_dir: Path, patterns: Sequence[GitIgnoreSpecPattern], seen: set[Path]
) -> bool:
    if is_tools_folder(folder):
        return False
    target = folder.resolve()
    if target in seen:
        return False  # a link back up would never end
    seen.add(target)
    return not ignore_verdict(f"{folder.relative_to(working_dir).as_posix()}/", patterns)


def _read_patterns(ignore_file: Path) -> list[GitIgnoreSpecPattern]:
    def refuse(number: int, line: str, error: ValueError) -> None:
        raise MistakeError(
            f"{ignore_file}, line {number}: {line!r} is not a .gitignore pattern; fix or remove the line"
        ) from error

    return parse_patterns(ignore_file.read_text(encoding="utf-8") if ignore_file.is_file() else "", refuse)


def parse_patterns(
    text: str, on_error: Callable[[int, str, ValueError], None] = lambda number, line, error: None
) -> list[GitIgnoreSpecPattern]:
    """Returns the patterns of a .gitignore's text; `on_error` gets the lines that are none."""
    patterns = []
    for number, line in enumerate(text.splitlines(), start=1):
        # To pathspec `data/**` also matches the folder `data/`; to git only its content, like `data/**/*`.
        written = re.sub(r"(?<![^/!])\*\*(?=/?\s*$)", "**/*", line)
        try:
            patterns.append(GitIgnoreSpecPattern(written))
        except ValueError as error:
            on_error(number, line, error)
    return patterns


def ignore_verdict(relative: str, patterns: Sequence[GitIgnoreSpecPattern]) -> bool | None:
    """Whether the last pattern that matches `relative`, which ends with `/` for a folder, ignores it.

    None where no pattern matches.

    A pattern that matches a folder above it does not count: ignored folders are not walked into, and a
    folder that `!` keeps may hold files that another pattern ignores.
    """
    for pattern in reversed(patterns):
        found = pattern.match_file(relative)
        if found is None:
            continue
        end = found.match.end()  # behind the slash of the folder that it matched
        if end == len(relative) or relative[end - 1] != "/":
            return bool(pattern.include)
    return None


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
