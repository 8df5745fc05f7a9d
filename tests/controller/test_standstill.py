from __future__ import annotations

import pytest

from raydist.controller.root_cause import standstill_cause
from raydist.outcome.status import CodePlace
from tests.support.fakes import attempt_of, make_status, task

FIT = CodePlace(where="prog.py:24 (train)", is_waiting=True)
SYNC = CodePlace(where="prog.py:40 (on_epoch_end)", is_waiting=True)
CALLBACK = CodePlace(where="prog.py:53 (on_epoch_end)", stack="  File ...\n")
READER = CodePlace(where="data.py:7 (read)")
SERVER = CodePlace(is_waiting=True)


@pytest.mark.parametrize(
    ("places", "blamed", "said"),
    [
        pytest.param(
            [FIT, CALLBACK, FIT],
            "worker/1",
            "worker/1 is in prog.py:53 (on_epoch_end), the others wait for it",
            id="one",
        ),
        pytest.param(
            [FIT, CALLBACK, CALLBACK],
            "worker/1",
            "worker/1, worker/2 are in prog.py:53 (on_epoch_end), the others wait for them",
            id="two-in-one-place",
        ),
        pytest.param(
            [FIT, READER, CALLBACK],
            "worker/1",
            "worker/1 is in data.py:7 (read), worker/2 is in prog.py:53 (on_epoch_end), "
            "the others wait for them",
            id="two-places",
        ),
        pytest.param([CALLBACK, CALLBACK], "worker/0", "worker/0, worker/1 are in prog.py:53 (on_epoch_end)"),
        pytest.param([FIT, FIT], "worker/0", "worker/0, worker/1 wait in prog.py:24 (train)", id="nobody"),
        pytest.param(
            [FIT, SYNC],
            "worker/0",
            "worker/0 waits in prog.py:24 (train), worker/1 waits in prog.py:40 (on_epoch_end)",
            id="different-collectives",
        ),
        pytest.param(
            [CALLBACK, SERVER], "worker/0", "worker/0 is in prog.py:53 (on_epoch_end)", id="servers"
        ),
        pytest.param([FIT, None], "worker/0", "worker/0 waits in prog.py:24 (train)", id="no-answer"),
    ],
)
def test_task_that_the_others_wait_for_is_named(
    places: list[CodePlace | None], blamed: str, said: str
) -> None:
    statuses = [make_status(f"worker/{index}", place=place) for index, place in enumerate(places)]
    attempt = attempt_of((status.task for status in statuses), *statuses)
    cause = standstill_cause(attempt, chief=task("worker/0"), stall_timeout_s=6.0)
    assert str(cause.failure.task) == blamed
    assert f"(--stall-timeout): {said}; the stacks of all tasks" in cause.failure.message
    assert len(cause.collateral) == len(places) - 1
