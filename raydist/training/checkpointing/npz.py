"""An .npz file laid out in host memory, so that copying arrays into their places writes the file.

`numpy.savez` would pass over the bytes three times more while the state is large: into chunks, into a
buffer, and out of it. `numpy.load` would take most of its time for checksums that a checkpoint has already.
safetensors' layout would save one pass of checksums, and NumPy could not read it.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from isal import isal_zlib

Shape = tuple[int, ...]
# In the directory at the file's end, with the fields for 64 bits: an entry beside its name, and the end.
_MAX_DIRECTORY_ENTRY_BYTES = 80
_MAX_END_BYTES = 120
# Magic, version, length of two bytes, and as much as that can be.
_MAX_NPY_HEADER_BYTES = 10 + 2**16


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


class NpzArrays:
    """The arrays of an .npz file in memory, by name; each one is copied when it is asked for.

    The checksums in it are not looked at: whoever has read the file has compared that of its marker.
    """

    def __init__(self, content: bytes) -> None:
        """Takes the file; raises ValueError for what is not one."""
        self._content = content
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                self._entries = {entry.filename: entry for entry in archive.infolist()}
        except zipfile.BadZipFile as error:
            raise ValueError(f"it is not an .npz file: {error}") from error

    def __getitem__(self, name: str) -> np.ndarray:
        """Returns an array; raises KeyError, or ValueError for a compressed one and for pickled objects."""
        entry = self._entries[f"{name}.npy"]
        if entry.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{name} is compressed")
        # The local header, which says how long it is itself (APPNOTE.TXT, 4.3.7).
        lengths = struct.unpack_from("<HH", self._content, entry.header_offset + 26)
        start = entry.header_offset + 30 + sum(lengths)
        header = io.BytesIO(self._content[start : start + _MAX_NPY_HEADER_BYTES])
        if np.lib.format.read_magic(header) != (1, 0):
            raise ValueError(f"{name} has a header of another version of NumPy's")
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(header)
        if dtype.hasobject:
            raise ValueError(f"{name} has pickled objects")
        num_bytes, offset = math.prod(shape) * dtype.itemsize, start + header.tell()
        # Bytes, as NumPy copies what is not aligned one element at a time.
        own = np.frombuffer(self._content, np.uint8, num_bytes, offset).copy()
        return own.view(dtype).reshape(shape, order="F" if is_fortran else "C")


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
