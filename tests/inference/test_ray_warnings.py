"""The line of Ray's that says nothing to the user, and all others."""

from __future__ import annotations

import os

import pytest

from raydist.inference import ray_warnings

LINE = (
    "[2026-01-01 00:00:00,000 E 1 1] core_worker.cc:2465: Actor with class name: 'MapWorker' and ID: 'a' has "
    "constructor arguments in the object store and max_restarts > 0. If the arguments go out of scope\n"
)


def test_all_else_on_stderr_is_passed_on_in_its_order(capfd: pytest.CaptureFixture[str]) -> None:
    with ray_warnings.left_out():
        os.write(2, b"before\n")
        os.write(2, f"the same write\n{LINE}".encode())
        os.write(2, b"\r1 of 2 files")
    os.write(2, b" after\n")
    assert capfd.readouterr().err == "before\nthe same write\n\r1 of 2 files after\n"
