from __future__ import annotations

import pytest

from raydist.controller.unequal_calls import unequal_calls
from raydist.outcome.status import CallState, Collective, FailureKind
from tests.support.fakes import attempt_of, make_status


def meeting(number: int, call: str, line: int | None = None) -> Collective:
    where = None if line is None else f"job.py:{line} (train)"
    return Collective(number=number, state=CallState.MEETING, call=call, where=where)


def step(number: int, line: int | None = None, *, is_running: bool = True) -> Collective:
    where = None if line is None else f"job.py:{line} (train)"
    return Collective(number=number, state=CallState.INSIDE, is_running=is_running, where=where)


def left(number: int) -> Collective:
    return Collective(number=number, state=CallState.LEFT)


def told(*standing: Collective | None) -> str | None:
    statuses = [make_status(f"worker/{index}", collective=one) for index, one in enumerate(standing)]
    cause = unequal_calls(attempt_of((one.task for one in statuses), *statuses), statuses)
    return cause and cause.failure.message


@pytest.mark.parametrize(
    ("standing", "sentence"),
    [
        pytest.param(
            (meeting(7, "model.evaluate", 21), left(7)),
            "worker/0 calls model.evaluate in job.py:21 (train), worker/1 has returned from the train "
            "function: all workers make this call, or none",
            id="left",
        ),
        pytest.param(
            (left(7), meeting(7, "model.evaluate", 21)),
            "worker/1 calls model.evaluate in job.py:21 (train), worker/0 has returned from the train "
            "function: all workers make this call, or none",
            id="chief-left",
        ),
        pytest.param(
            (meeting(7, "model.evaluate", 21), step(7, 30)),
            "worker/0 calls model.evaluate in job.py:21 (train), worker/1 waits for the other workers in "
            "job.py:30 (train): all workers make this call, or none",
            id="step",
        ),
        pytest.param(
            (meeting(7, "model.fit", 21), meeting(7, "model.fit", 22), meeting(7, "ctx.predict", 25)),
            "worker/0 calls model.fit in job.py:21 (train), worker/2 calls ctx.predict in job.py:25 (train): "
            "all workers make the same calls, in one order",
            id="other-call",
        ),
        pytest.param(
            (step(7, 40), left(7)),
            "worker/0 waits for the other workers in job.py:40 (train), worker/1 has returned from the train "
            "function: all workers take part, or none",
            id="own-loop",
        ),
    ],
)
def test_worker_that_waits_in_vain_is_told_with_both_lines(
    standing: tuple[Collective, ...], sentence: str
) -> None:
    assert told(*standing) == sentence


@pytest.mark.parametrize(
    "standing",
    [
        pytest.param((None, None), id="workers-of-one"),
        pytest.param((meeting(7, "model.fit", 21), meeting(7, "model.fit", 30)), id="same-call-elsewhere"),
        pytest.param((meeting(7, "model.fit", 21), step(6, 30)), id="step-before"),
        pytest.param((meeting(7, "model.fit", 21), step(8, 30)), id="old-news"),
        pytest.param((meeting(7, "model.fit"), step(7, 30)), id="not-standing-yet"),
        pytest.param((meeting(7, "model.fit", 21), step(7, 30, is_running=False)), id="ended-step"),
        pytest.param((step(7, 21), step(7, 30)), id="same-step"),
        pytest.param((step(7, 21, is_running=False), left(7)), id="works-alone-after"),
        pytest.param((left(8), left(8)), id="done"),
    ],
)
def test_worker_that_others_may_still_come_to_is_left_alone(standing: tuple[Collective | None, ...]) -> None:
    assert told(*standing) is None


def test_workers_that_call_other_things_cannot_be_cured() -> None:
    standing = (meeting(7, "model.evaluate", 21), left(7))
    statuses = [make_status(f"worker/{index}", collective=one) for index, one in enumerate(standing)]
    cause = unequal_calls(attempt_of((one.task for one in statuses), *statuses), statuses)
    assert cause.failure.kind is FailureKind.UNEQUAL
    assert cause.failure.kind.is_incurable
    assert [str(task) for task in cause.collateral] == ["worker/1"]
