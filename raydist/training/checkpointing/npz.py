"""An .npz file laid out in host memory, so that copying arrays into their places writes the file.

`numpy.savez` would pass over the bytes three times more while the state is large: into chunks, into a
buffer, and out of it.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from isal import isal_zlib

Shape = tuple[int, ...]
# In the directory at the file's end, with the fields for 64 bits: an entry beside its name, and the end.
_MAX_DIRECTORY_ENTRY_BYTES = 80
_MAX_END_BYTES = 120


class NpzBuffer:
    """Memory for arrays of known shapes. `fill` each one, then `seal`; both again for the next file."""

    def __init__(self, entries: Mapping[str, tuple[Shape, np.dtype[Any]]]) -> None:
        """Takes shape and type of each array by name."""
        self.entries = dict(entries)
        self._places: dict[str, tuple[bytes, slice]] = {}
        end = 0
        for name, (shape, dtype) in self.entries.items():
            header = _npy_header(shape, dtype)
            start = end + len(_entry(name).FileHeader(zip64=True)) + len(header)
            end = start + math.prod(shape) * dtype.itemsize
            self._places[name] = (header, slice(start, end))
        directory_bytes = sum(
            _MAX_DIRECTORY_ENTRY_BYTES + len(_entry(name).filename) for name in self.entries
        )
        self._bytes = np.empty(end + directory_bytes + _MAX_END_BYTES, np.uint8)

    def fill(self, name: str, parts: Sequence[np.ndarray]) -> None:
        """Copies an array, given whole or cut along its first axis, into its place."""
        place = self._bytes[self._places[name][1]]
        start = 0
        for part in parts:
            flat = np.ascontiguousarray(part).reshape(-1).view(np.uint8)
            place[start : start + flat.size] = flat
            start += flat.size
        assert start == place.size, f"{name}: {start} bytes for a place of {place.size}"

    def array(self, name: str) -> np.ndarray:
        """Returns an array as it was filled, which lives in this memory."""
        shape, dtype = self.entries[name]
        return self._bytes[self._places[name][1]].view(dtype).reshape(shape)

    def content(self, name: str) -> memoryview:
        """Returns an array's bytes, which live in this memory."""
        return self._bytes[self._places[name][1]].data

    def seal(self) -> memoryview:
        """Adds checksums and the directory; returns the file, which lives in this memory."""
        file = _FileInMemory(self._bytes)
        entries = []
        for name, (header, place) in self._places.items():
            entry = _entry(name)
            entry.header_offset = file.tell()
            start = place.start - len(header)
            self._bytes[start : place.start] = np.frombuffer(header, np.uint8)
            content = self._bytes[start : place.stop]
            entry.CRC = isal_zlib.crc32(content.data)  # zipfile's own takes longer than the copying
            entry.file_size = entry.compress_size = content.size
            file.write(entry.FileHeader(zip64=True))
            file.seek(place.stop)
            entries.append(entry)
        with zipfile.ZipFile(file, "w") as archive:
            archive.infolist().extend(entries)  # which writes their directory at the end
        return self._bytes[: file.tell()].data


class _FileInMemory(io.RawIOBase):
    """A file in an array."""

    def __init__(self, memory: np.ndarray) -> None:
        self._memory = memory
        self._position = 0

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, position: int, whence: int = io.SEEK_SET) -> int:
        assert whence == io.SEEK_SET
        self._position = position
        return position

    def write(self, data: Any) -> int:
        source = np.frombuffer(data, np.uint8)
        self._memory[self._position : self._position + source.size] = source
        self._position += source.size
        return source.size


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(f"{name}.npy")
    entry.CRC = 0  # not known before the header's length is asked for
    return entry


def _npy_header(shape: Shape, dtype: np.dtype[Any]) -> bytes:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    )
    return header.getvalue()
