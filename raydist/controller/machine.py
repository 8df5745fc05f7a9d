"""RunMachine: what a run does next, decided from what happened. No I/O, no time, no threads."""

from __future__ import annotations

from raydist.controller import start_deadline
from raydist.controller.attempt import Attempt
from raydist.controller.events import (
    Action,
    AwaitCheckpoint,
    AwaitCollateral,
    CancelRequested,
    Crashed,
    Event,
    GraceDeadlinePassed,
    GroupBroken,
    GroupStopped,
    GroupUpdated,
    ReplaceTask,
    RunDeadlinePassed,
    SaveDeadlinePassed,
    SendOrder,
    StartAttempt,
    StartDeadlinePassed,
    StopGroup,
)
from raydist.controller.failure_policy import AttemptEnd, Decision, decide
from raydist.controller.reached import Reached
from raydist.controller.relocation import Relocation, Saving, resumed
from raydist.controller.replacement import Deaths, replace_dead
from raydist.controller.revival import Revival
from raydist.controller.root_cause import RootCause, find_root_cause, is_decisive
from raydist.controller.run_error import RunError
from raydist.controller.states import RunState
from raydist.controller.success import has_succeeded, servers
from raydist.controller.task_group import GroupUpdate
from raydist.errors import ClusterError, InvalidTransitionError, RaydistError, TrainingError
from raydist.planning.plan import Plan
from raydist.spec.status import FailureKind, Order, TaskState
from raydist.spec.tasks import TaskId, TaskType

_EVALUATOR = TaskId(task_type=TaskType.EVALUATOR, index=0)


