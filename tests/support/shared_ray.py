"""SharedRay: the Ray that the tests of a session share, started by the first that needs it."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from raydist.runtime.cluster.connection import Connection, EmbeddedSize, connect


class SharedRay:
    """An embedded Ray with 4 logical CPUs. Its start is the cost, so it continues from test to test.

    Attributes:
      home: The home of its processes, empty when they start: no token of the developer's is found there.
    """

    def __init__(self) -> None:
        self.home = Path()
        self._stack = ExitStack()
        self._connection: Connection | None = None

    def opened(self) -> Connection:
        """Returns the connection of this process to it; starts it first where it does not run."""
        if self._connection is None:
            with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
                self.home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rd-home-")))
                patch.setenv("HOME", str(self.home))
                self._connection = stack.enter_context(
                    connect("local", embedded=lambda: EmbeddedSize(num_cpus=4))
                )
                self._stack = stack.pop_all()
        return self._connection

    def close(self) -> None:
        """Ends it, so that this process has no Ray. Idempotent; `opened` starts another one."""
        self._connection = None
        self._stack.close()
