from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from raydist.outcome.result import StragglerCause
from raydist.outcome.status import TaskLink, TaskPace, TaskState
from raydist.stragglers.watch import NUM_SAMPLES, SAMPLE_S, StragglerWatch
from tests.support.counting import num_calls
from tests.support.fakes import make_status, task

STEP_S = 0.5


class Tasks:
    """Tasks that train, of whose steps each waits for its data, and for the slowest in a collective."""

    def __init__(self, num_tasks: int = 3) -> None:
        self.watch = StragglerWatch()
        self.states: dict[str, dict[str, Any]] = {f"worker/{index}": {} for index in range(num_tasks)}
        self._paces = dict.fromkeys(
            self.states,
            TaskPace(at_s=100.0, steps=7, input_wait_s=1.0, collective_wait_s=2.0, run_delay_s=0.0),
        )
        self._tell()

    def train(self, samples: int, own_s: Mapping[str, float], *, by: str = "input_wait_s") -> None:
        """Lets so many samples pass, in which each task takes so much of each step, 0.1 s if unnamed."""
        num_steps = int(SAMPLE_S / STEP_S)
        for _ in range(samples):
            for name, pace in self._paces.items():
                own = own_s.get(name, 0.1)
                spent = {"collective_wait_s": STEP_S - own, by: own - 0.1}
                sums = {key: getattr(pace, key) + seconds * num_steps for key, seconds in spent.items()}
                steps, at_s = pace.steps + num_steps, pace.at_s + SAMPLE_S
                self._paces[name] = dataclasses.replace(pace, at_s=at_s, steps=steps, **sums)
            self._tell()

    def _tell(self) -> None:
        statuses = [
            make_status(name, **{"pace": self._paces[name], **fields}) for name, fields in self.states.items()
        ]
        self.watch.take(statuses)

    @property
    def told(self) -> list[tuple[str, StragglerCause, bool]]:
        return [(str(one.task), one.cause, one.is_over) for one in self.watch.stragglers]


SLOW = {"worker/1": 0.4}
NAMED = [("worker/1", StragglerCause.DATA, False)]


def test_task_is_named_once_it_was_slow_for_three_samples() -> None:
    tasks = Tasks()
    tasks.train(NUM_SAMPLES - 1, SLOW)
    assert tasks.told == []
    tasks.train(1, SLOW)
    assert tasks.told == NAMED
    [straggler] = tasks.watch.stragglers
    assert straggler.times_slower == pytest.approx(4.0)
    assert tasks.watch.noted == (straggler,)
    assert straggler.message.startswith(
        "worker/1 is 4.0 times slower than the median of the tasks: of each step it takes 400 ms by itself, "
        "median 100 ms. Likely cause: data: it waits for its input 300 ms of each step "
    )


def test_figures_are_those_of_the_samples_in_which_it_was_slow() -> None:
    tasks = Tasks()
    tasks.train(2, {})
    tasks.train(NUM_SAMPLES, SLOW)
    assert tasks.watch.stragglers[0].times_slower == pytest.approx(4.0)


def test_task_that_was_slow_for_a_moment_is_not_named() -> None:
    """As it is by an evaluation or a checkpoint of the chief, even if that takes longer than all the rest."""
    tasks = Tasks()
    for _ in range(4):
        tasks.train(NUM_SAMPLES - 1, {"worker/0": 0.5})
        tasks.train(1, {})
    assert (tasks.told, tasks.watch.noted) == ([], ())


def test_task_that_is_as_fast_again_is_over_and_noted_once() -> None:
    tasks = Tasks()
    tasks.train(NUM_SAMPLES, SLOW)
    tasks.train(NUM_SAMPLES - 1, {})
    assert tasks.told == NAMED
    tasks.train(1, {})
    assert tasks.told == [("worker/1", StragglerCause.DATA, True)]
    tasks.train(NUM_SAMPLES, SLOW)
    assert tasks.told == NAMED
    assert len(tasks.watch.noted) == 1


def test_each_task_and_cause_is_noted() -> None:
    tasks = Tasks(num_tasks=5)
    tasks.train(NUM_SAMPLES, SLOW)
    tasks.train(2 * NUM_SAMPLES, {"worker/3": 0.3})
    tasks.train(2 * NUM_SAMPLES, SLOW, by="run_delay_s")
    assert [str(one.task) for one in tasks.watch.noted] == ["worker/1", "worker/3", "worker/1"]
    assert {name: cause for name, cause, _ in tasks.told}["worker/1"] is StragglerCause.HOST


def test_next_attempt_begins_anew_and_notes_nothing_twice() -> None:
    tasks = Tasks()
    tasks.train(NUM_SAMPLES, SLOW)
    tasks.watch = tasks.watch.restarted()
    assert tasks.told == []
    tasks.train(NUM_SAMPLES, SLOW)
    assert tasks.told == []  # the first one is only the beginning
    tasks.train(1, SLOW)
    assert (tasks.told, len(tasks.watch.noted)) == (NAMED, 1)


