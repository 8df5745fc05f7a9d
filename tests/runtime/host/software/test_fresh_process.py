"""Python in a process of its own answers with its last line, or with a reason."""

from __future__ import annotations

import pytest

from raydist.runtime.host import software
from raydist.runtime.host.software import FreshProcessError, answer_of


def test_last_line_is_the_answer_and_the_environment_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", "{}")
    code = (
        "import json, os; print('noise'); print(json.dumps([os.environ.get('TF_CONFIG'), os.environ['A']]))"
    )
    assert answer_of(code, environ={"TF_CONFIG": None, "A": "1"}) == [None, "1"]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise ImportError('no libcudart')", "ImportError: no libcudart"),
        ("import os; os._exit(7)", "exit code 7"),
        ("import time; time.sleep(60)", "it took longer than 0.5 s"),
    ],
    ids=["raises", "dies", "hangs"],
)
def test_reason_is_told(code: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "sleep" in code:
        monkeypatch.setattr(software, "_TIMEOUT_S", 0.5)
    with pytest.raises(FreshProcessError, match=reason):
        answer_of(code, environ={})