class RunMachine:
    """Turns events into actions, so that every path of a run is a unit test.

    Attributes:
      plan: What is launched.
      state: Where the run stands.
      attempt: The tasks of the attempt in hand, or of the last one.
      reached: What the run has reached, over all attempts.
      error: Why the run failed, or is about to; None unless it does.
      deaths: The deaths that attempts outlived. `relocations`: the restarts that they made necessary.
      notes: One sentence for each attempt that was lost, or that left something behind.
    """

    def __init__(self, plan: Plan, *, first_attempt: int = 0) -> None:
        """Takes the number of the first attempt, which is not 0 when a run is resumed."""
        self.plan = plan
        self.state = RunState.STARTING
        self.attempt = Attempt(number=first_attempt, tasks=plan.tasks)
        self.reached = Reached()
        self.error: RunError | None = None
        self.deaths = Deaths()
        self.relocations: tuple[Relocation, ...] = ()
        self.notes: tuple[str, ...] = ()
        self._history: tuple[AttemptEnd, ...] = ()
        # What the run goes on as once the group is stopped: STARTING means another attempt. None while
        # the attempt goes on, and while further failures are awaited.
        self._next: RunState | None = None
        self._news_at_s = 0.0
        self._saving: Saving | None = None
        # The life of the evaluator that was told that training is done.
        self._finishing_life: int | None = None

    @classmethod
    def revived(cls, plan: Plan, revival: Revival) -> RunMachine:
        """Goes on in the place of a machine whose process died."""
        machine = cls(plan, first_attempt=revival.first_attempt)
        machine.reached, machine.notes = revival.reached, revival.notes
        machine._history = revival.history
        return machine

    @property
    def history(self) -> tuple[AttemptEnd, ...]:
        """What ended the attempts that count as failures."""
        return self._history

    @property
    def chief(self) -> TaskId:
        """The task that writes checkpoints and summaries: chief/0, else worker/0."""
        chief = TaskId(task_type=TaskType.CHIEF, index=0)
        return chief if chief in self.plan.tasks else TaskId(task_type=TaskType.WORKER, index=0)

    def start(self) -> list[Action]:
        """Returns what to do before the first event."""
        return [StartAttempt(self.attempt.number)]

    def handle(self, event: Event) -> list[Action]:
        """Takes `event` in and returns what to do now; raises InvalidTransitionError for a bug of ours."""
        is_collecting = self.state is RunState.STOPPING and self._next is None
        match self.state, event:
            case RunState.STARTING | RunState.RUNNING, GroupUpdated(update, at_s):
                return self._take_update(update, at_s)
            case RunState.STARTING | RunState.RUNNING, GroupBroken(error):
                return self._lose_group(error)
            case RunState.STARTING, StartDeadlinePassed():
                return self._pass_start_deadline()
            case RunState.STARTING | RunState.RUNNING, RunDeadlinePassed():
                return self._fail(RunError.from_exception(self._timeout_error(), attempt=self.attempt.number))
            case RunState.STARTING | RunState.RUNNING, SaveDeadlinePassed():
                return [] if self._saving is None else self._relocate()
            case RunState.STOPPING, GroupUpdated(update, at_s) if is_collecting:
                return self._take_update(update, at_s)
            case RunState.STOPPING, GraceDeadlinePassed() | GroupBroken() if is_collecting:
                return self._judge(find_root_cause(self.attempt))
            case RunState.STOPPING, GroupStopped(problem) if self._next is not None:
                return self._leave_attempt(self._next, problem)
            case RunState.STARTING | RunState.RUNNING | RunState.STOPPING, CancelRequested():
                return self._cancel()
            case RunState.STARTING | RunState.RUNNING | RunState.STOPPING, Crashed(error):
                return self._crash(error)
            case _:
                raise InvalidTransitionError(f"{type(event).__name__} in {self.state.name}")

    def _take_update(self, update: GroupUpdate, at_s: float) -> list[Action]:
        self._news_at_s = at_s
        self._take_statuses(update)
        if has_succeeded(self.plan.strategy, self.attempt.needed_states):
            return self._stop(RunState.SUCCEEDED)
        replacements = [] if self.state is RunState.STOPPING else self._replace_dead()
        if self.attempt.failures:
            return self._take_failures()
        # Also out of STOPPING, where a server's failure was looked into and the chief has returned since.
        if self.state is not RunState.STARTING or self.attempt.all_started:
            self.state = RunState.RUNNING
        return [*replacements, *self._finish_evaluator(), *self._follow_moved()]

    def _take_statuses(self, update: GroupUpdate) -> None:
        before, at_s = self.attempt, self._news_at_s
        self.attempt = before.updated(update)
        self.reached = self.reached.updated(update.statuses, chief=self.chief, attempt=before.number)
        self.deaths = self.deaths.updated(before, self.attempt, at_s=at_s)
        self.relocations = resumed(self.relocations, self.attempt.statuses.get(self.chief), at_s=at_s)
        if self._is_trained:
            self.attempt = self.attempt.without(servers(self.plan.strategy, self.plan.tasks))

    @property
    def _is_trained(self) -> bool:
        return self.attempt.state_of(self.chief) is TaskState.FINISHED

    def _replace_dead(self) -> list[Action]:
        self.attempt, self.deaths, tasks = replace_dead(
            self.attempt, self.deaths, strategy=self.plan.strategy, at_s=self._news_at_s
        )
        return [ReplaceTask(task) for task in tasks]

    def _finish_evaluator(self) -> list[Action]:
        """Tells the evaluator, and each process that takes its place, that training is done."""
        status = self.attempt.statuses.get(_EVALUATOR)
        if not self._is_trained or status is None or status.state is not TaskState.RUNNING:
            return []
        is_told, self._finishing_life = self._finishing_life == status.life, status.life
        return [] if is_told else [SendOrder(Order.FINISH, (_EVALUATOR,))]

    def _follow_moved(self) -> list[Action]:
        """Restarts a coordinator that cannot dial its workers' new addresses, once it has saved.

        Meanwhile it goes on training with the others (TF_NOTES.md 4.8).
        """
        chief = self.attempt.statuses.get(self.chief)
        if not self.attempt.moved:
            self._saving = None
            return []
        if chief is None or chief.state is not TaskState.RUNNING:
            return self._relocate()
        if self._saving is None:
            self._saving = Saving(checkpoint_before=chief.checkpoint)
            return [SendOrder(Order.SAVE, (self.chief,)), AwaitCheckpoint()]
        return self._relocate() if self._saving.is_done(chief) else []

    def _relocate(self) -> list[Action]:
        self.relocations = (*self.relocations, Relocation.of(self.attempt, at_s=self._news_at_s))
        return self._stop(RunState.STARTING)

    def _take_failures(self) -> list[Action]:
        if self.attempt.all_ended or any(map(is_decisive, self.attempt.failures)):
            return self._judge(find_root_cause(self.attempt))
        if self.state is RunState.STOPPING:
            return []
        # A consequence can be heard of before its cause, because a death is found by another path.
        self.state = RunState.STOPPING
        return [AwaitCollateral()]

    def _pass_start_deadline(self) -> list[Action]:
        if not self.attempt.is_placed:
            return self._lose_group(start_deadline.unplaced_error(self.plan, self.attempt))
        return self._judge(start_deadline.unready_cause(self.plan, self.attempt))

    def _judge(self, cause: RootCause) -> list[Action]:
        number, kind = self.attempt.number, cause.failure.kind
        decision = self._decide(cause.failure)
        if decision.is_retry:
            return self._retry(f"{cause.sentence(attempt=number)}; retried: {decision.reason}")
        # That a mistake is final, or an exception of the first attempt, needs no explanation.
        is_plain = kind is FailureKind.USER and len(self._history) == 1
        is_mistake = kind in (FailureKind.MISTAKE, FailureKind.STORAGE)
        suffix = "" if is_plain or is_mistake else f"; not retried: {decision.reason}"
        return self._fail(RunError.from_cause(cause, attempt=number, suffix=suffix))

    def _lose_group(self, error: RaydistError) -> list[Action]:
        number = self.attempt.number
        # What the cluster could not give, or refused, at the start would only be refused once more.
        if self.state is RunState.STARTING or not isinstance(error, ClusterError):
            return self._fail(RunError.from_exception(error, attempt=number))
        decision = self._decide(error)
        if decision.is_retry:
            return self._retry(f"attempt {number} was lost: {error}; retried: {decision.reason}")
        suffix = f"; not retried: {decision.reason}"
        return self._fail(RunError.from_exception(error, attempt=number, suffix=suffix))

    def _decide(self, end: AttemptEnd) -> Decision:
        decision = decide(
            end,
            restored_step=self.attempt.restored_step,
            history=self._history,
            max_failures=self.plan.job.max_failures,
        )
        self._history = (*self._history, end)
        return decision

    def _retry(self, note: str) -> list[Action]:
        self.notes = (*self.notes, note)
        return self._stop(RunState.STARTING)

    def _fail(self, error: RunError) -> list[Action]:
        self.error = error
        return self._stop(RunState.FAILED)

    def _cancel(self) -> list[Action]:
        if self._next is not None and self._next.is_terminal:
            return self._stop(self._next)  # the end is decided already: it only means "at once"
        return self._stop(RunState.CANCELLED)

    def _stop(self, following: RunState) -> list[Action]:
        self.state = RunState.STOPPING
        self._next = following
        return [StopGroup()]

    def _leave_attempt(self, following: RunState, problem: str | None) -> list[Action]:
        number = self.attempt.number
        self.attempt = self.attempt.stopped()
        self._next = self._saving = self._finishing_life = None
        if problem is not None:
            self.notes = (*self.notes, f"attempt {number} could not be stopped cleanly: {problem}")
            if following is RunState.STARTING:
                # Another attempt beside processes that still live would fight them for hosts and ports.
                error = ClusterError("; ".join(self.notes[-2:]) + "; so it was not retried")
                self.error = RunError.from_exception(error, attempt=number)
                following = RunState.FAILED
        self.state = following
        if following is not RunState.STARTING:
            return []
        self.attempt = Attempt(number=number + 1, tasks=self.plan.tasks)
        return [StartAttempt(number + 1)]

    def _crash(self, error: BaseException) -> list[Action]:
        self.attempt = self.attempt.stopped()
        self.state = RunState.CANCELLED
        if not isinstance(error, KeyboardInterrupt):
            self.state = RunState.FAILED
            self.error = RunError.from_exception(error, attempt=self.attempt.number)
        return []

    def _timeout_error(self) -> TrainingError:
        return TrainingError(
            f"the run did not end within {self.plan.job.timeout:g} s (--timeout); "
            f"it reached step {self.reached.steps}"
        )