def test_samples_begin_anew_with_a_replaced_task() -> None:
    tasks = Tasks()
    tasks.train(NUM_SAMPLES - 1, SLOW)
    tasks.states["worker/2"] = {"incarnation": 1}
    tasks.train(NUM_SAMPLES, SLOW)
    assert tasks.told == []
    tasks.train(1, SLOW)
    assert tasks.told == NAMED


@pytest.mark.parametrize(
    "fields", [{"pace": None}, {"state": TaskState.FINISHED}], ids=["measures nothing", "has finished"]
)
def test_task_that_does_not_train_is_left_out(fields: dict[str, Any]) -> None:
    tasks = Tasks(num_tasks=2)
    tasks.states["worker/0"] = fields
    tasks.train(NUM_SAMPLES + 1, SLOW)
    assert tasks.told == []
    assert set(tasks.watch.times()) == {task("worker/1")}


def test_recent_times_are_known_before_anybody_can_be_named() -> None:
    tasks = Tasks()
    assert tasks.watch.times() == {}
    tasks.train(1, SLOW)
    slow = tasks.watch.times()[task("worker/1")]
    assert (slow.step_s, slow.own_s) == (pytest.approx(0.5), pytest.approx(0.4))
    assert (slow.input_wait, slow.collective_wait) == (pytest.approx(0.6), pytest.approx(0.2))


def test_many_slow_tasks_cost_the_same_for_each() -> None:
    def calls_of_each(num_tasks: int) -> float:
        tasks = Tasks(num_tasks)
        slow = {f"worker/{index}": 0.4 for index in range(0, num_tasks, 3)}
        tasks.train(NUM_SAMPLES - 1, slow)
        number = num_calls(lambda: tasks.train(1, slow))
        assert len(tasks.told) == len(slow)
        return number / num_tasks

    assert calls_of_each(300) <= 1.05 * calls_of_each(150)


class Hosts(Tasks):
    """Tasks on a host each, worker/0 on host 0, of which all wait for the network most of the time."""

    def train_on(
        self, samples: int, slow_host: str | None, *, own_s: Mapping[str, float] | None = None
    ) -> None:
        self._links_to(slow_host)
        self.train(samples, own_s or {})

    def _links_to(self, slow_host: str | None) -> None:
        hosts = [name.removeprefix("worker/") for name in self._paces]
        for (name, pace), own in zip(self._paces.items(), hosts, strict=True):
            links = tuple(
                TaskLink(
                    host=peer, round_trip_s=0.04 if slow_host in (own, peer) else 0.001, sent=0, resent=0
                )
                for peer in hosts
                if peer != own
            )
            self._paces[name] = dataclasses.replace(pace, host=own, links=links)


NETWORK = StragglerCause.NETWORK


def test_task_on_a_slow_link_is_named_until_it_is_as_fast_as_the_others() -> None:
    tasks = Hosts()
    tasks.train_on(NUM_SAMPLES - 1, "1")
    assert tasks.told == []
    tasks.train_on(1, "1")
    assert tasks.told == [("worker/1", NETWORK, False)]
    [note] = tasks.watch.noted
    assert note.times_slower == pytest.approx(1.0)
    assert note.message == (
        "the network of worker/1 is slow: a round trip takes 40 ms, between the others 1 ms; every task "
        "waits in collectives for at least 80% of each step. Likely cause: network: see what else uses the "
        "link, where the host is, and its cable, switch or virtual network"
    )
    tasks.train_on(NUM_SAMPLES, None)
    assert tasks.told == [("worker/1", NETWORK, True)]
    assert tasks.watch.noted == (note,)


def test_both_ends_of_the_only_link_are_named_with_one_sentence() -> None:
    tasks = Hosts(num_tasks=2)
    tasks.train_on(NUM_SAMPLES, "1")
    assert tasks.told == [("worker/0", NETWORK, False), ("worker/1", NETWORK, False)]
    [message] = {one.message for one in tasks.watch.noted}
    assert message.startswith(
        "the network of worker/0 and worker/1 is slow: a round trip takes 40 ms between "
    )


def test_link_that_was_slow_for_a_moment_is_not_named() -> None:
    tasks = Hosts()
    for _ in range(3):
        tasks.train_on(NUM_SAMPLES - 1, "1")
        tasks.train_on(1, None)
    assert (tasks.told, tasks.watch.noted) == ([], ())


def test_slow_link_is_not_named_while_the_others_wait_for_a_slow_task() -> None:
    tasks = Hosts()
    tasks.train_on(NUM_SAMPLES, "2", own_s=SLOW)
    assert tasks.told == NAMED
    tasks.train_on(2 * NUM_SAMPLES, "2")
    assert tasks.told == [("worker/1", StragglerCause.DATA, True), ("worker/2", NETWORK, False)]
