"""What a search asks of Tune: its space, its scheduler, its settings."""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ray import tune
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search import BasicVariantGenerator

from raydist import api
from raydist.planning.assignment import apply_changes
from raydist.planning.describe import describe_job
from raydist.spec.best import Direction
from raydist.tune.run_trainable import SEED
from raydist.tune.space import Choice, Dimension, Range, Space

# More epochs than any trial has: no trial is ended for having trained long enough.
_MAX_EPOCHS = 1_000_000
_TUNE_SETTINGS = {
    # No output of Tune's own, no files for programs that read Tune's, and no refusal of a result that lacks
    # the metric, which a job may report at its end only.
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    # Ctrl-C is for the search, which tells Tune.
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    # What a search that is killed has lost of Tune's view of it; its runs lose nothing.
    "TUNE_GLOBAL_CHECKPOINT_S": "2",
}


# Options that decide what a trial trains.
_TRAINED_BY = (
    *("strategy", "workers", "ps", "evaluator", "devices", "virtual_replicas", "shares"),
    *("keras", "patch_keras", "check_equality", "sync_batchnorm"),
    *("partitioner", "auto_shard", "compress_gradients", "keep_best"),
)


@dataclass(frozen=True, kw_only=True)
class Search:
    """What to search.

    Attributes:
      packed: The job, with the params that all trials have.
      num: Trials of random params; 0 for each combination of the values once.
      metric: None where only seeds are tried.
      grace: Epochs that each trial gets before a scheduler may stop it.
      parallel: Trials at a time; None for as many as have a core for each logical CPU.
      seeds: Seeds that each combination is tried with; 0 for the one of the job.
      study: None makes a name.
    """

    packed: api.PackedJob
    space: Space
    num: int
    metric: str | None
    direction: Direction
    scheduler: str
    grace: int
    parallel: int | None
    seeds: int
    study: str | None
    is_resumed: bool

    @property
    def settings(self) -> dict[str, Any]:
        """What has to be the same for a search to be continued, by the names of the options."""
        job = self.packed.request.job
        told = describe_job(job)
        return {
            "job": str(job.entry_point),
            "-p": {key: str(one) for key, one in {**self.space.dimensions, **self.space.fixed}.items()},
            "--num": self.num,
            "--metric": self.metric,
            "--mode": self.direction.value,
            "--scheduler": self.scheduler,
            "--grace": self.grace,
            "--seeds": self.seeds,
            "--seed": job.seed,
            "params": told["params"],  # those of the config, too
            **{f"--{name.replace('_', '-')}": str(told[name]) for name in _TRAINED_BY},
        }

    @property
    def num_trials(self) -> int:
        points = self.num or self.space.num_points or 1
        return points * max(1, self.seeds)


def new_tuner(
    search: Search,
    trainable: Any,
    space: Mapping[str, Any],
    *,
    study: str,
    filesystem: Any,
    folder: str,
    watch: tune.Callback,
) -> tune.Tuner:
    """Returns the tuner of a search that begins.

    Args:
      space: As `param_space` returns it.
      filesystem, folder: Where Tune keeps its state.
      watch: Is called back with what becomes of the trials.
    """
    seed = search.packed.request.job.seed
    scheduler = (
        ASHAScheduler(
            time_attr="training_iteration",
            metric=search.metric,
            mode=search.direction.value,
            max_t=_MAX_EPOCHS,
            grace_period=search.grace,
        )
        if search.scheduler == "asha"
        else None
    )
    return tune.Tuner(
        trainable,
        param_space=dict(space),
        tune_config=tune.TuneConfig(
            num_samples=search.num or 1,
            search_alg=Variants(
                constant_grid_search=True,  # all seeds of one combination, then the next
                random_state=seed,
            ),
            scheduler=scheduler,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name=study,
            storage_path=folder,
            storage_filesystem=filesystem,
            callbacks=[watch],
            verbose=0,
            stop=None if scheduler is None else Diverged(search.metric or "", search.grace),
        ),
    )


def param_space(space: Space, *, seeds: int, first_seed: int) -> dict[str, Any]:
    """Returns a space in Tune's form."""
    choices: dict[str, Any] = {key: _domain(one) for key, one in space.dimensions.items()}
    if space.num_points is not None:
        choices = {
            key: tune.grid_search(list(one.values))
            for key, one in space.dimensions.items()
            if isinstance(one, Choice)
        }
    if seeds:
        choices[SEED] = tune.grid_search([first_seed + number for number in range(seeds)])
    return choices


def _domain(dimension: Dimension) -> Any:
    match dimension:
        case Choice(values=values):
            return tune.choice(list(values))
        case Range(low=low, high=high, is_log=is_log, is_integer=True):
            # Tune leaves the upper end out.
            return (tune.lograndint if is_log else tune.randint)(int(low), int(high) + 1)
        case Range(low=low, high=high, is_log=is_log):
            return (tune.loguniform if is_log else tune.uniform)(low, high)


class Variants(BasicVariantGenerator):
    """Has as many trials at a time as this command asks for, also if another one has begun the study."""

    at_once: ClassVar[int] = 0

    @property
    def max_concurrent(self) -> int:
        return self.at_once

    @max_concurrent.setter
    def max_concurrent(self, value: int) -> None:
        """Takes nothing: Tune sets what it has stored."""


@dataclass(frozen=True)
class Diverged:
    """Ends a trial whose metric is NaN after its grace. ASHA does not: no comparison with NaN is true.

    Attributes:
      grace: Epochs that each trial gets.
    """

    metric: str
    grace: int

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        return math.isnan(result.get(self.metric, 0.0)) and result["training_iteration"] >= self.grace


@contextlib.contextmanager
def quiet_tune() -> Iterator[None]:
    """Keeps Tune from printing, and from writing files for programs that read its own."""
    before = {name: os.environ.get(name) for name in _TUNE_SETTINGS}
    os.environ.update(_TUNE_SETTINGS)
    loggers = [logging.getLogger(name) for name in ("ray.tune", "ray.air", "ray.train")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        apply_changes(before, os.environ)
