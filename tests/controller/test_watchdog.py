from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from raydist.controller.attempt import Attempt
from raydist.controller.task_group import GroupUpdate
from raydist.controller.watchdog import SILENCE_S, SUSPICIOUS_S, Watchdog
from raydist.outcome.status import CallState, Collective, FailureKind, TaskState, TaskStatus
from tests.support.fakes import make_status, task


class Watch:
    """A watchdog that looks each second, and the attempt that it looks at."""

    def __init__(self, *, stall_timeout_s: float = 100.0) -> None:
        self.attempt = Attempt.begun(0, (task("worker/0"), task("worker/1")))
        self.watchdog = Watchdog(stall_timeout_s=stall_timeout_s)
        self.now_s = 1000.0

    def look(self, *news: TaskStatus) -> None:
        self.attempt.take(GroupUpdate(statuses=news))
        self.watchdog.look(self.attempt, news, now_s=self.now_s)

    def pass_time(self, seconds: float, *, speaking: Sequence[str] = (), **fields: Any) -> None:
        for _ in range(int(seconds)):
            self.now_s += 1.0
            self.look(*(training(name, **fields) for name in speaking))

    @property
    def silent(self) -> str | None:
        failure = self.watchdog.silent()
        return failure and str(failure.task)

    @property
    def is_stalled(self) -> bool:
        return self.watchdog.is_stalled


def training(name: str, **fields: Any) -> TaskStatus:
    return make_status(name, **{"num_steps": 1000, **fields})


def begun(**options: Any) -> Watch:
    watch = Watch(**options)
    watch.look(training("worker/0"), training("worker/1"))
    return watch


def test_task_that_stops_speaking_is_found() -> None:
    watch = begun()
    watch.pass_time(SILENCE_S - 1, speaking=["worker/0"])
    assert watch.silent is None
    watch.pass_time(1, speaking=["worker/0"])
    assert watch.silent == "worker/1"
    failure = watch.watchdog.silent()
    assert (failure.kind, failure.error_type) == (FailureKind.LOST, "SilentTask")
    assert failure.is_host_in_doubt
    assert "sent no heartbeat for 60 s" in failure.message


def test_word_in_between_begins_the_silence_anew() -> None:
    watch = begun()
    watch.pass_time(SILENCE_S - 1, speaking=["worker/0"])
    watch.pass_time(1, speaking=["worker/0", "worker/1"])
    watch.pass_time(SILENCE_S - 1, speaking=["worker/0"])
    assert watch.silent is None


def test_short_stall_timeout_shortens_the_silence_too() -> None:
    watch = begun(stall_timeout_s=10.0)
    watch.pass_time(10, speaking=["worker/0"], step=1)
    assert watch.silent == "worker/1"


@pytest.mark.parametrize("state", [TaskState.STARTING, TaskState.FINISHED])
def test_task_that_does_not_train_may_be_silent(state: TaskState) -> None:
    watch = Watch()
    watch.look(training("worker/0"), make_status("worker/1", state))
    watch.pass_time(2 * SILENCE_S, speaking=["worker/0"])
    assert watch.silent is None


def test_shorter_silence_makes_a_suspect() -> None:
    watch = begun()
    watch.pass_time(SUSPICIOUS_S - 1, speaking=["worker/0"])
    assert watch.watchdog.suspect() is None
    watch.pass_time(1, speaking=["worker/0"])
    suspect = watch.watchdog.suspect()
    assert str(suspect.task) == "worker/1"


def test_time_in_which_nobody_looked_does_not_count() -> None:
    watch = begun()
    watch.now_s += 3600.0  # a suspended laptop
    watch.look()
    assert (watch.silent, watch.is_stalled) == (None, False)


BOTH = ("worker/0", "worker/1")
TRAINED = {"first_step_at_s": 1.0}


def test_training_that_stands_still_is_found() -> None:
    watch = begun()
    watch.pass_time(99, speaking=BOTH)
    assert not watch.is_stalled
    watch.pass_time(1, speaking=BOTH)
    assert watch.is_stalled


@pytest.mark.parametrize("sign", [{"step": 1}, {"beats": 1}, {"collective": Collective(number=1)}])
def test_any_sign_of_one_task_is_progress(sign: dict[str, Any]) -> None:
    watch = begun()
    watch.pass_time(99, speaking=BOTH)
    watch.look(training("worker/1", **sign))
    watch.pass_time(99, speaking=["worker/0"])
    assert not watch.is_stalled
    watch.pass_time(2, speaking=["worker/0"])
    assert watch.is_stalled


@pytest.mark.parametrize(
    ("fields", "is_stalled"),
    [
        ({"num_steps": 10, "step": 9}, True),
        ({"num_steps": 10, "step": 10}, False),  # what comes after training may take long
        ({"num_steps": None, "num_epochs": 2, "epoch": 1}, True),
        ({"num_steps": None, "num_epochs": 2, "epoch": 2}, False),
        ({"num_steps": None, "num_epochs": 2}, True),
        ({"num_steps": None}, False),  # a loop of the user's, of which nothing is known
        # Before the first step nobody may know how many follow.
        ({"num_steps": None, "collective": Collective(state=CallState.INSIDE)}, True),
        ({"num_steps": None, "collective": Collective(state=CallState.MEETING, call="model.fit")}, True),
        ({"num_steps": None, "collective": Collective(state=CallState.BETWEEN)}, False),
        ({"num_steps": 10, "step": 10, "collective": Collective(state=CallState.INSIDE), **TRAINED}, False),
        ({"num_steps": 10, "step": 10, "collective": Collective(state=CallState.MEETING), **TRAINED}, True),
    ],
)
def test_only_steps_that_are_to_come_are_missed(fields: dict[str, Any], is_stalled: bool) -> None:
    watch = Watch()
    watch.look(training("worker/0", **fields), training("worker/1", **fields))
    watch.pass_time(200, speaking=BOTH, **fields)
    assert watch.is_stalled is is_stalled


def test_script_that_may_wait_for_its_peers_in_tensorflow_is_not_lost_by_its_silence() -> None:
    watch = begun()
    watch.look(training("worker/1", is_joining=True))
    watch.pass_time(2 * SILENCE_S, speaking=["worker/0"])
    assert watch.silent is None
    watch.look(training("worker/1", is_joining=False))
    watch.pass_time(SILENCE_S, speaking=["worker/0"])
    assert watch.silent == "worker/1"


def test_loop_that_reports_nothing_never_stands_still() -> None:
    watch = begun(stall_timeout_s=10.0)
    watch.look(training("worker/0", num_steps=None), training("worker/1", num_steps=None))
    watch.pass_time(1000, speaking=["worker/0", "worker/1"], num_steps=None)
    assert not watch.is_stalled
