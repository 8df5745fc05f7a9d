from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from raydist.errors import ClusterError, RaydistError, SpecError
from raydist.planning.inventory import Host, Inventory
from raydist.planning.strategy import StrategyChoice, choose_strategy
from raydist.spec.job import EntryPoint, JobSpec, Strategy, WorkerRange
from raydist.spec.settings.options import OPTIONS
from raydist.spec.settings.resolution import Origin
from raydist.spec.settings.roles import by_name

MWM, MIRRORED, PS = Strategy.MULTI_WORKER_MIRRORED, Strategy.MIRRORED, Strategy.PARAMETER_SERVER


def workers(minimum: int, maximum: int | None = None) -> WorkerRange:
    return WorkerRange(minimum=minimum, maximum=maximum or minimum)


def choose(
    *,
    num_gpus: int = 0,
    num_tpus: float = 0,
    tpu_name: str | None = None,
    origins: Mapping[str, Origin] | None = None,
    **fields: Any,
) -> StrategyChoice:
    """Chooses for a job whose fields were all asked for, unless `origins` says otherwise."""
    job = JobSpec(name="run", entry_point=EntryPoint(file="a.py", function="train"), **fields)
    asked = dict.fromkeys([*fields, *by_name(job.resources)], Origin.ASKED)
    by_field = {option.name: Origin.BUILT_IN for option in OPTIONS} | asked
    hosts = (Host(name="a"), Host(name="b", num_gpus=num_gpus, num_tpus=num_tpus))
    return choose_strategy(job, by_field | dict(origins or {}), Inventory(hosts=hosts, tpu_name=tpu_name))


@pytest.mark.parametrize(
    ("asked", "strategy", "reason"),
    [
        ({}, Strategy.ONE_DEVICE, "one worker with no GPU"),
        ({"num_gpus": 1}, Strategy.ONE_DEVICE, "one worker with one GPU"),
        ({"num_gpus": 4}, MIRRORED, "one worker with 4 GPUs"),
        (
            {"num_gpus": 4, "resources": {"worker": {"gpus": 1}}},
            Strategy.ONE_DEVICE,
            "one worker with one GPU",
        ),
        (
            {"num_gpus": 4, "resources": {"worker": {"gpus": 0}}},
            Strategy.ONE_DEVICE,
            "one worker with no GPU",
        ),
        ({"devices": 3}, MIRRORED, "one worker with 3 logical CPU devices"),
        ({"devices": 3, "num_gpus": 1}, Strategy.ONE_DEVICE, "one worker with one GPU"),
        ({"num_tpus": 4, "num_gpus": 2}, Strategy.TPU, "one worker, and there is a TPU (as a Ray resource)"),
        ({"tpu_name": "t1"}, Strategy.TPU, "one worker, and there is a TPU (t1)"),
        ({"workers": workers(2), "num_gpus": 4}, MWM, "workers is 2"),
        ({"workers": workers(1, 3), "tpu_name": "t1"}, MWM, "workers is 1:3"),
        ({"workers": workers(2), "evaluator": True}, MWM, "workers is 2"),
        ({"ps": 1}, PS, "ps is 1"),
        ({"ps": 2, "workers": workers(3), "evaluator": True, "num_gpus": 4}, PS, "ps is 2"),
        ({"strategy": PS, "ps": 1}, PS, "strategy parameter_server was set as asked"),
        (
            {"strategy": Strategy.CENTRAL_STORAGE},
            Strategy.CENTRAL_STORAGE,
            "strategy central_storage was set as asked",
        ),
        (
            {"strategy": MWM, "origins": {"strategy": Origin.JOB}},
            MWM,
            "strategy multi_worker_mirrored was set by the job",
        ),
    ],
    ids=str,
)
def test_strategy_that_fits_is_chosen_with_its_reason(
    asked: dict[str, Any], strategy: Strategy, reason: str
) -> None:
    choice = choose(**asked)
    assert (choice.strategy, choice.reason, choice.notes) == (strategy, reason, ())


@pytest.mark.parametrize(
    ("field", "value", "note"),
    [
        ("workers", workers(2), "workers 2, set by the job, is not used: mirrored runs on one host"),
        ("ps", 1, "ps 1, set by the job, is not used: mirrored has no parameter servers"),
    ],
)
def test_strategy_of_higher_precedence_overrides(field: str, value: Any, note: str) -> None:
    choice = choose(strategy=MIRRORED, **{field: value}, origins={field: Origin.JOB})
    assert (choice.job.workers, choice.job.ps, choice.notes) == (workers(1), 0, (note,))


@pytest.mark.parametrize(
    ("asked", "kind", "message"),
    [
        (
            {"strategy": MIRRORED, "workers": workers(2)},
            SpecError,
            "workers is 2, but strategy mirrored runs on one host; drop --workers, or use --strategy auto",
        ),
        (
            {"strategy": MIRRORED, "workers": workers(2), "origins": {"strategy": Origin.JOB}},
            SpecError,
            "workers is 2, but strategy mirrored runs on one host; drop --workers, or use --strategy auto",
        ),
        (
            {"strategy": MWM, "workers": workers(2), "ps": 1},
            SpecError,
            "ps is 1, but strategy multi_worker_mirrored has no parameter servers; "
            "drop --ps, or use --strategy parameter_server",
        ),
        (
            {"strategy": PS, "workers": workers(2)},
            SpecError,
            "ps is 0; strategy parameter_server needs at least 1: --ps 1",
        ),
        (
            {"strategy": PS, "ps": 0, "origins": {"strategy": Origin.JOB}},
            SpecError,
            "ps is 0; strategy parameter_server needs at least 1: --ps 1",
        ),
        (
            {"evaluator": True},
            SpecError,
            "evaluator is on, but strategy one_device has no evaluator task; "
            "use --no-evaluator and give ctx.fit validation_data, or --strategy multi_worker_mirrored",
        ),
        (
            {"evaluator": True, "strategy": Strategy.TPU, "tpu_name": "t1"},
            SpecError,
            "evaluator is on, but strategy tpu has no evaluator task; "
            "use --no-evaluator and give ctx.fit validation_data, or --strategy multi_worker_mirrored",
        ),
        (
            {"strategy": Strategy.TPU},
            ClusterError,
            "strategy tpu is asked for, but this machine has no TPU: no TPU_NAME, no COLAB_TPU_ADDR "
            "and no Ray resource TPU; set one of them, or use --strategy auto",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(asked: dict[str, Any], kind: type[RaydistError], message: str) -> None:
    with pytest.raises(kind) as caught:
        choose(**asked)
    assert str(caught.value) == message
    assert caught.value.exit_code == (3 if kind is ClusterError else 2)
