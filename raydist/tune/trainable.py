"""What `tune.Tuner` takes for a job of raydist."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from raydist import api
from raydist.entry.request import Config, JobLike
from raydist.errors import MistakeError, SpecError
from raydist.planning.capacity import num_at_once
from raydist.spec.settings.decorator import RunOptions, shows_options

if sys.version_info >= (3, 11):
    from typing import Unpack
else:
    from typing_extensions import Unpack

if TYPE_CHECKING:
    from ray.tune import Trainable

_NOT_FOR_TRIALS = {
    "name": "each trial's run is named by the trial's id",
    "resume": "a trial resumes by itself",
    "detach": "a trial's run ends with the trial",
}


@shows_options
def trainable(
    job: JobLike,
    *,
    config: Config = None,
    params: Mapping[str, Any] | None = None,
    **options: Unpack[RunOptions],
) -> type[Trainable]:
    """Returns the trainable for `ray.tune.Tuner` each of whose trials is a run of `job`.

    Tune's config of a trial are params of the job. The run is named by the trial's id, with the study's name
    before it if there is one. Its tasks have their room in the trial's placement group, so Tune starts no
    more trials than there is room for. Each epoch is reported as it ends: the metrics, `step`, `epoch`,
    `run`, and `checkpoint`, the URI of the newest checkpoint. A trial that Tune restores continues from its
    own checkpoint; one that exploits another trial, from that one's, with its own params and learning rate.
    A trial that ends, however it does, leaves nothing running.

    Example:
        tuner = tune.Tuner(
            raydist.tune.trainable("jobs/cifar.py", workers=2, study="rates"),
            param_space={"learning_rate": tune.loguniform(1e-4, 1e-1)},
            tune_config=tune.TuneConfig(metric="val_accuracy", mode="max", num_samples=20),
        )
        best = tuner.fit().get_best_result()

    Args:
      job: As in `raydist.run`; so are `config`, `params`, which hold for all trials, and the options.

    Raises:
      MistakeError: What was asked cannot be done as written, or `raydist[tune]` is not installed.
    """
    check_installed()
    for name, value in {**options}.items():
        if value and name in _NOT_FOR_TRIALS:
            raise SpecError(f"{name} is {value!r}, but {_NOT_FOR_TRIALS[name]}; leave it out")
    packed = api.pack_job(job, config=config, params=params, options=options)
    from raydist.tune.run_trainable import trainable_of

    return trainable_of(packed)


@shows_options
def max_concurrent_trials(
    job: JobLike,
    *,
    config: Config = None,
    params: Mapping[str, Any] | None = None,
    **options: Unpack[RunOptions],
) -> int:
    """Returns how many runs of `job` have room at once when nothing else runs; at least 1.

    Without a running Ray a CPU is a core, of which an embedded Ray may be given more than there are.

    For `TuneConfig(max_concurrent_trials=...)` with a search algorithm that learns from trials that ended.

    Example:
        at_once = raydist.tune.max_concurrent_trials("jobs/cifar.py", workers=2)

    Args:
      job: As in `raydist.run`; so are `config`, `params` and the options.

    Raises:
      MistakeError: What was asked cannot be done as written.
      ClusterError: The cluster cannot give it, or could not be reached.
    """
    plan = api.plan(job, config=config, params=params, **options)
    return num_at_once(plan.inventory, plan.all_roles, cpus_per_core=1)


def check_installed() -> None:
    """Raises MistakeError if Ray Tune cannot be imported."""
    try:
        import ray.tune  # noqa: F401
    except ImportError as error:
        raise MistakeError(
            f"Ray Tune cannot be imported ({error}); install it with pip install 'raydist[tune]'"
        ) from error
