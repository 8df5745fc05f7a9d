"""When checkpoints are due."""

from __future__ import annotations

import pytest

from raydist.spec.job import CheckpointEvery
from raydist.spec.settings.options import find_option
from raydist.training.checkpointing.schedule import CheckpointSchedule


def schedule(text: str, *, each_epoch: bool = False) -> CheckpointSchedule:
    every: CheckpointEvery = find_option("checkpoint_every").parse(text)
    return CheckpointSchedule(every, each_epoch=each_epoch)


@pytest.mark.parametrize(
    ("text", "each_epoch", "expected"),
    [
        ("epoch", False, [1, 2, 3, 4]),
        ("100", False, []),
        ("60s", False, []),
        ("100", True, [1, 2, 3, 4]),
        ("60s", True, [1, 2, 3, 4]),
    ],
)
def test_the_best_one_is_looked_for_at_each_epochs_end(
    text: str, each_epoch: bool, expected: list[int]
) -> None:
    asked = schedule(text, each_epoch=each_epoch)
    assert [epoch for epoch in range(1, 5) if asked.is_due_at_epoch_end(epoch)] == expected


def test_steps_are_due_once_a_call_has_passed_them() -> None:
    asked = schedule("10")
    assert [step for step in range(4, 44, 4) if asked.is_due(step_before=step - 4, step=step)] == [
        12,
        20,
        32,
        40,
    ]
    assert [asked.steps_left(step) for step in (0, 9, 10, 13)] == [10, 1, 10, 7]
