"""`raydist reproduce RUN --verify N`: repeats steps with two numbers of workers, and compares all bits."""

from __future__ import annotations

import secrets
import shlex
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raydist.cli import running
from raydist.cli.kept_job import check_roles, kept_code, kept_job, kept_settings, lost_secrets
from raydist.cli.run_argument import checkpoint_of, open_named
from raydist.cli.screen import output, standard_streams
from raydist.errors import MistakeError, RunCancelledError, TrainingError
from raydist.outcome.codec import as_plain
from raydist.outcome.status import RunState
from raydist.runtime.task.code_archive import unpack
from raydist.spec.job import Strategy, WorkerRange
from raydist.spec.tasks import TaskType
from raydist.spec.text import counted

if TYPE_CHECKING:
    from raydist.runs.verification import Comparison
    from raydist.storage.checkpoint_marker import Checkpoint
    from raydist.storage.run_record import RunRecord
    from raydist.storage.run_storage import RunStorage

_POLL_S = 0.3
# What has no effect on the weights, and would do something outside of the repeated runs.
_WITHOUT: dict[str, Any] = {
    "on_end": None,
    "mlflow": None,
    "keep_best": None,
    "export": False,
    "detach": False,
}


def verify(
    run: str,
    workers: int,
    steps: int,
    from_step: int | None,
    address: str | None,
    storage: str,
    is_json: bool,
) -> int:
    """Repeats steps of a run twice, with its own number of workers and with `workers`, and compares all bits.

    Returns the exit code, 1 if a bit differs.
    """
    from raydist.runs.verification import check_can_verify
    from raydist.storage.filesystem import uri_below
    from raydist.storage.run_record import read_record

    opened = open_named(storage, run)
    record = read_record(opened)
    check_can_verify(opened.run, record.spec, workers=workers)
    check_roles(opened.run, record.spec, settings=kept_settings(record.spec))
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    repeats = _Repeats(
        run=opened,
        record=record,
        code=kept_code(opened, record),
        start=None if from_step is None else checkpoint_of(opened, from_step),
        last_step=(from_step or 0) + steps,
        storage=uri_below(storage, opened.verification(name)),
        options={} if address is None else {"address": address},
        is_json=is_json,
    )
    for note in lost_secrets(record.spec, layers=(kept_settings(record.spec),)):
        output.show(f"note: {note}", is_error=True)
    standard_streams.tolerate_failures()
    try:
        with output.stdout_kept_for_json(is_json), running.interrupts():
            verdict = repeats.verdict(workers)
    except TrainingError:
        raise  # names a log of the repeated run
    except BaseException:
        _remove(opened, name)
        raise
    if verdict.is_equal:
        _remove(opened, name)
    kept = None if verdict.is_equal else opened.uri(opened.verification(name))
    if is_json:
        output.print_json({"run": opened.run, **verdict.as_dict(), "kept": kept})
    else:
        for line in verdict.lines():
            output.show(line)
        if kept is not None:
            output.show(f"the repeated runs are kept: raydist list --storage {shlex.quote(str(kept))}")
    return 0 if verdict.is_equal else 1


@dataclass(frozen=True, kw_only=True)
class _Verdict:
    """How the repetitions compare with each other, and the first one with the run itself."""

    workers: tuple[int, int]
    repeats: Comparison
    run: Comparison

    @property
    def is_equal(self) -> bool:
        return self.repeats.difference is None and self.run.difference is None

    def as_dict(self) -> dict[str, Any]:
        return {
            "workers": self.workers,
            "equal": self.is_equal,
            "repeats": as_plain(self.repeats),
            "checkpoints": as_plain(self.run),
        }

    def lines(self) -> list[str]:
        own, other = self.workers
        first = f"with {counted(own, 'worker')} and with {other}: "
        itself = "the run's own checkpoints: "
        if not (self.run.steps or self.run.difference):
            return [first + _told(self.repeats), itself + "there are none of these steps"]
        return [first + _told(self.repeats), itself + _told(self.run)]


def _told(found: Comparison) -> str:
    count = counted(len(found.steps), "step")
    if found.difference is None:
        return f"all bits are equal over {count}, {found.steps[0]} to {found.steps[-1]}"
    return f"the first difference is in {found.difference}; {count} before it are equal"


