"""The loop that starts, watches, retries and stops a run: does what the RunMachine decides."""

from __future__ import annotations

import collections
import dataclasses
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from raydist.controller import journal
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
    StoredCheckpoint,
)
from raydist.controller.machine import RunMachine
from raydist.controller.result import RunPlaces, result_of
from raydist.controller.revival import Revival
from raydist.controller.script_output import ScriptOutput
from raydist.controller.task_group import Clock, GroupUpdate, Launcher, TaskGroup
from raydist.errors import RaydistError, StorageError
from raydist.outcome.printed import Printed
from raydist.outcome.result import RunResult, command_for
from raydist.outcome.status import RunState

logger = logging.getLogger(__name__)

# Bounds how late a stop that is asked for from another thread is noticed.
POLL_S = 0.5
# How long a consequence waits for its cause: a dead process is known within a second.
GRACE_S = 1.0
# How long a chief gets to save before it is restarted: its workers continue to train.
SAVE_S = 30.0
# How long tasks get to say where they are: they take commands twice a second.
STACKS_S = 3.0
RECORD_EVERY_S = 1.0
# With many tasks the record is large. Who reads it takes one of 10 s for that of a dead controller.
_TASKS_A_SECOND, _MOST_RECORD_S = 200, 3.0
# How often a run that could have more workers looks whether there is room.
ROOM_EVERY_S = 10.0
# The same where a worker that comes costs no new attempt.
ROOM_IN_PLACE_EVERY_S = 2.0

_AWAITED_S = {Deadline.GRACE: GRACE_S, Deadline.SAVE: SAVE_S, Deadline.STACKS: STACKS_S}
# The deadlines that hold in a state; the first that has passed counts.
_DEADLINES = {
    RunState.STARTING: (Deadline.RUN, Deadline.START, Deadline.SAVE, Deadline.STACKS),
    RunState.RUNNING: (Deadline.RUN, Deadline.SAVE, Deadline.STACKS),
    RunState.STOPPING: (Deadline.GRACE, Deadline.SAVE),
}

Sink = Callable[[dict[str, Any]], None]


def record_every_s(num_tasks: int) -> float:
    """Returns the time between two records of a live run, but for those of its changes of state."""
    return min(max(RECORD_EVERY_S, num_tasks / _TASKS_A_SECOND), _MOST_RECORD_S)


