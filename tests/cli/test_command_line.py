"""What `ps` shows of a raydist command."""

from __future__ import annotations

import subprocess
import sys

import pytest

from raydist.cli.main import redacted_line

SHOW = """
import sys
from pathlib import Path
from raydist.cli.main import hide_secrets

hide_secrets()
print(Path("/proc/self/cmdline").read_bytes().hex(), sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param(b"raydist\0plan\0job.py\0", b"raydist\0plan\0job.py\0", id="without_secrets"),
        pytest.param(b"r\0-p\0token=secret\0-p\0a=1\0", b"r\0-p\0token=***\0-p\0a=1", id="param"),
        pytest.param(b"r\0s3://k:secret@b\0", b"r\0s3://***@b", id="uri"),
        pytest.param(b"r\0--env\0DB_PASS=secret\0", b"r\0--env\0DB_PASS=***", id="variable"),
        pytest.param(b"r\0token=a\0", b"r\0token=*\0", id="longer_than_the_secret"),
    ],
)
def test_line_without_secrets_is_as_long(line: bytes, expected: bytes) -> None:
    assert redacted_line(line) == expected.ljust(len(line), b"\0")
    assert redacted_line(line)[-1] == 0


def test_process_hides_its_secrets_and_keeps_its_arguments() -> None:
    arguments = ["-p", "api_key=swordfish", "--storage", "s3://KEY:word@bucket/x"]
    printed = subprocess.run(
        [sys.executable, "-c", SHOW, *arguments], capture_output=True, text=True, check=True
    ).stdout
    line, _, given = printed.partition(" ")
    shown = bytes.fromhex(line).rstrip(b"\0").split(b"\0")
    assert shown[-4:] == [b"-p", b"api_key=***", b"--storage", b"s3://***@bucket/x"]
    assert given.strip() == repr(arguments)
