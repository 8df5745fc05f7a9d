"""A RunMachine stays consistent in whatever order tasks, groups, clocks and people do what they may."""

from __future__ import annotations

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from raydist.controller.events import (
    Action,
    AttemptPlanned,
    Await,
    CancelRequested,
    Crashed,
    Deadline,
    DeadlinePassed,
    Event,
    GroupBroken,
    GroupStopped,
    GroupUpdated,
    ReplaceTask,
    RoomFound,
    StartAttempt,
    StopGroup,
    StoredCheckpoint,
)
from raydist.controller.machine import InvalidTransitionError, RunMachine
from raydist.controller.task_group import GroupUpdate
from raydist.errors import ClusterError
from raydist.outcome.status import FailureKind, RunState, TaskState, TaskStatus
from raydist.planning.fitting import resized
from raydist.spec.job import Strategy, WorkerRange
from tests.support.any_values import any_values
from tests.support.fakes import make_failure, make_plan, make_status

ACTIVE = (RunState.STARTING, RunState.RUNNING)
PLANS = {
    "workers": make_plan(workers=3, max_failures=2, timeout=60.0),
    "elastic": make_plan(
        workers=3, max_failures=2, timeout=60.0, workers_range=WorkerRange(minimum=1, maximum=3)
    ),
    "parameter servers": make_plan(
        workers=2, ps=1, strategy=Strategy.PARAMETER_SERVER, is_evaluated=True, max_failures=2, timeout=60.0
    ),
    "elastic parameter servers": make_plan(
        workers=2,
        strategy=Strategy.PARAMETER_SERVER,
        max_failures=2,
        timeout=60.0,
        workers_range=WorkerRange(minimum=1, maximum=4),
    ),
}


