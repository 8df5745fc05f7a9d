"""RunMachine: what a run does next, decided from what happened. No I/O, no time, no threads."""

from __future__ import annotations

from raydist.controller import start_deadline
from raydist.controller.attempt import Attempt, Reached
from raydist.controller.events import (
    Action,
    AwaitCollateral,
    CancelRequested,
    Crashed,
    Event,
    GraceDeadlinePassed,
    GroupBroken,
    GroupStopped,
    GroupUpdated,
    RunDeadlinePassed,
    StartAttempt,
    StartDeadlinePassed,
    StopGroup,
)
from raydist.controller.failure_policy import AttemptEnd, Decision, decide
from raydist.controller.root_cause import RootCause, find_root_cause, is_decisive
from raydist.controller.run_error import RunError
from raydist.controller.states import RunState
from raydist.controller.success import has_succeeded
from raydist.controller.task_group import GroupUpdate
from raydist.errors import ClusterError, InvalidTransitionError, RaydistError, TrainingError
from raydist.planning.plan import Plan
from raydist.spec.status import FailureKind
from raydist.spec.tasks import TaskId, TaskType


class RunMachine:
    """Turns events into actions, so that every path of a run is a unit test.

    Attributes:
      plan: What is launched.
      state: Where the run stands.
      attempt: The tasks of the attempt in hand, or of the last one.
      reached: What the run has reached, over all attempts.
      error: Why the run failed, or is about to; None unless it does.
      notes: One sentence for each attempt that was lost, or that left something behind.
    """

    def __init__(self, plan: Plan, *, first_attempt: int = 0) -> None:
        """Takes the number of the first attempt, which is not 0 when a run is resumed."""
        self.plan = plan
        self.state = RunState.STARTING
        self.attempt = Attempt(number=first_attempt, tasks=plan.tasks)
        self.reached = Reached()
        self.error: RunError | None = None
        self.notes: tuple[str, ...] = ()
        self._history: tuple[AttemptEnd, ...] = ()
        # What the run goes on as once the group is stopped: STARTING means another attempt. None while
        # the attempt goes on, and while further failures are awaited.
        self._next: RunState | None = None

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
            case RunState.STARTING | RunState.RUNNING, GroupUpdated(update):
                return self._take_update(update)
            case RunState.STARTING | RunState.RUNNING, GroupBroken(error):
                return self._lose_group(error)
            case RunState.STARTING, StartDeadlinePassed():
                return self._pass_start_deadline()
            case RunState.STARTING | RunState.RUNNING, RunDeadlinePassed():
                return self._fail(RunError.from_exception(self._timeout_error(), attempt=self.attempt.number))
            case RunState.STOPPING, GroupUpdated(update) if is_collecting:
                return self._take_update(update)
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

    def _take_update(self, update: GroupUpdate) -> list[Action]:
        self.attempt = self.attempt.updated(update)
        self.reached = self.reached.updated(update.statuses, chief=self.chief)
        if has_succeeded(self.plan.strategy, self.attempt.states):
            return self._stop(RunState.SUCCEEDED)
        if self.attempt.failures:
            return self._take_failures()
        if self.state is RunState.STARTING and self.attempt.all_started:
            self.state = RunState.RUNNING
        return []

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
        self._next = None
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
