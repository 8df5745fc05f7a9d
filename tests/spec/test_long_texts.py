"""Texts of a storage, which anybody may have written, take no longer than their length asks for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raydist.spec.secrecy import redact_text
from raydist.spec.text import as_submitted, coloured_line, escaped, without_sequences

# A search that begins again at each place would take minutes.
pytestmark = pytest.mark.timeout(60)
SIZE = 200_000


@pytest.mark.parametrize(
    ("function", "part", "end"),
    [
        (as_submitted, "/a", "/code/"),
        (as_submitted, "/a a a a a a a a a", "/code/"),
        (as_submitted, "1-a-1-aaaaaaaa-", "/code/"),
        (as_submitted, "/a/raydist-1/1-1-aaaaaaaa-1", "/code/x"),
        (redact_text, "a://x:", ""),
        (redact_text, "a://x", "@"),
        (redact_text, "a://x@", ""),
        (redact_text, "a://b?a=1&", ""),
        (redact_text, "eyJ-", ""),
        (redact_text, "-----BEGIN PRIVATE KEY-----", ""),
        (redact_text, "-----BEGIN PRIVATE KEY-----\n", "a" * SIZE),
        (redact_text, "SG.aaaaaaaaaaaaaaaaaaaa ", ""),
        (redact_text, "authorization: ", ""),
        (redact_text, "x-a-key ", ""),
        (redact_text, "basic aaaaaaaaaaaa", ""),
        (without_sequences, "\x1b]", ""),
        (without_sequences, "\x1b[0", ""),
        (coloured_line, "\x1b[31m", ""),
        (coloured_line, "\x1b[;", ""),
        (escaped, "\x1b", ""),
    ],
)
def test_long_text_is_read_once(function: Callable[[str], str], part: str, end: str) -> None:
    assert isinstance(function(part * (SIZE // len(part)) + end), str)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://k:s/e@h/x", "s3://***@h/x"),
        ("hdfs://host:8020/a@b", "hdfs://host:8020/a@b"),
        ("a://u:p@h/b@c, b://t@h", "a://***@h/b@c, b://***@h"),
        ("see a://h and mail me@host", "see a://h and mail me@host"),
    ],
)
def test_user_parts_are_hidden_wherever_they_stand(text: str, shown: str) -> None:
    assert redact_text(text) == shown
