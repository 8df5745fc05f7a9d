"""Options of the communication between replicas: which strategy each is for, and what it needs."""

from __future__ import annotations

from typing import Any

import pytest

from raydist.errors import SpecError
from raydist.spec.job import EntryPoint, Strategy
from raydist.spec.settings.resolution import Origin
from tests.planning.plans import LAPTOP, cluster, plan, workers

TWO = {"workers": workers(2)}
MIRRORED = {"strategy": Strategy.MIRRORED}


@pytest.mark.parametrize(
    "fields",
    [
        {**TWO, "collective": "ring", "collective_timeout": 60.0},
        {**TWO, "compress_gradients": "bf16"},
        {**MIRRORED, "cross_device_ops": "hierarchical", "compress_gradients": "fp16"},
        {**MIRRORED, "devices": 3, "cross_device_ops": "one_device"},
    ],
)
def test_option_of_the_strategy_is_kept(fields: dict[str, Any]) -> None:
    made = plan(**fields)
    assert {name: getattr(made.job, name) for name in fields} == fields
    assert not [note for note in made.notes if "has no effect" in note]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"collective": "ring"},
            "collective is ring, but strategy one_device does not use it, multi_worker_mirrored does; drop "
            "--collective",
        ),
        (
            {**MIRRORED, "collective_timeout": 60.0},
            "collective_timeout is 60.0, but strategy mirrored does not use it, multi_worker_mirrored does; "
            "drop --collective-timeout",
        ),
        (
            {"ps": 1, "collective": "ring"},
            "collective is ring, but strategy parameter_server does not use it, multi_worker_mirrored does; "
            "drop --collective",
        ),
        (
            {**TWO, "cross_device_ops": "one_device"},
            "cross_device_ops is one_device, but strategy multi_worker_mirrored does not use it, mirrored "
            "does; drop --cross-device-ops",
        ),
        (
            {"compress_gradients": "fp16"},
            "compress_gradients is fp16, but strategy one_device does not use it, mirrored and "
            "multi_worker_mirrored do; drop --compress-gradients",
        ),
        (
            {**TWO, "compress_gradients": "fp16", "patch_keras": False},
            "compress_gradients is fp16, which raydist's patches of Keras do, and patch_keras is off; drop "
            "--no-patch-keras or --compress-gradients",
        ),
        (
            {**TWO, "collective": "nccl"},
            "collective is nccl, which needs GPUs, and the tasks have none; use auto or ring",
        ),
        (
            {**MIRRORED, "cross_device_ops": "nccl"},
            "cross_device_ops is nccl, which needs GPUs, and the tasks have none; use auto or one_device",
        ),
        (
            {**MIRRORED, "devices": 3, "cross_device_ops": "hierarchical"},
            "cross_device_ops is hierarchical, which sums an even number of devices, and the task has 3; use "
            "auto or one_device",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_option_that_does_not_fit_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        plan(LAPTOP, **fields)
    assert str(caught.value) == message


def test_nccl_is_planned_where_there_are_gpus() -> None:
    assert plan(cluster((8, 2), (8, 2)), **TWO, collective="nccl").job.collective == "nccl"
    assert plan(cluster((8, 2)), **MIRRORED, cross_device_ops="nccl").job.cross_device_ops == "nccl"


def test_option_of_the_job_gives_way_to_a_strategy_that_is_asked_for() -> None:
    origins = {"strategy": Origin.ASKED, "collective": Origin.JOB}
    made = plan(**MIRRORED, collective="ring", origins=origins)
    assert made.job.collective == "auto"
    assert made.notes[-1] == (
        "collective ring, set by the job, has no effect: strategy mirrored does not use it, "
        "multi_worker_mirrored does"
    )


def test_script_on_several_workers_has_no_evaluator() -> None:
    with pytest.raises(SpecError, match=r"evaluator is on, but .* main\.py is a script; use --no-evaluator"):
        plan(**TWO, evaluator=True, entry_point=EntryPoint(file="main.py", function=""))
