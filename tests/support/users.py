"""Code that runs as another user of this host: root's child with that user id."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

VICTIM, ATTACKER = 1000, 65534

needs_users = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two other users")


def as_user(user: int, act: Callable[[], object]) -> None:
    """Runs it in a child of that user and group alone; raises AssertionError if it fails there."""
    with kept_by(user, act):
        pass


@contextmanager
def kept_by(user: int, act: Callable[[], object]) -> Iterator[None]:
    """As `as_user`, and what it returns is kept in the child while the block runs."""
    (up, is_up), (over, is_over) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(is_over)
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            kept = act()
            os.write(is_up, b"x")
            os.read(over, 1)
            del kept
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(is_up)
    os.close(over)
    try:
        assert os.read(up, 1) == b"x", "it failed as that user, see the traceback"
        yield
    finally:
        os.close(up)
        os.close(is_over)
        os.waitpid(pid, 0)
