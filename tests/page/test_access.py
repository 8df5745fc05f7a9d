from __future__ import annotations

import pytest

from raydist.page.server import is_own_host, new_token, without_token


@pytest.mark.parametrize(
    ("path", "rest"),
    [
        ("/secret/", ""),
        ("/secret/api/runs", "api/runs"),
        ("/secret", None),
        ("/secre/", None),
        ("/secret2/", None),
        ("/", None),
        ("//secret/", None),
        ("/api/runs", None),
        ("/sécret/", None),
    ],
)
def test_path_begins_with_the_token(path: str, rest: str | None) -> None:
    assert without_token(path, token="secret") == rest


def test_without_a_token_any_path_is_let_in() -> None:
    assert without_token("/api/runs", token=None) == "api/runs"


@pytest.mark.parametrize(
    ("header", "is_own"),
    [
        ("127.0.0.1:7788", True),
        ("127.0.0.1", True),
        ("[::1]:7788", True),
        ("[::1]", True),
        ("localhost:7788", True),
        ("LOCALHOST:7788", True),
        ("evil.example:7788", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
        (None, False),
    ],
)
def test_name_of_another_site_is_refused(header: str | None, is_own: bool) -> None:
    assert is_own_host(header, names={"localhost"}) is is_own


def test_tokens_differ_and_are_long() -> None:
    assert len({new_token() for _ in range(100)}) == 100
    assert len(new_token()) >= 22