class AnyEvents(RuleBasedStateMachine):
    """Plays the controller: gives the machine only what may come, and does what it asks for."""

    @initialize(plan=st.sampled_from(sorted(PLANS)))
    def begin(self, plan: str) -> None:
        self.machine = RunMachine(PLANS[plan])
        self.now_s = 0.0
        self.step = 0
        self.number = self.most_steps = 0
        self.is_stop_asked = self.awaits_collateral = False
        self.incarnations: dict[str, int] = {}
        self.ended: set[str] = set()
        self._done(self.machine.start())

    @property
    def state(self) -> RunState:
        return self.machine.state

    @property
    def takes_news(self) -> bool:
        return self.state in ACTIVE or (self.state is RunState.STOPPING and self.awaits_collateral)

    def handle(self, event: Event) -> None:
        self._done(self.machine.handle(event))

    def _done(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case StartAttempt(number):
                    assert number == self.number, "an attempt is left out, or begun twice"
                    self.number += 1
                    self.incarnations, self.ended = {}, set()
                    self.is_stop_asked = self.awaits_collateral = False
                case StopGroup():
                    self.is_stop_asked, self.awaits_collateral = True, False
                case Await(Deadline.GRACE | Deadline.SAVE):
                    self.awaits_collateral = True
                case ReplaceTask(task):
                    assert str(task) in self.ended, "a task that lives is replaced"
                    self.incarnations[str(task)] = self.incarnations.get(str(task), 0) + 1
                    self.ended.discard(str(task))

    def _send(self, *statuses: TaskStatus) -> None:
        self.now_s += 0.5
        update = GroupUpdate(statuses=statuses, all_placed=True, all_addressed=True)
        self.handle(GroupUpdated(update, at_s=1000.0 + self.now_s, now_s=self.now_s))

    def _status(self, name: str, state: TaskState, **fields: object) -> TaskStatus:
        if state.is_terminal:
            self.ended.add(name)
        incarnation = self.incarnations.get(name, 0)
        return make_status(name, state, step=self.step, incarnation=incarnation, **fields)

    def _living(self) -> list[str]:
        return [name for name in map(str, self.machine.plan.tasks) if name not in self.ended]

    @precondition(lambda self: self.takes_news)
    @rule(data=st.data(), state=st.sampled_from([TaskState.STARTING, TaskState.RUNNING, TaskState.RUNNING]))
    def some_tasks_go_on(self, data: st.DataObject, state: TaskState) -> None:
        names = data.draw(st.lists(st.sampled_from(self._living()), unique=True)) if self._living() else []
        self.step += len(names)
        self._send(*(self._status(name, state) for name in names))

    @precondition(lambda self: self.takes_news)
    @rule()
    def all_tasks_train(self) -> None:
        self.step += 1
        self._send(*(self._status(name, TaskState.RUNNING) for name in self._living()))

    @precondition(lambda self: self.takes_news and self._living())
    @rule(data=st.data())
    def tasks_return(self, data: st.DataObject) -> None:
        names = data.draw(st.lists(st.sampled_from(self._living()), min_size=1, unique=True))
        self._send(*(self._status(name, TaskState.FINISHED) for name in names))

    @precondition(lambda self: self.takes_news and self._living())
    @rule(data=st.data(), kinds=st.lists(st.sampled_from(FailureKind), min_size=1, max_size=3))
    def tasks_fail(self, data: st.DataObject, kinds: list[FailureKind]) -> None:
        names = data.draw(
            st.lists(st.sampled_from(self._living()), min_size=1, max_size=len(kinds), unique=True)
        )
        self._send(
            *(
                self._status(name, TaskState.FAILED, failure=make_failure(name, kind, step=self.step))
                for name, kind in zip(names, kinds, strict=False)
            )
        )

    @precondition(lambda self: self.state in ACTIVE)
    @rule()
    def group_breaks(self) -> None:
        self.handle(GroupBroken(ClusterError("Ray is gone")))

    @precondition(lambda self: self.state is RunState.STARTING)
    @rule()
    def start_takes_too_long(self) -> None:
        self.handle(DeadlinePassed(Deadline.START))

    @precondition(lambda self: self.awaits_collateral and self.state is RunState.STOPPING)
    @rule()
    def no_further_failure_comes(self) -> None:
        self.handle(DeadlinePassed(Deadline.GRACE))

    @precondition(lambda self: self.state in ACTIVE)
    @rule(event=st.sampled_from([DeadlinePassed(Deadline.SAVE), DeadlinePassed(Deadline.STACKS)]))
    def a_wait_is_over(self, event: Event) -> None:
        self.handle(event)

    @precondition(lambda self: self.state in ACTIVE and self.machine.plan.is_elastic)
    @rule(num_workers=st.integers(0, 4))
    def room_is_found(self, num_workers: int) -> None:
        self.handle(RoomFound(num_workers))

    @precondition(lambda self: self.is_stop_asked)
    @rule(
        checkpoint=st.none() | st.builds(StoredCheckpoint, step=st.integers(0, 5), uri=st.just("c")),
        problem=st.none() | st.just("a host does not answer"),
        num_workers=st.integers(1, 3),
    )
    def group_is_stopped(
        self, checkpoint: StoredCheckpoint | None, problem: str | None, num_workers: int
    ) -> None:
        self.is_stop_asked = False
        before = self.number
        self.handle(GroupStopped(problem=problem, checkpoint=checkpoint))
        if self.number > before:
            if checkpoint is not None:
                self.step = min(self.step, checkpoint.step)
            plan = self.machine.plan
            self.handle(AttemptPlanned(resized(plan, num_workers) if plan.is_elastic else plan))

    @precondition(lambda self: not self.state.is_terminal)
    @rule(
        event=st.sampled_from([CancelRequested(), Crashed(RuntimeError("a bug"))]), seldom=st.integers(0, 9)
    )
    def person_or_bug_ends_it(self, event: Event, seldom: int) -> None:
        if seldom == 0:
            self.handle(event)

    @precondition(lambda self: self.state in ACTIVE)
    @rule(seldom=st.integers(0, 9))
    def run_takes_too_long(self, seldom: int) -> None:
        if seldom == 0:
            self.handle(DeadlinePassed(Deadline.RUN))

    @precondition(lambda self: self.state.is_terminal)
    @rule(
        event=st.sampled_from(
            [CancelRequested(), DeadlinePassed(Deadline.RUN), DeadlinePassed(Deadline.GRACE)]
        )
    )
    def what_comes_after_the_end_changes_nothing(self, event: Event) -> None:
        before = self.state, self.machine.error
        assert self.machine.handle(GroupStopped()) == []  # a second try to stop
        with pytest.raises(InvalidTransitionError):
            self.machine.handle(event)
        assert (self.state, self.machine.error) == before

    @invariant()
    def failures_are_counted_and_steps_are_not_lost(self) -> None:
        assert len(self.machine.history) <= self.machine.plan.job.max_failures + 1
        assert self.machine.attempt.number == self.number - 1
        assert self.machine.reached.steps >= self.most_steps
        self.most_steps = self.machine.reached.steps

    @invariant()
    def run_that_stops_has_asked_for_it(self) -> None:
        if self.state is RunState.STOPPING:
            assert self.is_stop_asked or self.awaits_collateral
        assert self.state not in ACTIVE or not self.is_stop_asked

    @invariant()
    def error_is_there_exactly_if_the_run_fails(self) -> None:
        if self.state.is_terminal:
            assert (self.machine.error is not None) == (self.state is RunState.FAILED)

    def teardown(self) -> None:
        if not self.state.is_terminal:
            self.handle(CancelRequested())
        if not self.state.is_terminal:
            self.handle(GroupStopped())
        assert self.state.is_terminal


TestAnyEvents = AnyEvents.TestCase
TestAnyEvents.settings = settings(any_values, max_examples=150, stateful_step_count=30)
