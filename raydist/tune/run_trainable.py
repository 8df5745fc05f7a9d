"""RunTrainable: Tune's view of a trial whose training is a run of raydist. All that is Tune's is here.

A class and not a function, because Tune lets a class end what it has started: of a function it abandons the
thread and ends the process (FunctionTrainable.cleanup), and Ray then kills the run's tasks while they train.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from ray.air.constants import TRAINING_ITERATION
from ray.tune import PlacementGroupFactory, Trainable
from ray.tune.result import DONE, RESULT_DUPLICATE

from raydist import api
from raydist.errors import RaydistError
from raydist.planning.plan import Plan
from raydist.runtime.cluster.placement import group_of, use_own_group
from raydist.storage.checkpoints import CheckpointStore
from raydist.storage.claims import ClaimStore
from raydist.storage.inheritance import inherit, split_checkpoint_uri
from raydist.storage.run_record import RunRecordStore
from raydist.storage.run_storage import RunStorage, open_run
from raydist.tune.trial import TrialReport, TrialRun

_CHECKPOINT = "checkpoint"
_FREE_WITHIN_S = 30.0
_POLL_S = 0.2
# In a trial's config, beside the params: a field of JobSpec.
SEED = "raydist seed"
# What a result has besides the metrics and what Tune adds.
OWN_KEYS = ("step", "epoch", "run", _CHECKPOINT)


def run_name(trial_id: str, *, study: str | None, is_search: bool) -> str:
    """Returns the name of a trial's run: the trial's id, after the study's name.

    Tune's ids are a few hex digits that the trials of an experiment share, and a number from 0. The trials of
    `raydist search` have the number alone: no other search may have its study.
    """
    if study is None:
        return trial_id
    return f"{study}-{trial_id.rpartition('_')[2] if is_search else trial_id}"


def has_fixed_room(plan: Plan) -> bool:
    """Whether each attempt of a run has the same room, so that Tune can reserve it."""
    return not plan.is_elastic and plan.job.memory_retry is None


class RunTrainable(Trainable):
    """A trial.

    Attributes:
      packed: The job, without what differs from trial to trial.
      is_search: Whether it is one of `raydist search`.
    """

    packed: ClassVar[api.PackedJob]
    is_search: ClassVar[bool]

    @classmethod
    def default_resource_request(cls, config: Mapping[str, Any]) -> PlacementGroupFactory:
        return cls._room()

    @classmethod
    @functools.cache
    def _room(cls) -> PlacementGroupFactory:
        """Returns the room of one trial: none for itself, and a bundle for each task of its run."""
        plan = api.plan_packed(cls.packed)
        group = group_of(plan)
        bundles = group.bundles if has_fixed_room(plan) else ()
        if not bundles:  # the run finds its room itself, and Tune takes no group of nothing
            return PlacementGroupFactory([{"memory": 1.0}])
        labels = {"bundle_label_selector": list(group.selectors)} if any(group.selectors) else {}
        return PlacementGroupFactory([{}, *bundles], group.strategy, **labels)

    def setup(self, config: dict[str, Any]) -> None:
        """Called in the trial's actor, before a checkpoint is loaded."""
        self._params = {name: value for name, value in config.items() if name != SEED}
        self._fields = {"seed": config[SEED]} if SEED in config else {}
        self._trial: TrialRun | None = None
        self._inherited: str | None = None

    def step(self) -> dict[str, Any]:
        """Waits for the next report of the run, which the first call starts."""
        try:
            if self._trial is None:
                self._trial = self._start()
            report = self._trial.next_report()
            if report is not None:
                return self._told(report)
            report = self._trial.end()
        except RaydistError as error:
            # Tune prints the error's causes; the sentence is enough.
            raise error.with_traceback(None) from None
        # Tune has to know the end from a result of its own, which may not count as one.
        return {RESULT_DUPLICATE: True, DONE: True} if report is None else {**self._told(report), DONE: True}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        """Returns where the run's newest checkpoint is; the run stores it itself."""
        return {_CHECKPOINT: None if self._trial is None else self._trial.checkpoint}

    def load_checkpoint(self, checkpoint: dict[str, Any] | None) -> None:
        """Takes the checkpoint to continue from. The run finds its own ones by itself."""
        uri = (checkpoint or {}).get(_CHECKPOINT)
        if uri is not None and split_checkpoint_uri(uri)[1] != self._run_name:
            self._inherited = uri

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Called for another trial, or for other params of the same one, in the place of a new actor."""
        self.cleanup()
        self.setup(new_config)
        return True

    def cleanup(self) -> None:
        """Called when the trial ends, for any reason."""
        if self._trial is not None:
            self._trial.stop()

    @property
    def _run_name(self) -> str:
        study = self.packed.request.job.study
        return run_name(self.trial_id, study=study, is_search=self.is_search)

    def _start(self) -> TrialRun:
        use_own_group()
        inherited, self._inherited = self._inherited, None
        resume = "auto" if inherited is None else True
        job = self.packed.run_of(
            self._run_name, params=self._params, resume=resume, detach=False, **self._fields
        )
        run = open_run(job.request.job.storage, run=self._run_name)
        wait_until_free(run)
        newest = CheckpointStore(run).newest() if inherited is None else inherit(inherited, run=run)
        records = RunRecordStore(run)
        # What the run has reported before it continues: it may have nothing left to train.
        metrics = dict(records.read().metrics) if inherited is None and records.exists() else {}
        info = {} if newest is None else newest.info
        return TrialRun(
            lambda on_event: api.submit_packed(job, on_event=on_event),
            checkpoint=None if newest is None else newest.uri,
            metrics={**metrics, **info.get("metrics", {})},
            epoch=info.get("epoch"),
            # Tune keeps it with its checkpoints.
            iteration=0 if newest is None else self.training_iteration,
        )

    def _told(self, report: TrialReport) -> dict[str, Any]:
        own = {TRAINING_ITERATION: report.iteration, "step": report.step, "epoch": report.epoch}
        return {**report.metrics, **own, "run": self._run_name, _CHECKPOINT: report.checkpoint}


def wait_until_free(run: RunStorage, *, timeout_s: float = _FREE_WITHIN_S) -> None:
    """Waits while another process drives a trial's run.

    That of a search which has just ended may live for a moment yet, and hold the run if its storage was full.
    Whoever still drives it after the timeout is named by the start of the run, which fails.
    """
    claims, records = ClaimStore(run), RunRecordStore(run)
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        record = records.read() if records.exists() else None
        if not claims.is_driven(record, now_s=time.time()):
            return
        time.sleep(_POLL_S)


def trainable_of(packed: api.PackedJob, *, is_search: bool = False) -> type[RunTrainable]:
    """Returns the class for one job; its name is the function's, which Tune names the experiment after."""
    name = packed.request.job.entry_point.function or "train"
    return type(name.strip("<>"), (RunTrainable,), {"packed": packed, "is_search": is_search})