@dataclass(frozen=True, kw_only=True)
class _Repeats:
    """Repeats steps of a run, on a storage of their own.

    Attributes:
      code: The packed working directory of the run; None if it had none.
      start: The checkpoint to begin after; None begins with the run's first step.
    """

    run: RunStorage
    record: RunRecord
    code: bytes | None
    start: Checkpoint | None
    last_step: int
    storage: str
    options: dict[str, Any]
    is_json: bool

    @property
    def num_workers(self) -> int:
        """How many workers the run had, at last if their number changed."""
        tasks = [one.task for one in self.record.tasks if one.task.task_type is TaskType.WORKER]
        return len(tasks) or WorkerRange.parse(str(self.record.spec.get("workers", 1))).maximum

    def verdict(self, workers: int) -> _Verdict:
        """Repeats the steps with the run's own number of workers and with `workers`, and compares."""
        from raydist.runs.verification import by_step, compare
        from raydist.storage.checkpoints import CheckpointStore

        with tempfile.TemporaryDirectory(prefix="raydist-verify-") as folder:
            if self.code is not None:
                unpack(self.code, Path(folder))
            one = self._repeated(f"own-{self.num_workers}-workers", self.num_workers, folder=folder)
            other = self._repeated(f"with-{workers}-workers", workers, folder=folder)
        first = 1 if self.start is None else self.start.step + 1
        stores = [CheckpointStore(each) for each in (one, other, self.run)]
        steps = [by_step(store.committed(), first=first, last=self.last_step) for store in stores]
        if not any(steps[:2]):
            raise MistakeError(
                f"the steps of run {self.run.run} that were repeated have no checkpoint; only ctx.fit and "
                "ctx.train_steps save them"
            )
        reads = [store.read for store in stores]
        repeats = compare(steps[0], steps[1], read_one=reads[0], read_other=reads[1])
        itself = compare(steps[0], steps[2], read_one=reads[0], read_other=reads[2], is_partial=True)
        return _Verdict(workers=(self.num_workers, workers), repeats=repeats, run=itself)

    def _repeated(self, name: str, workers: int, *, folder: str) -> RunStorage:
        """Runs the steps, each with a checkpoint, and returns where."""
        from raydist import api
        from raydist.storage.checkpoints import CheckpointStore
        from raydist.storage.run_storage import open_run

        place = open_run(self.storage, run=name)
        if self.start is not None:
            self._begin_after(self.start, place)
        first = 1 if self.start is None else self.start.step + 1
        count = counted(workers, "worker")
        output.show(f"repeating steps {first} to {self.last_step} with {count}", is_error=self.is_json)
        working_dir = None if self.code is None else folder
        options: dict[str, Any] = {
            "name": name,
            "storage": self.storage,
            "resume": self.start is not None,
            "workers": workers,
            "strategy": self._strategy(workers),
            "shares": None,  # of its own number of workers
            "checkpoint_every": 1,
            "keep": None,
            **_WITHOUT,
            **self.options,
        }
        if working_dir is not None:
            options["working_dir"] = working_dir
        job = kept_job(self.run.run, self.record.spec, working_dir=working_dir)
        handle = api.submit(job, config=kept_settings(self.record.spec), **options)
        store, is_done = CheckpointStore(place), False
        with running.stopped_at_end(handle):
            while not (is_done or handle.status().state.is_terminal):
                time.sleep(_POLL_S)
                newest = store.newest()
                is_done = newest is not None and newest.step >= self.last_step
        if not is_done and handle.status().state is RunState.CANCELLED:
            raise RunCancelledError(f"run {name} was stopped before it had repeated all steps")
        return place

    def _strategy(self, workers: int) -> str:
        """Returns the strategy of a repetition: the run's own, unless it is for one host only."""
        own = str(self.record.spec.get("strategy", "auto"))
        is_kept = own == Strategy.MULTI_WORKER_MIRRORED.value or workers == self.num_workers
        return own if is_kept else Strategy.AUTO.value

    def _begin_after(self, start: Checkpoint, place: RunStorage) -> None:
        """Stores what a run of that name is resumed from."""
        from raydist.storage.checkpoints import CheckpointStore
        from raydist.storage.run_record import RunRecordStore

        source, copies = CheckpointStore(self.run), CheckpointStore(place)
        ends = start.info.get("ended_fits", ())  # of fits before it, which the repetition asks for
        found = [source.find(step=step, attempt=attempt) for _, step, attempt in ends]
        for one in (*found, start):
            copies.commit(step=one.step, attempt=one.attempt, files=source.read(one), info=one.info)
        RunRecordStore(place).replace(self.record.as_cancelled(place))


def _remove(run: RunStorage, name: str) -> None:
    """Removes the repeated runs, and the folder of all verifications if it is empty."""
    folder = run.verification(name)
    run.delete(folder)
    run.remove_empty_folder(folder.rpartition("/")[0])
