"""How a process ended that is not a child of this one, as the kernel reports it.

Ray's raylet, whose children the tasks are, has the kernel forget how they end. Linux 6.15 and later keep it
for each holder of a pidfd of the process (PIDFD_GET_INFO); older ones do not show it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import struct
import time

# linux/pidfd.h: struct pidfd_info begins with the mask, and has exit_code at offset 60 of 64 bytes.
_PIDFD_GET_INFO = 0xC040FF0B  # _IOWR(0xFF, 11, 64 bytes)
_PIDFD_INFO_EXIT = 1 << 3
_INFO_BYTES = 64
_EXIT_CODE_OFFSET = 60
# Between a process's end and its being reaped, which is when its status is there.
_REAPED_WITHIN_S = 0.05
_POLL_S = 0.002


class PidFd:
    """Holds on to a process of this host, so that its status can be read when it is gone."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def open(cls, pid: int) -> PidFd | None:
        """Returns None for a process that is gone, and where the kernel has no pidfds."""
        try:
            return cls(os.pidfd_open(pid))
        except (OSError, AttributeError):
            return None

    def wait(self, timeout_s: float) -> bool:
        """Waits for the process's end; returns False where it lives on."""
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        return bool(poller.poll(timeout_s * 1000))

    def exit_code(self) -> int | None:
        """Returns the exit code of a process that has ended, minus the signal that killed it.

        None where the kernel does not show it.
        """
        deadline = time.monotonic() + _REAPED_WITHIN_S
        while (code := _exit_code(self._fd)) is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return code

    def close(self) -> None:
        os.close(self._fd)


def describe_exit(code: int) -> str:
    """Returns `was killed by SIGSEGV` or `ended with exit code 7`."""
    if code >= 0:
        return f"ended with exit code {code}"
    name = f"signal {-code}"
    with contextlib.suppress(ValueError):  # a real-time signal has no name
        name = signal.Signals(-code).name
    return f"was killed by {name}"


def _exit_code(fd: int) -> int | None:
    info = bytearray(_INFO_BYTES)
    struct.pack_into("<Q", info, 0, _PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(fd, _PIDFD_GET_INFO, info)
    except OSError:  # a kernel before 6.13, or another architecture's numbers
        return None
    if not struct.unpack_from("<Q", info, 0)[0] & _PIDFD_INFO_EXIT:
        return None
    return os.waitstatus_to_exitcode(struct.unpack_from("<i", info, _EXIT_CODE_OFFSET)[0])
