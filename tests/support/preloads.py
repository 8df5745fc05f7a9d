"""What fork servers of tests import: badly, in one way or another."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from pathlib import Path


def starts_thread() -> None:
    threading.Thread(target=threading.Event().wait, daemon=True).start()


def uses_grpc() -> None:
    import grpc

    channel = grpc.insecure_channel("127.0.0.1:1")
    with contextlib.suppress(grpc.FutureTimeoutError):
        grpc.channel_ready_future(channel).result(timeout=0.1)


def opens_gpu() -> None:
    """Holds a device as CUDA does once it is initialized; it is /dev/null by another name."""
    device = Path(os.environ["OF_TEST"]) / "nvidia0"
    os.mknod(device, stat.S_IFCHR | 0o600, os.stat("/dev/null").st_rdev)
    os.open(device, os.O_RDWR)


def fails() -> None:
    raise ImportError("no such library")
