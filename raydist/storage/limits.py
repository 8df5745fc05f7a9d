"""What raydist reads of a storage that anyone may have written to: of what size, and of which form."""

from __future__ import annotations

import io
import json
import lzma
import os
import stat
import zipfile
import zlib
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

_MB = 2**20
# By the end of a name. JSON takes up to 30 times its size in memory; a record of 10,000 tasks has 4 MB.
_MAX_BYTES = {".json": 8 * _MB, ".jsonl": 8 * _MB, ".log": 16 * _MB, ".zip": 128 * _MB}
_MAX_OTHER_BYTES = 64 * _MB
MAX_TIME_S = 2.5e11
"""A Unix time in the year 9892: what Python's calendar can show in any time zone."""
MAX_CODE_BYTES = 100 * _MB
"""Of a run's code, unpacked."""
_MAX_CODE_FILES = 100_000
_CODE_FILE_MARK = b"PK\1\2"  # begins each entry of a zip's list of files
# raydist's own files have up to 100,000 rows. Older ones, of many values that were reported together, have up
# to nine in a byte. A row takes 50 bytes in memory, and more while it is sorted.
_MAX_ROWS_PER_BYTE = 10
_FREE_ROWS, _MAX_ROWS = 100_000, 2_000_000
# Of JSON. A value that a train function has returned is nested three times as deep as `outcome.value` allows.
_MAX_DEPTH = 200
_TOO_DEEP = "it is nested too deep"


def max_bytes(key: str) -> int:
    """Returns how large a file that is read as a whole may be."""
    return _MAX_BYTES.get(os.path.splitext(key)[1], _MAX_OTHER_BYTES)


def open_regular(path: str, *, is_inside: Callable[[str], bool], open_file: Callable[[str], Any]) -> Any:
    """Returns what `open_file` makes of a local file.

    The file is looked at after it is found, so nobody can put another one in its place. O_PATH neither waits
    for the other end of a FIFO nor does anything to a device.

    Raises:
      OSError: It is no regular file, or a link on its path leads out.
    """
    if not hasattr(os, "O_PATH"):  # no Linux: only the place is looked at
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise OSError("it is not a file")
        return open_file(path)
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        found = f"/proc/self/fd/{descriptor}"
        if not is_inside(found):
            raise OSError("a symbolic link there leads out of the storage")
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("it is not a file")
        return open_file(found)
    finally:
        os.close(descriptor)


def parse_json(content: bytes | str) -> Any:
    """Returns the value; raises ValueError for all else than JSON.

    That includes halves of characters, which no terminal takes, and what is nested too deep for whoever
    walks it.
    """
    if isinstance(content, str):
        content = content.encode(errors="surrogatepass")
    try:
        value = json.loads(content)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    # To look for either takes long for a large record.
    if content.count(b"[") + content.count(b"{") > _MAX_DEPTH:
        _check_depth(value)
    if b"\\u" in content or b"\xed" in content:
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(_MAX_DEPTH):
        inner = [one.values() if isinstance(one, dict) else one for one in level]
        level = [each for values in inner for each in values if isinstance(each, dict | list)]
        if not level:
            return
    raise ValueError(_TOO_DEEP)


def safe_name(name: str) -> str:
    """Returns `name` unless it would lead out of the folder that it is fetched into."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{name!r} leads out of the folder")
    return name


def check_rows(num_rows: int, *, num_bytes: int) -> None:
    """Raises ValueError for a Parquet file that has far more rows than its size lets expect."""
    if num_rows > min(_MAX_ROWS, _FREE_ROWS + _MAX_ROWS_PER_BYTE * num_bytes):
        raise ValueError(f"it has {num_rows} rows in {num_bytes} bytes")


def check_code(content: bytes) -> None:
    """Raises ValueError for a zip that cannot be unpacked, leads out of its folder, or is too large."""
    if content.count(_CODE_FILE_MARK) > _MAX_CODE_FILES:
        raise ValueError(f"it has more than {_MAX_CODE_FILES} files")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > MAX_CODE_BYTES:
                raise ValueError(f"it unpacks to more than {MAX_CODE_BYTES // _MB} MB")
            for name in archive.namelist():
                safe_name(name)
            if damaged := archive.testzip():
                raise ValueError(f"{damaged} has a wrong checksum")
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, OSError, EOFError, RuntimeError) as error:
        raise ValueError(str(error)) from error
