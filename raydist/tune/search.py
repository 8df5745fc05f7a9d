"""Searches: Tune makes the trials and stops them early, and each one is an ordinary run of a study."""

from __future__ import annotations

import contextlib
import math
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

from ray import tune
from ray.tune.experiment import Trial
from ray.tune.result import AUTO_RESULT_KEYS

from raydist import api, errors
from raydist.errors import ClusterError, MistakeError, RaydistError, SpecError, StorageError
from raydist.metrics.curves import series_of
from raydist.metrics.reading import read_columns
from raydist.outcome.result import RunError
from raydist.outcome.status import RunState, Scope
from raydist.planning.capacity import describe_roles, num_at_once
from raydist.planning.plan import Plan
from raydist.runtime.cluster.connection import EmbeddedSize, connect
from raydist.runtime.host.address import ADDRESS_VARIABLE, CLIENT_PREFIX
from raydist.runtime.host.salvage import new_owner
from raydist.spec.best import Direction
from raydist.storage.claims import this_process
from raydist.storage.failures import is_full_disk
from raydist.storage.filesystem import Storage
from raydist.storage.run_record import RunRecordStore
from raydist.storage.run_storage import RunStorage
from raydist.storage.studies import StudyStore
from raydist.tune.run_trainable import OWN_KEYS, SEED, run_name, trainable_of
from raydist.tune.study import Study, TrialRow, missing_metric
from raydist.tune.tuner import Search, Variants, new_tuner, param_space, quiet_tune
from raydist.watch.watcher import DrivenRun, watched

# What stops a search.
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)


def check_parallel(plan: Plan, asked: int | None) -> int:
    """Returns how many trials go at a time.

    Raises:
      ClusterError: Fewer have room than are asked for.
    """
    if asked is None:
        return num_at_once(plan.inventory, plan.all_roles, cpus_per_core=1)
    at_most = num_at_once(plan.inventory, plan.all_roles)
    if asked > at_most and not plan.inventory.can_grow:
        raise ClusterError(
            f"parallel is {asked}, but {plan.inventory.source} has room for {at_most} "
            f"{'trial' if at_most == 1 else 'trials'} at a time, each with {describe_roles(plan.all_roles)}; "
            f"use --parallel {at_most}"
        )
    return asked


def run_search(search: Search, *, tell: Callable[[str], None], show: Callable[[TrialRow], None]) -> Study:
    """Runs a search to its end, or until Ctrl-C has stopped all its trials.

    Args:
      tell: Takes sentences about its beginning.
      show: Takes each trial that has ended.

    Raises:
      MistakeError: What was asked cannot be done as written, or no trial reports the metric.
      ClusterError: The cluster cannot give it, or could not be reached or started.
      StorageError: Storage cannot be written. The study can be continued.
    """
    job = search.packed.request.job
    address = job.address or os.environ.get(ADDRESS_VARIABLE, "")
    if address.startswith(CLIENT_PREFIX):
        raise SpecError(f"address is {address}, and Tune needs a host of the cluster; run the search on one")
    storage = Storage.open(job.storage)
    store = StudyStore(storage)
    plan = api.plan_packed(search.packed)
    parallel = check_parallel(plan, search.parallel)
    if search.is_resumed:
        study = store.find(search.settings, name=search.study)
    else:
        study = search.study or job.name
        store.begin(study, search.settings)
    packed = search.packed.run_of(job.name, params=search.space.params_of_job(job.params), study=study)
    tell(f"study {study}")
    tell(f"{search.num_trials} trials, {parallel} at a time, each with {describe_roles(plan.all_roles)}")

    def size() -> EmbeddedSize:
        amounts = {name: parallel * amount for name, amount in plan.embedded_resources.items()}
        return EmbeddedSize(num_cpus=parallel * (plan.embedded_cpus or 1), resources=amounts)

    with contextlib.ExitStack() as stack:
        stack.enter_context(store.held(study))
        watcher = stack.enter_context(watched())
        connection = stack.enter_context(connect(job.address, embedded=size))
        session = None if connection.session is None else str(connection.session)
        watcher.begin(
            DrivenRun(
                name=study,
                storage=job.storage,
                owner=new_owner(),
                driver=this_process(),
                session=session,
                is_study=True,
            )
        )
        state = _Searching(search, study=study, store=store, storage=storage, show=show)
        with quiet_tune(), state.current():
            state.run(packed, parallel=parallel)
        # Ray is still there: a trial that was stopped has stored its last record by now.
        rows = tuple(map(state.row_of, state.trials))
        state.keep_values(rows)
        not_ended = [row.run for row in rows if not row.has_ended]
    if state.problem is not None:
        raise state.problem
    if (not_ended or len(rows) < search.num_trials) and not state.is_interrupted:
        named = f", and these have not ended: {', '.join(not_ended)}" if not_ended else ""
        raise ClusterError(
            f"{len(rows)} of the {search.num_trials} trials of study {study} have begun{named}; to continue, "
            f"add --study {study} --resume"
        )
    return Study(
        name=study,
        storage=job.storage,
        metric=search.metric,
        direction=search.direction,
        trials=rows,
        num_trials=search.num_trials,
        is_interrupted=state.is_interrupted,
    )


