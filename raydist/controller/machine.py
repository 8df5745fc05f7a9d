"""RunMachine: what a run does next, decided from what happened. No I/O, no time, no threads."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from raydist.controller import root_cause
from raydist.controller.attempt import Attempt, has_succeeded, servers
from raydist.controller.events import (
    Action,
    AddWorkers,
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
    RemoveWorkers,
    ReplaceTask,
    RoomFound,
    SendCommand,
    StartAttempt,
    StopGroup,
)
from raydist.controller.imbalance import Balancing
from raydist.controller.lost_attempts import LostAttempts
from raydist.controller.memory_growth import MemoryWatch
from raydist.controller.replacement import Deaths, replace_dead
from raydist.controller.restarts import Cause, Restart, Saving, resumed, saved_step, wanted
from raydist.controller.revival import Reached, Revival
from raydist.controller.root_cause import (
    RootCause,
    find_root_cause,
    in_order,
    is_decisive,
    kind_of,
    standstill_cause,
)
from raydist.controller.task_group import GroupUpdate
from raydist.controller.unequal_calls import unequal_calls
from raydist.controller.watchdog import Watchdog
from raydist.errors import ClusterError, RaydistError, RunTimeoutError, TaskFailedError
from raydist.outcome.result import RankFailure, RunError
from raydist.outcome.status import (
    AttemptEnd,
    Command,
    FailureKind,
    RunState,
    TaskFailure,
    TaskState,
    TaskStatus,
)
from raydist.planning.fitting import describe_growth, resized
from raydist.planning.plan import Plan
from raydist.spec.tasks import TaskId, TaskType, chief_of
from raydist.spec.text import listed
from raydist.stragglers.watch import StragglerWatch

_EVALUATOR = TaskId(task_type=TaskType.EVALUATOR, index=0)


class InvalidTransitionError(RuntimeError):
    """A bug in raydist: an event arrived that the state does not allow."""


class RunMachine:
    """Turns events into actions, so that every path of a run is a unit test.

    Attributes:
      plan: What is launched.
      state: Where the run stands.
      attempt: The tasks of the attempt in hand, or of the last one.
      reached: What the run has reached, over all attempts.
      error: Why the run failed, or is about to; None unless it does.
      pace: How fast the tasks train, and which are slower than the others.
      deaths: The deaths that attempts outlived. `restarts`: the new attempts that were planned.
      notes: One sentence for each attempt that was lost, or that left something behind.
      interruptions: Those of `notes` about attempts that were lost, or have another size than the one before.
    """

    def __init__(self, plan: Plan, *, first_attempt: int = 0, reached: Reached | None = None) -> None:
        """Takes the number of the first attempt, and what was reached before, of a run that is resumed."""
        self.plan = plan
        self.state = RunState.STARTING
        self.attempt = Attempt.begun(first_attempt, plan.tasks)
        self.reached = reached or Reached()
        self.error: RunError | None = None
        self.pace = StragglerWatch()
        self.deaths = Deaths()
        self.restarts: tuple[Restart, ...] = ()
        self.notes: tuple[str, ...] = ()
        self.interruptions: tuple[str, ...] = ()
        self._lost = LostAttempts(max_failures=plan.job.max_failures)
        # What the run continues as once the group is stopped: STARTING means another attempt. None while
        # the attempt continues, and while further failures are awaited.
        self._next: RunState | None = None
        self._news_at_s = 0.0
        self._num_seen = 0  # of the attempt's changes
        self._watchdog = Watchdog(stall_timeout_s=plan.job.stall_timeout)
        self._memory = MemoryWatch()
        self._saving: Saving | None = None
        self._is_out_of_time = False  # and waits for the chief to save its last step
        self._awaits_stacks = self._is_state_doubted = False
        self._cause: RootCause | None = None  # of the end of the attempt that ended last
        self._failures: list[TaskFailure] = []  # of that attempt
        self._room = 0  # for so many workers, as far as is known
        self._balancing = Balancing()
        # The incarnation of the evaluator that has got FINISH, since training is done.
        self._finishing_incarnation: int | None = None
        self._is_chief_told = False  # that no evaluator is left

    @classmethod
    def revived(cls, plan: Plan, revival: Revival) -> RunMachine:
        """Continues in the place of a machine whose process died."""
        machine = cls(plan, first_attempt=revival.first_attempt, reached=revival.reached)
        machine.notes = revival.notes
        machine._lost = dataclasses.replace(machine._lost, ends=revival.history)
        return machine

    @property
    def failures(self) -> tuple[RankFailure, ...]:
        """How the tasks failed in the attempt that has ended the run, the first cause first."""
        if self.error is None or self.error.task is None or self._cause is None:
            return ()
        found = in_order(self._cause, self._failures)
        return tuple(RankFailure(task=one.task, type=one.error_type, message=one.message) for one in found)

    @property
    def history(self) -> tuple[AttemptEnd, ...]:
        """What ended the attempts that count as failures."""
        return self._lost.ends

    @property
    def out_of_memory(self) -> tuple[TaskType, ...]:
        """The roles that were short of memory, once for each attempt that was lost by it."""
        return self._lost.out_of_memory if self.plan.job.memory_retry is not None else ()

    @property
    def chief(self) -> TaskId:
        return chief_of(role.task_type for role in self.plan.roles)

    @property
    def may_resize(self) -> bool:
        """Whether another number of workers would be taken if they had room."""
        if not self.plan.is_elastic:
            return False
        if self.state is RunState.STARTING:
            return not self.attempt.is_placed
        has_less = self.plan.num_workers + len(self.plan.given_up) < self.plan.job.workers.maximum
        if self.plan.resizes_in_place:  # what is free may be for those that are awaited
            has_less = has_less and not self.attempt.num_awaited(TaskType.WORKER)
        return self.state is RunState.RUNNING and has_less and self._saving is None and not self._is_trained

    def start(self) -> list[Action]:
        """Returns what to do before the first event."""
        return [StartAttempt(self.attempt.number, out_of_memory=self.out_of_memory)]

    def handle(self, event: Event) -> list[Action]:
        """Takes `event` in and returns what to do now; raises InvalidTransitionError for a bug of ours."""
        is_collecting = self.state is RunState.STOPPING and self._next is None
        match self.state, event:
            case RunState.STARTING, AttemptPlanned(plan):
                return self._take_plan(plan)
            case RunState.STARTING | RunState.RUNNING, GroupUpdated(update, at_s, now_s):
                return self._take_update(update, at_s, now_s)
            case RunState.STARTING, RoomFound(num_workers):
                return self._stop(RunState.STARTING) if num_workers < self.plan.num_workers else []
            case RunState.RUNNING, RoomFound(num_workers) if self.plan.resizes_in_place:
                return self._add_workers(num_workers)
            case RunState.RUNNING, RoomFound(num_workers):
                self._room = num_workers
                return self._plan_restart()
            case RunState.STARTING | RunState.RUNNING, GroupBroken(error):
                return self._lose_group(error)
            case RunState.STARTING, DeadlinePassed(Deadline.START):
                return self._pass_start_deadline()
            case RunState.STARTING | RunState.RUNNING, DeadlinePassed(Deadline.RUN):
                return self._pass_run_deadline()
            case RunState.STARTING | RunState.RUNNING, DeadlinePassed(Deadline.SAVE):
                return self._give_up_saving()
            case RunState.STARTING | RunState.RUNNING, DeadlinePassed(Deadline.STACKS):
                return self._end_stalled() if self._awaits_stacks else []
            case RunState.STOPPING, GroupUpdated(update, at_s, now_s) if is_collecting:
                return self._take_update(update, at_s, now_s)
            case RunState.STOPPING, GroupBroken(TaskFailedError() as error) if is_collecting:
                return self._lose_group(error)
            case RunState.STOPPING, DeadlinePassed(Deadline.GRACE | Deadline.SAVE) | GroupBroken() if (
                is_collecting
            ):
                return self._judge(self._collateral_cause())
            case RunState.STOPPING, GroupStopped(problem) if self._next is not None:
                self._take_last_news(event)
                return self._leave_attempt(self._next, problem)
            case _, GroupStopped() if self.state.is_terminal:  # after a crash, or stopped at the second try
                self._take_last_news(event)
                return []
            case RunState.STARTING | RunState.RUNNING | RunState.STOPPING, CancelRequested():
                return self._cancel()
            case RunState.STARTING | RunState.RUNNING | RunState.STOPPING, Crashed(error):
                return self._crash(error)
            case _:
                which = f" ({event.deadline.name})" if isinstance(event, DeadlinePassed) else ""
                raise InvalidTransitionError(f"{type(event).__name__}{which} in {self.state.name}")

    def _take_plan(self, plan: Plan) -> list[Action]:
        before, number, now = self.plan.num_workers, self.attempt.number, plan.num_workers
        if self.out_of_memory:
            sentence = describe_growth(self.plan, plan, self.out_of_memory[-1])
            if sentence:
                self._note_interruption(f"attempt {number} {sentence}")
        self.plan = plan
        if now != before:
            self._note_interruption(f"attempt {number} trains with {now} workers instead of {before}")
        self._note(*(f"attempt {number} {use}" for use in plan.uses_of_unfit_hosts))
        self._begin_attempt(number)
        return []

    def _add_workers(self, num_workers: int) -> list[Action]:
        if num_workers <= self.plan.num_workers:
            return []
        larger = resized(self.plan, num_workers)
        added = [task for task in larger.tasks if task not in self.plan.tasks]
        self._note(
            f"{listed(added)} {'was' if len(added) == 1 else 'were'} added at step {self.attempt.step}: the "
            f"cluster has room for {num_workers} workers"
        )
        self.plan = larger
        self.attempt.add(self.plan.tasks)
        return [AddWorkers(self.plan)]

    def _begin_attempt(self, number: int) -> None:
        self.attempt = Attempt.begun(number, self.plan.tasks)
        self._num_seen = 0

    def _take_update(self, update: GroupUpdate, at_s: float, now_s: float) -> list[Action]:
        self._news_at_s = at_s
        self._note(*(note for note in update.notes if note not in self.notes))
        news = self._take_statuses(update)
        self._watchdog.look(self.attempt, news, now_s=now_s)
        self._look_at_memory(news, now_s)
        silent = self._watchdog.silent() if self.state is RunState.RUNNING else None
        if silent is not None:
            self.attempt.declare_lost(silent)
        if has_succeeded(self.plan.strategy, self.attempt.tally.counts):
            return self._stop(RunState.SUCCEEDED)
        replacements = [] if self.state is RunState.STOPPING else self._replace_dead()
        if self.attempt.failures:
            return self._take_failures()
        unequal = unequal_calls(self.attempt, news)
        if unequal is not None and self.state is not RunState.STOPPING:
            return self._judge(unequal)
        # Also out of STOPPING, where a server's failure was looked into and the chief has returned since.
        if self.state is not RunState.STARTING or self.attempt.all_started:
            self.state = RunState.RUNNING
        if self._watchdog.is_stalled and self.state is RunState.RUNNING:
            return self._look_into_stall()
        self._awaits_stacks = False
        if self._is_out_of_time:
            return self._stop(RunState.FAILED) if self._has_saved_all() else replacements
        planned = self._plan_restart()
        return planned if self._next is not None else [*replacements, *self._finish_evaluator(), *planned]

    def _look_into_stall(self) -> list[Action]:
        """Ends an attempt without progress, once its tasks have said where they are."""
        if not self._awaits_stacks:
            self._awaits_stacks = True
            return [SendCommand(Command.DUMP_STACKS, self.attempt.needed), Await(Deadline.STACKS)]
        return self._end_stalled() if self.attempt.all_located else []

    def _end_stalled(self) -> list[Action]:
        stall_timeout_s = self.plan.job.stall_timeout
        return self._judge(standstill_cause(self.attempt, chief=self.chief, stall_timeout_s=stall_timeout_s))

    def _take_statuses(self, update: GroupUpdate) -> tuple[TaskStatus, ...]:
        """Returns the newest status of each task that has told one, or was changed after the last update."""
        was_trained, at_s = self._is_trained, self._news_at_s
        back = self.attempt.take(update)
        news = self.attempt.news_since(self._num_seen, (status.task for status in update.statuses))
        self._num_seen = len(self.attempt.changes)
        self._update_reached(update.statuses)
        self.deaths.end(back, self.attempt, at_s=at_s)
        self.restarts = resumed(self.restarts, self.attempt.statuses.get(self.chief), at_s=at_s)
        self.pace.take(news)
        if self._is_trained and not was_trained:
            is_script = self.plan.job.entry_point.is_script
            strategy, tasks, success = self.plan.strategy, self.plan.tasks, self.plan.job.success
            self.attempt.dismiss(servers(strategy, tasks, is_script=is_script, success=success))
        return news

    def _look_at_memory(self, news: Sequence[TaskStatus], now_s: float) -> None:
        num_known = len(self._memory.notes)
        self._memory.take(
            news,
            now_s=now_s,
            left_s=self.attempt.left_s(self.chief),
            reserved_bytes=lambda task: self.plan.resources_of(task).memory_bytes,
        )
        self._note(*self._memory.notes[num_known:])

    def _update_reached(self, statuses: Sequence[TaskStatus]) -> None:
        self.reached = self.reached.updated(
            statuses,
            chief=self.chief,
            attempt=self.attempt.number,
            keep_best=self.plan.job.keep_best,
        )

    @property
    def _is_trained(self) -> bool:
        return self.attempt.state_of(self.chief) is TaskState.FINISHED

    def _replace_dead(self) -> list[Action]:
        plan, at_s = self.plan, self._news_at_s
        least = plan.job.workers.minimum if plan.resizes_in_place else None
        replaced = replace_dead(
            self.attempt, self.deaths, strategy=plan.strategy, at_s=at_s, least_workers=least
        )
        actions: list[Action] = [ReplaceTask(task) for task in replaced]
        dismissed = self.attempt.dismissed if not self._is_trained else ()
        workers = (task for task in dismissed if task.task_type is TaskType.WORKER)
        given_up = tuple(sorted(set(workers).difference(plan.given_up), key=lambda task: task.index))
        if given_up:
            self.plan = dataclasses.replace(plan, given_up=(*plan.given_up, *given_up))
            actions.append(RemoveWorkers(self.plan))
        return actions

    def _finish_evaluator(self) -> list[Action]:
        """Sends FINISH to the evaluator, and to each process that takes its place, once training is done.

        And to the chief once the evaluator was given up or has ended, so that it does not wait for values.
        """
        state = self.attempt.state_of(_EVALUATOR)
        is_gone = _EVALUATOR in self.attempt.dismissed or state is TaskState.FINISHED
        if is_gone and not self._is_trained:
            is_told, self._is_chief_told = self._is_chief_told, True
            return [] if is_told else [SendCommand(Command.FINISH, (self.chief,))]
        if not self._is_trained or state is not TaskState.RUNNING:
            return []
        incarnation = self.attempt.statuses[_EVALUATOR].incarnation
        if self._finishing_incarnation == incarnation:
            return []
        self._finishing_incarnation = incarnation
        return [SendCommand(Command.FINISH, (_EVALUATOR,))]

    def _plan_restart(self) -> list[Action]:
        """Restarts an attempt that continues well where another one is better, once the chief has saved.

        It continues to train, unless the restart is certain.
        """
        cause, chief = self._restart_cause(), self.attempt.statuses.get(self.chief)
        if cause is None or self._is_trained:
            self._saving = None
            return []
        if chief is None or chief.state is not TaskState.RUNNING or not cause.can_save:
            return [] if cause.needs_checkpoint else self._restart(cause)
        if self._saving is None or (cause.is_certain and not self._saving.cause.is_certain):
            self._saving = Saving(cause=cause, checkpoint_before=chief.checkpoint)
            command = Command.SAVE_LAST if cause.is_certain else Command.SAVE
            return [SendCommand(command, (self.chief,)), Await(Deadline.SAVE)]
        return self._restart(cause) if self._saving.is_done(chief) else []

    def _has_saved_all(self) -> bool:
        chief = self.attempt.statuses.get(self.chief)
        return chief is not None and 0 < chief.step <= saved_step(chief.checkpoint)

    def _restart_cause(self) -> Cause | None:
        if self._saving is not None and self._saving.cause.is_certain:
            return self._saving.cause  # the chief stands still
        imbalance = self._balancing.find(self.plan, self.attempt.addresses, self.pace)
        return wanted(self.attempt, plan=self.plan, room=self._room, imbalance=imbalance)

    def _give_up_saving(self) -> list[Action]:
        if self._is_out_of_time:
            return self._stop(RunState.FAILED)
        cause = self._restart_cause()
        if self._saving is None or cause is None:
            return []
        if not cause.needs_checkpoint:
            return self._restart(cause)
        self._saving, self._room = None, 0
        self._balancing.give_up()
        if cause.speeds is not None:
            self._note(
                "--shares auto has no effect: no checkpoint was saved, from which training could go on with "
                "other parts of the batch; save with ctx.fit, ctx.callbacks() or ctx.restore"
            )
        return []

    def _restart(self, cause: Cause) -> list[Action]:
        self.restarts = (*self.restarts, Restart(cause=cause, stopped_at_s=self._news_at_s))
        if cause.speeds is not None:
            self._balancing.take(cause.speeds)
        return self._stop(RunState.STARTING)

    def _take_failures(self) -> list[Action]:
        if self.attempt.all_ended or any(map(is_decisive, self.attempt.failures)):
            if self._watchdog.was_suspended and all(map(_is_death, self.attempt.failures)):
                return self._restart(self._suspension())
            return self._judge(find_root_cause(self.attempt))
        if self.state is RunState.STOPPING:
            return []
        # A consequence can be reported before its cause, because a death is found by another path.
        self.state = RunState.STOPPING
        if not any(failure.kind is FailureKind.SAVED for failure in self.attempt.failures):
            return [Await(Deadline.GRACE)]
        # The other workers save at the same step; the chief, whose checkpoint counts, may take longest.
        return [] if self._saving is not None or self._is_out_of_time else [Await(Deadline.SAVE)]

    def _suspension(self) -> Cause:
        stood_s = self._watchdog.suspended_s
        tasks = tuple(failure.task for failure in self.attempt.failures)
        what = f"the process that drives the run stood still for {stood_s:.0f} s, so its tasks gave it up"
        return Cause(tasks=tasks, what=what)

    def _collateral_cause(self) -> RootCause:
        """The root cause where no task reported it: one without heartbeats is a better cause than none."""
        cause, suspect = find_root_cause(self.attempt), self._watchdog.suspect()
        if suspect is None or cause.failure.kind is not FailureKind.COLLATERAL:
            return cause
        return RootCause(failure=suspect, collateral=self.attempt.unfinished_besides(suspect.task))

    def _pass_start_deadline(self) -> list[Action]:
        if not self.attempt.is_placed:
            return self._lose_group(root_cause.unplaced_error(self.plan, self.attempt))
        return self._judge(root_cause.unready_cause(self.plan, self.attempt))

    def _pass_run_deadline(self) -> list[Action]:
        """Ends the run, once the chief has saved what it has trained."""
        chief, entry_point = self.attempt.statuses.get(self.chief), self.plan.job.entry_point
        if chief is None or chief.state is not TaskState.RUNNING:
            return self._fail(self._timeout_error())
        may_never_save = chief.first_step_at_s is None or (entry_point.is_script and chief.checkpoint is None)
        if may_never_save and not chief.saves_by_itself:
            return self._fail(self._timeout_error())
        self._is_out_of_time = True
        return [SendCommand(Command.SAVE_LAST, (self.chief,)), Await(Deadline.SAVE)]

    def _judge(self, cause: RootCause) -> list[Action]:
        if cause.failure.kind is FailureKind.SAVED and self._is_out_of_time:
            return self._stop(RunState.FAILED)
        if cause.failure.kind is FailureKind.SAVED and self._saving is not None:
            return self._restart(self._saving.cause)
        # After an exception of the user's, a checkpoint is what has proved to be good for a while.
        self._is_state_doubted = cause.failure.kind is FailureKind.USER
        self._cause, self._failures = cause, list(self.attempt.failures)
        self._lost, following = self._lost.with_cause(cause, self.attempt, at_s=self._news_at_s)
        return self._follow(following)

    def _lose_group(self, error: RaydistError) -> list[Action]:
        # What the cluster could not give, or refused, at the start would only be refused once more.
        is_lasting = self.state is RunState.STARTING or not isinstance(error, ClusterError)
        # A TaskFailedError is an extra role's, which another attempt may cure.
        if is_lasting and not isinstance(error, TaskFailedError):
            return self._fail(RunError.from_exception(error, attempt=self.attempt.number))
        self._lost, following = self._lost.with_silence(error, self.attempt)
        return self._follow(following)

    def _follow(self, following: str | RunError) -> list[Action]:
        if isinstance(following, RunError):
            return self._fail(following)
        self._note_interruption(following)
        return self._stop(RunState.STARTING)

    def _note_interruption(self, sentence: str) -> None:
        self._note(sentence)
        self.interruptions = (*self.interruptions, sentence)

    def _note(self, *sentences: str) -> None:
        if sentences:
            self.notes = (*self.notes, *sentences)

    def _fail(self, error: RunError) -> list[Action]:
        self.error = error
        return self._stop(RunState.FAILED)

    def _cancel(self) -> list[Action]:
        if self._next is not None and self._next.is_terminal:
            return self._stop(self._next)  # the end is decided already: it only means "at once"
        return self._stop(RunState.CANCELLED)

    def _stop(self, following: RunState) -> list[Action]:
        if self._is_out_of_time and following in (RunState.STARTING, RunState.FAILED):
            self.error, following = self._timeout_error(), RunState.FAILED
        self.state = RunState.STOPPING
        self._next = following
        is_another = following is RunState.STARTING
        keeps_state = not (is_another and self._is_state_doubted)
        return [StopGroup(for_another=is_another, keeps_state=keeps_state)]

    def _take_last_news(self, stopped: GroupStopped) -> None:
        # Why the attempt ended is known already: a task that fails as it is stopped changes nothing.
        statuses = tuple(status for status in stopped.statuses if status.failure is None)
        # But one that has raised meanwhile is told; the others are ended by this stop.
        late = (status.failure for status in stopped.statuses if status.failure is not None)
        self._failures += [one for one in late if one.kind is not FailureKind.LOST]
        self.attempt.take(GroupUpdate(statuses=statuses))
        self._update_reached(stopped.statuses)
        if stopped.checkpoint is not None:
            self.reached = self.reached.with_checkpoint(stopped.checkpoint.uri, step=stopped.checkpoint.step)
        if stopped.is_checkpoint_gone:
            self.reached = dataclasses.replace(self.reached, checkpoint=None)
        if stopped.note is not None:
            self._note(stopped.note)
        if self.error is not None and self.error.type == RunTimeoutError.__name__:
            self.error = self._timeout_error()  # by what is saved now

    def _leave_attempt(self, following: RunState, problem: str | None) -> list[Action]:
        number = self.attempt.number
        self.attempt.end()
        self._next = self._saving = self._finishing_incarnation = None
        self._awaits_stacks = self._is_chief_told = self._is_state_doubted = False
        self._room = 0
        self._watchdog = Watchdog(stall_timeout_s=self.plan.job.stall_timeout)
        if problem is not None:
            self._note(f"attempt {number} could not be stopped cleanly: {problem}")
            if following is RunState.STARTING:
                # Another attempt beside processes that still live would fight them for hosts and ports.
                error = ClusterError("; ".join(self.notes[-2:]) + "; so it was not retried")
                self.error = RunError.from_exception(error, attempt=number)
                following = RunState.FAILED
        self.state = following
        if following is not RunState.STARTING:
            return []
        self._begin_attempt(number + 1)
        self.pace = self.pace.restarted()
        self._memory.restart()
        hosts, at_s = self._lost.hosts, self._news_at_s
        return [
            StartAttempt(
                number + 1,
                avoid=hosts.to_avoid(at_s=at_s),
                out_of_memory=self.out_of_memory,
                suspected=hosts.suspected(at_s=at_s),
                speeds=self._balancing.speeds,
            )
        ]

    def _crash(self, error: BaseException) -> list[Action]:
        self.attempt.end()
        self.state = RunState.CANCELLED
        if not isinstance(error, KeyboardInterrupt):
            self.state = RunState.FAILED
            self.error = RunError.from_exception(error, attempt=self.attempt.number)
        return []

    def _timeout_error(self) -> RunError:
        steps, saved = self.reached.steps, saved_step(self.reached.checkpoint)
        what = f"the run did not end within {self.plan.job.timeout:g} s (--timeout); it was at step {steps}"
        if saved:
            which = "which is saved" if saved >= steps else f"and step {saved} is saved"
            what += f", {which}: raydist resume continues there"
        return RunError.from_exception(RunTimeoutError(what), attempt=self.attempt.number)


def _is_death(failure: TaskFailure) -> bool:
    """Whether a task ended without an error of its own."""
    return kind_of(failure) in (FailureKind.LOST, FailureKind.COLLATERAL)
