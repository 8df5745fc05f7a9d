"""What tests need of the kernel that they run on."""

from __future__ import annotations

import os

import pytest

_RELEASE = tuple(int(part) for part in os.uname().release.split(".")[:2])

KEPT_BY_KERNEL = pytest.mark.skipif(
    _RELEASE < (6, 15), reason="before Linux 6.15 the kernel forgets how another process's child ended"
)
