"""Which Python an environment of a set gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat.environments import find_python, make_environment, version_sets


@pytest.fixture(autouse=True)
def empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes it a machine without any Python but the test's own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("UV_PYTHON_INSTALL_DIR", raising=False)


def put_python(path: Path, *, prints: str) -> str:
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho {prints}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    "place",
    [
        "bin/python3.10",
        ".pyenv/versions/3.10.13/bin/python3.10",
        ".local/share/uv/python/cpython-3.10.18-linux-x86_64-gnu/bin/python3.10",
    ],
)
def test_python_is_found_wherever_it_was_installed(tmp_path: Path, place: str) -> None:
    assert find_python("3.10") is None
    python = put_python(tmp_path / place, prints="3.10")
    assert find_python("3.10") == python


@pytest.mark.parametrize("place", [".pyenv/versions/3.10.13/bin/python3.10", "later on PATH/python3.10"])
def test_shim_of_a_version_that_is_not_chosen_is_passed_over(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{tmp_path / 'later on PATH'}")
    put_python(tmp_path / "bin/python3.10", prints="")
    assert find_python("3.10") is None
    python = put_python(tmp_path / place, prints="3.10")
    assert find_python("3.10") == python


@pytest.mark.parametrize("name", version_sets())
def test_set_that_is_named_fails_without_its_python(name: str, tmp_path: Path) -> None:
    with pytest.raises(
        AssertionError, match=rf"no Python 3\.1[023] for the set {name}: .*`uv python install"
    ):
        make_environment(version_sets()[name], tmp_path / "made")
