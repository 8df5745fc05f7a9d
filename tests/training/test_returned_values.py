"""What a train function returns, as its task tells it."""

from __future__ import annotations

from typing import Any

import pytest

from raydist.spec.secrecy import Secrets
from raydist.spec.tasks import TaskId
from raydist.training.reporting.progress import TaskProgress

SECRETS = Secrets.of({"api_key": "hush-hush"})


def returned(value: object) -> tuple[Any, tuple[str, ...]]:
    progress = TaskProgress(TaskId.parse("worker/0"))
    progress.returned(value, hide=SECRETS.hide)
    status = progress.status()
    return status.value, status.notes


class Broken:
    shape = ()

    def numpy(self) -> object:
        raise RuntimeError("the device of hush-hush is gone")


def test_value_is_told_without_secrets() -> None:
    value = {"by": "hush-hush", "password": "x", "args": ["--token", "x"], "loss": 0.5}
    assert returned(value) == ({"by": "***", "password": "***", "args": ["--token", "***"], "loss": 0.5}, ())


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"hush-hush": object()}, "as its ['***'] is a object"),
        (Broken(), "as reading it raised RuntimeError: the device of *** is gone"),
    ],
)
def test_value_that_cannot_be_kept_is_noted(value: object, why: str) -> None:
    assert returned(value) == (
        None,
        (
            f"what the train function returned is not kept, {why}; result.value takes numbers, text, lists, "
            "tuples, dicts and NumPy arrays, together up to 1 MiB",
        ),
    )
