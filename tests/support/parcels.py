"""FolderParcels: a Parcels for tasks without Ray."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class FolderParcels:
    """Keeps them as files."""

    folder: Path

    def put(self, key: str, content: bytes) -> None:
        self.folder.mkdir(exist_ok=True)
        aside = self.folder / f"{key}.{os.getpid()}"
        aside.write_bytes(content)
        aside.replace(self.folder / key)

    def get(self, key: str) -> bytes:
        while not (self.folder / key).exists():
            time.sleep(0.02)
        return (self.folder / key).read_bytes()

    def claim(self, key: str) -> int:
        self.folder.mkdir(exist_ok=True)
        for number in itertools.count():
            with contextlib.suppress(FileExistsError):
                (self.folder / f"{key}.claim{number}").touch(exist_ok=False)
                return number
        raise AssertionError