class _Searching:
    """The search of this process. Tune keeps its callbacks on storage, so that they can hold nothing of it.

    Attributes:
      trials: All trials so far.
      problem: What ends the search; None while nothing does.
      is_interrupted: Whether Ctrl-C or SIGTERM has stopped it.
    """

    _now: ClassVar[_Searching | None] = None

    def __init__(
        self,
        search: Search,
        *,
        study: str,
        store: StudyStore,
        storage: Storage,
        show: Callable[[TrialRow], None],
    ) -> None:
        self._search = search
        self._study = study
        self._store = store
        self._values: dict[str, float] = {}
        self._storage = storage
        self._show = show
        self._cut: set[str] = set()  # trials that it stops, which Tune knows as terminated then
        self.trials: Sequence[Trial] = ()
        self.problem: RaydistError | None = None
        self.is_interrupted = False

    @classmethod
    def now(cls) -> _Searching:
        assert cls._now is not None
        return cls._now

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Makes it the search of this process inside the block."""
        before = {number: signal.getsignal(number) for number in (*_INTERRUPTS, signal.SIGUSR1)}
        _Searching._now = self
        for number in _INTERRUPTS:
            signal.signal(number, self._interrupt)
        try:
            yield
        finally:
            _Searching._now = None
            for number, handler in before.items():
                signal.signal(number, handler)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self.is_interrupted = True
        self._stop()
        for each in _INTERRUPTS:  # the next one ends the process
            signal.signal(each, signal.default_int_handler)

    def _stop(self) -> None:
        """Has Tune end all trials, which it then knows as interrupted; a `tune.Stopper` would complete them.

        By the handler for SIGUSR1 that Tune sets when it begins. It also has one for SIGINT, which is not
        used: a Ctrl-C that it took before its first step would not be known here.
        """
        self._cut |= {one.trial_id for one in self.trials if one.status != Trial.TERMINATED}
        tunes = signal.getsignal(signal.SIGUSR1)
        if callable(tunes):
            tunes(signal.SIGUSR1, None)

    def run(self, packed: api.PackedJob, *, parallel: int) -> None:
        """Runs all trials, or those that are left of an earlier search.

        Args:
          packed: The job of each trial.
          parallel: How many go at a time.
        """
        search, study, place = self._search, self._study, self._storage.arguments
        filesystem, folder = place["filesystem"], f"{place['root'].folder}/{self._store.folder}"
        trainable = trainable_of(packed, is_search=True)
        space = param_space(search.space, seeds=search.seeds, first_seed=packed.request.job.seed)
        path = f"{folder}/{study}"
        Variants.at_once = parallel
        if search.is_resumed and tune.Tuner.can_restore(path, storage_filesystem=filesystem):
            # What Tune has stored may be cut off, as on a full disk.
            with contextlib.suppress(Exception):
                restored = tune.Tuner.restore(
                    path,
                    trainable,
                    param_space=space,
                    resume_errored=True,  # to restart them would give them another id, and so another run
                    storage_filesystem=filesystem,
                )
                self._fit(restored)
        if not self.is_done:
            # The same trials are made again, and those whose runs have succeeded end at once.
            tuner = new_tuner(
                search,
                trainable,
                space,
                study=study,
                filesystem=filesystem,
                folder=folder,
                watch=_Watch(),
            )
            self._fit(tuner)

    def _fit(self, tuner: tune.Tuner) -> None:
        """Runs the trials until they have ended, or something stops the search."""
        try:
            tuner.fit()
        except Exception as error:
            if self.problem is not None:
                return
            full = next((one for one in _causes(error) if is_full_disk(one)), None)
            if full is None:
                raise
            self.problem = StorageError(
                f"cannot store the state of study {self._study} in {self._storage.uri()}: {full}"
                f"{self._remedy}"
            )

    @property
    def is_done(self) -> bool:
        """Whether Tune has nothing left to run: each trial is complete or failed now, or something stops all.

        After a full disk Tune may have stored less than the runs, or the runs less than Tune.
        """
        if self.problem is not None or self.is_interrupted:
            return True
        left = [one for one in self.trials if one.status != Trial.ERROR and not self.row_of(one).is_complete]
        return not left and len(self.trials) == self._search.num_trials

    def begins(self) -> None:
        """Called once Tune has set its handlers, before its first step."""
        if self.is_interrupted:
            self._stop()

    def ended(self, trial: Trial, error: BaseException | None = None) -> None:
        """Takes a trial that has ended."""
        row = self.row_of(trial, error=error)
        self._show(row)
        self.keep_values([row])
        metric = self._search.metric
        if isinstance(error, StorageError):
            self.problem = StorageError(f"{error}{self._remedy}")
        elif error is None and metric is not None and row.value is None and not self._is_known(metric):
            self.problem = MistakeError(missing_metric(metric, row.metrics))
        if self.problem is not None:
            self._stop()

    def keep_values(self, rows: Iterable[TrialRow]) -> None:
        """Stores the best values of trials, by which the page of the study sorts its runs."""
        self._values |= {row.run: row.value for row in rows if row.value is not None}
        if self._values:
            with contextlib.suppress(StorageError):  # of which the next trial tells
                self._store.keep_values(self._study, self._values)

    def _is_known(self, metric: str) -> bool:
        """Whether a trial has reported the metric: others may have params with which they do not."""
        return any(metric in one.metric_analysis for one in self.trials)

    @property
    def _remedy(self) -> str:
        return f"; the search has stopped: to continue it, add --study {self._study} --resume"

    def row_of(self, trial: Trial, *, error: BaseException | None = None) -> TrialRow:
        """Returns what is known of a trial: of its training by Tune, of its end by the run's record."""
        if error is None and trial.status == Trial.ERROR:
            error = error_of(_error_text(trial))
        search, last = self._search, trial.last_result or {}
        run = RunStorage(self._storage, run=run_name(trial.trial_id, study=self._study, is_search=True))
        store = RunRecordStore(run)
        record = store.read() if store.exists() else None
        state = None if record is None else record.state
        metrics = {
            name: float(value)
            for name, value in last.items()
            if name not in AUTO_RESULT_KEYS
            and name not in OWN_KEYS
            and isinstance(value, int | float)
            and not isinstance(value, bool)  # Tune's own
        }
        failed = None if record is None else record.error
        if failed is None and error is not None:
            failed = RunError.from_exception(error, attempt=0)
            if state is None or not state.is_terminal:  # before the run began, or without a last record
                state = RunState.FAILED
        return TrialRow(
            run=run.run,
            state=None if state is None else state.value,
            stopped_early=state is RunState.CANCELLED
            and trial.status == Trial.TERMINATED
            and trial.trial_id not in self._cut,
            params={key: trial.config[key] for key in search.space.dimensions},
            seed=trial.config.get(SEED),
            epochs=int(last.get("training_iteration", 0)),
            steps=int(last.get("step", 0)),
            value=self._best_of(trial, run),
            metrics=metrics,
            error=failed,
        )

    def _best_of(self, trial: Trial, run: RunStorage) -> float | None:
        """Returns the best value of the metric; None where it was not reported."""
        metric, direction = self._search.metric, self._search.direction
        if metric is None:
            return None
        analysis = trial.metric_analysis.get(metric, {})
        value: float | None = analysis.get(direction.value)
        # Tune takes NaN for better than any number, or forgets what came before it; it stays in the mean.
        has_nan = not math.isfinite(analysis.get("avg", 0.0))
        # Tune knows nothing of what was reported after it stored its state the last time.
        stored = stored_values(run, metric) if self._search.is_resumed or has_nan else []
        known = stored if has_nan and stored else (value, *stored)
        values = [float(one) for one in known if one is not None and math.isfinite(one)]
        if not values:
            return value
        return max(values) if direction is Direction.HIGHEST else min(values)