class Controller:
    """Brings one run to its end, in the thread that calls `run`."""

    def __init__(
        self,
        machine: RunMachine,
        *,
        launcher: Launcher,
        clock: Clock,
        places: RunPlaces,
        record: Callable[[RunResult], object],
        on_event: Sink,
        newest_checkpoint: Callable[[], StoredCheckpoint | None] = lambda: None,
        on_end: Callable[[RunResult], str | None] | None = None,
        more_notes: Callable[[], Sequence[str]] = tuple,
        ray_s: float = 0.0,
        revival: Revival | None = None,
    ) -> None:
        """Takes what the controller works with.

        Args:
          record: Replaces run.json; called at each change of state, and every `record_every_s` in between.
            ClusterError ends the run: another process drives it.
          on_event: Takes what happens, as `journal` describes it. `record` and it may raise
            StorageError, which does not end the run.
          newest_checkpoint: Returns the newest committed checkpoint on storage, None without one; called once
            the processes of an attempt are gone. It may raise StorageError: what is known is kept then.
          on_end: Called once, when the run has ended and its last record is written. What it returns, unless
            None, becomes a note.
          more_notes: Returns the sentences that others add to the notes, all so far.
          ray_s: Seconds that the call had taken already, when Ray was connected.
          revival: What the machine took over from a controller that died; None otherwise.
        """
        self._machine = machine
        self._launcher = launcher
        self._clock = clock
        self._places = places
        self._record = record
        self._on_event = on_event
        self._newest_checkpoint = newest_checkpoint
        self._on_end = on_end
        self._more_notes = more_notes
        self._noted: tuple[str, ...] = ()
        self._group: TaskGroup | None = None
        self._output: ScriptOutput | None = None
        self._actions: collections.deque[Action] = collections.deque()
        self._stop_requested = threading.Event()
        self._started_s = self._started_unix_s = self._attempt_started_s = self._recorded_s = 0.0
        self._room_asked_s = 0.0
        self._limits_s: dict[Deadline, float] = {}  # when each deadline passes
        self._spent_s = ray_s if revival is None else revival.spent_s
        self._timings: dict[str, float] = {"ray": ray_s} if revival is None else dict(revival.timings)
        self._latest = result_of(machine, places=places, timings={})

    def run(self) -> RunResult:
        """Runs until the run has ended and its processes are gone, and returns how it ended.

        Ctrl-C cancels the run; another one while it stops makes it stop at once.

        Raises:
          Exception: A bug, or what an injected callable raised; it is recorded, and nothing is left running.
        """
        self._started_s = self._clock.now() - self._spent_s
        self._started_unix_s = self._clock.unix() - self._spent_s
        self._actions.extend(self._machine.start())
        try:
            self._tell_state()
            while not self._machine.state.is_terminal:
                try:
                    self._step()
                except KeyboardInterrupt:
                    self.request_stop()
        except BaseException as error:
            if not self._machine.state.is_terminal:
                self._handle(Crashed(error))
            raise
        finally:
            try:
                if self._group is not None:
                    self._handle(self._end_attempt())
                self._launcher.close()
            finally:
                self._write_last_record()
                self._call_end_hook()
        return self._latest

    def record_acceptance(self) -> None:
        """Writes the record before `run`; raises StorageError where it cannot: no such run is accepted."""
        self._record(self._latest)

    def request_stop(self) -> None:
        """Asks for the run to be cancelled, from any thread; harmless when it has ended."""
        self._stop_requested.set()

    def status(self) -> RunResult:
        """Returns where the run stands, from any thread."""
        return self._latest

    def _step(self) -> None:
        if self._stop_requested.is_set():
            self._stop_requested.clear()
            # What was about to be done is replaced; an interrupted stop is asked for again.
            self._actions.clear()
            self._handle(CancelRequested())
        elif self._actions:
            self._perform(self._actions.popleft())
        else:
            self._listen()

    def _perform(self, action: Action) -> None:
        match action:
            case StartAttempt():
                self._start_attempt(action)
            case Await(deadline):
                self._limits_s[deadline] = self._clock.now() + _AWAITED_S[deadline]
            case ReplaceTask(task):
                self._call_group(lambda group: group.replace(task))
            case AddWorkers(plan):
                self._call_group(lambda group: group.add_workers(plan))
            case RemoveWorkers(plan):
                self._call_group(lambda group: group.remove_workers(plan))
            case SendCommand(command, tasks):
                self._call_group(lambda group: group.command(command, tasks))
            case StopGroup(for_another, keeps_state):
                self._handle(self._end_attempt(for_another=for_another, keeps_state=keeps_state))

    def _start_attempt(self, asked: StartAttempt) -> None:
        self._attempt_started_s = self._room_asked_s = self._clock.now()
        job = self._machine.plan.job
        self._limits_s = {Deadline.START: self._attempt_started_s + job.start_timeout}
        if job.timeout is not None:
            self._limits_s[Deadline.RUN] = self._started_s + job.timeout
        try:
            plan = self._launcher.replan(
                avoid=asked.avoid, suspected=asked.suspected, out_of_memory=asked.out_of_memory
            )
            plan = dataclasses.replace(plan, speeds=asked.speeds)
            self._handle(AttemptPlanned(plan))
            if job.entry_point.is_script:
                logs_command = command_for(self._places.storage, "logs")
                self._output = ScriptOutput.of(plan, logs_command=logs_command)
            self._group = self._launcher.launch(plan, attempt=asked.number)
        except RaydistError as error:
            self._handle(GroupBroken(error))

    def _look_for_room(self) -> None:
        machine, now_s = self._machine, self._clock.now()
        every_s = ROOM_IN_PLACE_EVERY_S if machine.plan.resizes_in_place else ROOM_EVERY_S
        if not machine.may_resize or now_s - self._room_asked_s < every_s:
            return
        self._room_asked_s = now_s
        # Also while workers wait for their room: a host may have gone that was counted on.
        num_workers = self._launcher.room(machine.plan, is_placed=machine.attempt.is_placed)
        if num_workers != machine.plan.num_workers:
            self._handle(RoomFound(num_workers))

    def _call_group(self, call: Callable[[TaskGroup], None]) -> None:
        assert self._group is not None
        try:
            call(self._group)
        except RaydistError as error:
            self._actions.clear()  # what else was to be done to a group that is no more
            self._handle(GroupBroken(error))

    def _listen(self) -> None:
        assert self._group is not None
        try:
            update = self._group.poll(timeout_s=self._poll_timeout_s())
        except RaydistError as error:
            self._handle(GroupBroken(error))
            return
        self._note_timings(update)
        self._show_output(update.printed)
        self._handle(GroupUpdated(update, self._clock.unix(), self._clock.now()))
        # After the news, which may have come while something else took long.
        due = None if self._actions else self._due()
        if due is not None:
            self._handle(DeadlinePassed(due))
            del self._limits_s[due]
        if not self._actions:
            self._look_for_room()
        if not self._actions:  # what is to be done does not wait for storage
            self._report_progress()

    def _handle(self, event: Event) -> None:
        machine = self._machine
        state, known = machine.state, journal.Known.of(machine)
        self._actions.extend(machine.handle(event))
        # Of a stopped group only its last checkpoint: each task has ended with it.
        describe = journal.checkpoint_events if isinstance(event, GroupStopped) else journal.news_events
        for fact in describe(machine, known, at_s=self._clock.unix()):
            self._tell(fact)
        if machine.state is not state:
            name, number = machine.plan.job.name, machine.attempt.number
            logger.info("run %s attempt %d: %s -> %s", name, number, state.name, machine.state.name)
            self._tell_state()

    def _due(self) -> Deadline | None:
        now_s = self._clock.now()
        return next((deadline for deadline, limit_s in self._limits().items() if now_s >= limit_s), None)

    def _poll_timeout_s(self) -> float:
        now_s = self._clock.now()
        return max(0.0, min([POLL_S, *(limit_s - now_s for limit_s in self._limits().values())]))

    def _limits(self) -> dict[Deadline, float]:
        """Returns the deadlines that hold now, each with the time at which it passes."""
        holding = _DEADLINES.get(self._machine.state, ())
        return {deadline: self._limits_s[deadline] for deadline in holding if deadline in self._limits_s}

    def _end_attempt(self, *, for_another: bool = False, keeps_state: bool = True) -> GroupStopped:
        """Stops the group, if there is one, and returns what is known of its tasks then."""
        group = self._group
        problem = self._stop_group(for_another=for_another, keeps_state=keeps_state)
        last = GroupUpdate() if group is None else group.last_update()
        self._show_output(last.printed, is_last=True)
        statuses = last.statuses
        reported = [status.checkpoint for status in statuses if status.checkpoint is not None]
        named = next(reversed(reported), self._machine.reached.checkpoint)
        stored, is_gone, note = None, False, None
        try:
            stored = self._newest_checkpoint()
            is_gone = stored is None and named is not None
        except StorageError as error:
            logger.warning("the newest checkpoint could not be looked up: %s", error)
            note = f"{named} may be gone, storage cannot be read: {error}" if named is not None else None
        if is_gone:
            note = f"{named} is gone: something has deleted the run's checkpoints from storage"
        return GroupStopped(
            problem, statuses=statuses, checkpoint=stored, is_checkpoint_gone=is_gone, note=note
        )

    def _stop_group(self, *, for_another: bool, keeps_state: bool) -> str | None:
        """Stops the group, if there is one; returns why it could not be stopped, or None."""
        if self._group is None:
            return None
        try:
            self._group.stop(for_another=for_another, keeps_state=keeps_state)
        except Exception as error:
            # Even if the stop fails, the run ends with the result it had. Kept, to be tried once more.
            logger.exception("attempt %d could not be stopped", self._machine.attempt.number)
            return f"{type(error).__name__}: {error}"
        self._group = None
        return None

    def _note_timings(self, update: GroupUpdate) -> None:
        # Of the first attempt that got so far: what a retry takes is not part of the launch.
        offset_s = self._attempt_started_s - self._started_s
        for name, seconds in update.timings:
            self._timings.setdefault(name, offset_s + seconds)
        first_steps = [s.first_step_at_s for s in update.statuses if s.first_step_at_s is not None]
        if first_steps and "first_step" not in self._timings:
            # Another host's clock may be behind ours.
            self._timings["first_step"] = max(0.0, min(first_steps) - self._started_unix_s)

    def _report_progress(self) -> None:
        now_s = self._clock.now()
        if now_s - self._recorded_s >= record_every_s(len(self._machine.attempt.tasks)):
            self._write_record()
        run_s = now_s - self._started_s
        ready_s = self._timings.get("tasks_ready")
        running_s = None if ready_s is None else run_s - ready_s
        at_s = self._clock.unix()
        self._tell(journal.progress_event(self._machine, at_s=at_s, run_s=run_s, running_s=running_s))

    def _show_output(self, printed: Sequence[Printed], *, is_last: bool = False) -> None:
        output, now_s = self._output, self._clock.now()
        if output is None:
            return
        output.add(printed, now_s=now_s)
        if lines := output.take(now_s=now_s, is_last=is_last):
            self._tell(journal.output_event(self._machine, lines, at_s=self._clock.unix()))

    def _tell_state(self) -> None:
        self._write_record()
        at_s, error = self._clock.unix(), self._latest.error
        self._tell(journal.state_event(self._machine, at_s=at_s, error=error))

    def _tell(self, event: dict[str, Any]) -> None:
        try:
            self._on_event(event)
        except StorageError as error:
            logger.warning("the events of the run could not be written: %s", error)

    def _write_record(self) -> StorageError | None:
        """Replaces the record; returns why it could not, since a run outlives a storage that stutters."""
        self._recorded_s = self._clock.now()
        timings = {**self._timings, "total": self._recorded_s - self._started_s}
        latest = result_of(self._machine, places=self._places, timings=timings)
        known, self._noted = self._noted, tuple(self._more_notes())
        for note in (one for one in self._noted if one not in known):
            self._tell(journal.note_event(self._machine, note, at_s=self._clock.unix()))
        self._latest = dataclasses.replace(latest, notes=(*latest.notes, *self._noted))
        try:
            self._record(self._latest)
        except StorageError as error:
            logger.warning("the record of the run could not be written: %s", error)
            return error
        return None

    def _call_end_hook(self) -> None:
        note = None if self._on_end is None else self._on_end(self._latest)
        if note is None:
            return
        logger.warning("run %s: %s", self._machine.plan.job.name, note)
        self._latest = dataclasses.replace(self._latest, notes=(*self._latest.notes, note))
        try:
            self._record(self._latest)
        except RaydistError as error:  # or another process has resumed the run
            logger.warning("the record of the run could not be written: %s", error)
        else:
            self._tell(journal.note_event(self._machine, note, at_s=self._clock.unix()))

    def _write_last_record(self) -> None:
        problem = self._write_record()
        if problem is not None:
            note = f"run.json is not up to date, it could not be written: {problem}"
            self._latest = dataclasses.replace(self._latest, notes=(*self._latest.notes, note))
