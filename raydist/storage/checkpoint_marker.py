"""What a checkpoint's commit marker says, and the JSON state next to it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from isal import isal_zlib

from raydist.outcome.codec import from_plain
from raydist.storage.limits import parse_json, safe_name

STATE_FILE = "state.json"
# The variables, as arrays by key, and a list that describes them in their order.
ARRAYS_NAME = "variables.npz"
INDEX_NAME = "variables.json"
# What the key of an array begins with that holds a value of each virtual replica; the variable's own follows.
REPLICAS = "replicas/"
# The same for the replicas of a run without virtual ones.
OF_WORKERS = f"{REPLICAS}workers/"
_DIGEST_LENGTH = 16
_MAX_BYTES = 2**60  # of a file


def _check_size(num_bytes: int) -> None:
    if not 0 <= num_bytes <= _MAX_BYTES:
        raise ValueError("no file has that size")


@dataclass(frozen=True, kw_only=True)
class StoredFile:
    """One file of a checkpoint, as its marker describes it."""

    name: str
    size_bytes: Annotated[int, _check_size]
    crc32: int


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A committed checkpoint.

    Attributes:
      info: What the writer said about it: epoch, metrics, digest. A part of the marker, read without its
        files.
    """

    step: int
    attempt: int
    uri: str
    files: tuple[StoredFile, ...]
    info: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.uri.rpartition("/")[2]

    def facts(self) -> dict[str, Any]:
        """Returns what is shown of it in a list, as plain values."""
        return {
            "step": self.step,
            "attempt": self.attempt,
            "epoch": self.info.get("epoch"),
            "bytes": sum(file.size_bytes for file in self.files),
            "uri": self.uri,
        }


def encode_state(state: Mapping[str, Any]) -> bytes:
    """Returns the content of a checkpoint's state.json; NaN and infinities come back as they were."""
    return json.dumps(state, ensure_ascii=False, default=_number).encode()


def decode_state(content: bytes) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(content)
    return state


def encode_marker(*, step: int, attempt: int, files: Sequence[StoredFile], info: Mapping[str, Any]) -> bytes:
    described = {file.name: {"size_bytes": file.size_bytes, "crc32": file.crc32} for file in files}
    marker = {"step": step, "attempt": attempt, "files": described, "info": dict(info)}
    # Through JSON once, so that keys and numbers are what a reader will see and sum up.
    marker = json.loads(json.dumps(marker, default=_number))
    return _canonical({**marker, "crc32": isal_zlib.crc32(_canonical(marker))})


def decode_marker(content: bytes, *, step: int, attempt: int, uri: str) -> Checkpoint:
    """Raises ValueError, KeyError, TypeError or AttributeError where `content` is not what was written."""
    marker = parse_json(content)
    crc32 = marker.pop("crc32")
    if crc32 != isal_zlib.crc32(_canonical(marker)) or (marker["step"], marker["attempt"]) != (step, attempt):
        raise ValueError("the marker's checksum does not fit")
    files = [{**entry, "name": safe_name(name)} for name, entry in marker["files"].items()]
    facts = {"step": step, "attempt": attempt, "uri": uri, "files": files, "info": marker["info"]}
    found: Checkpoint = from_plain(facts, Checkpoint)
    return found


def _canonical(marker: Mapping[str, Any]) -> bytes:
    return json.dumps(marker, sort_keys=True, separators=(",", ":")).encode()


def describe_file(name: str, chunks: Iterable[bytes]) -> StoredFile:
    """Sums up a file. CRC-32 finds damage at the speed of memory; tampering does not matter here."""
    size_bytes = crc32 = 0
    for chunk in chunks:
        size_bytes, crc32 = size_bytes + len(chunk), isal_zlib.crc32(chunk, crc32)
    return StoredFile(name=name, size_bytes=size_bytes, crc32=crc32)


def digest_of(arrays: Iterable[tuple[Mapping[str, Any], memoryview]]) -> str:
    """Returns 16 hex digits of arrays: of their descriptions, as in INDEX_NAME, and bytes, in their order.

    Like the CRC-32 of a file it tells arrays apart that differ by accident; tampering does not matter here.
    """
    rows = [[*sorted(entry.items()), isal_zlib.crc32(content)] for entry, content in arrays]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:_DIGEST_LENGTH]


def _number(value: Any) -> Any:
    """Lets NumPy's scalars pass as numbers; raises TypeError for what JSON cannot hold."""
    if getattr(value, "ndim", None) != 0:
        raise TypeError(f"{type(value).__name__} {value!r} is not a JSON value")
    return value.item()