def stored_values(run: RunStorage, metric: str) -> list[float]:
    """Returns a run's values of a metric; a damaged file is left out."""
    rows = read_columns(run, scope=Scope.GLOBAL, on_damage=lambda error: None)
    series = [one for one in series_of(rows, scope=Scope.GLOBAL) if one.name == metric]
    return [float(value) for one in series if not one.is_repeated for value in one.values]


class _Watch(tune.Callback):
    """What Tune tells of its trials."""

    def setup(self, *given: Any, **info: Any) -> None:
        _Searching.now().begins()

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        _Searching.now().trials = tuple(trials)

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        _Searching.now().ended(trial)

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        _Searching.now().ended(trial, error_of(_error_text(trial)))


def _error_text(trial: Trial) -> str:
    """Returns the traceback of what a trial raised, as Tune keeps it on this host; "" without one."""
    try:
        return "" if trial.error_file is None else Path(trial.error_file).read_text()
    except OSError:
        return ""


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error and what led to it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def error_of(text: str) -> RaydistError:
    """Returns the error that the last line of a traceback names, which is a sentence of raydist's."""
    name, _, sentence = (text.strip().splitlines() or [""])[-1].partition(": ")
    kind = getattr(errors, name.removeprefix("raydist.errors."), None)
    if isinstance(kind, type) and issubclass(kind, RaydistError):
        return kind(sentence)
    said = f": {name}: {sentence}" if name else ""
    return ClusterError(f"the process of the trial in Ray has died{said}")
