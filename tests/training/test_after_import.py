"""The hook that mends tf_keras when, and only when, somebody imports it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from raydist.training.after_import import after_import


def test_action_runs_once_after_the_first_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_later.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    finders = len(sys.meta_path)
    seen: list[int] = []
    after_import("imported_later", lambda: seen.append(sys.modules["imported_later"].VALUE))
    assert seen == []
    module = importlib.import_module("imported_later")
    importlib.import_module("imported_later")
    assert seen == [1]
    assert module.__spec__ is not None
    assert type(module.__spec__.loader).__name__ == "SourceFileLoader"
    assert len(sys.meta_path) == finders
    del sys.modules["imported_later"]


def test_action_runs_at_once_for_what_is_imported_already() -> None:
    seen: list[str] = []
    after_import("json", lambda: seen.append("json"))
    assert seen == ["json"]
