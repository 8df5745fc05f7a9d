"""Shares of a batch that no workers divide, or that other options make impossible."""

from __future__ import annotations

from typing import Any

import pytest

from raydist.errors import SpecError
from raydist.spec.job import Strategy
from raydist.spec.shares import Shares
from tests.planning.plans import LAPTOP, cluster, plan, workers


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"workers": workers(3)}, "workers is 3; give 3 numbers, one for each worker"),
        (
            {"workers": workers(2, 4)},
            "workers is 2:4, and shares are of one number of workers; give --workers 2, or --shares auto",
        ),
        (
            {"workers": workers(2), "ps": 1},
            "strategy is parameter_server, in which no workers divide a batch; use --strategy "
            "multi_worker_mirrored with --workers 2 or more, or leave --shares out",
        ),
        (
            {"workers": workers(1), "strategy": Strategy.MIRRORED},
            "strategy is mirrored, in which no workers divide a batch; use --strategy multi_worker_mirrored "
            "with --workers 2 or more, or leave --shares out",
        ),
        (
            {"workers": workers(2), "patch_keras": False},
            "patch_keras is False: raydist's patches of Keras weigh each worker's rows; drop "
            "--no-patch-keras or --shares",
        ),
        (
            {"workers": workers(2), "check_equality": False},
            "check_equality is False: losses have to be checked; drop --no-check-equality or --shares",
        ),
        (
            {"workers": workers(2), "auto_shard": "file"},
            "auto_shard is file: TensorFlow then divides the data; drop --auto-shard or --shares",
        ),
        (
            {"workers": workers(2), "data_workers": 1},
            "data_workers is 1: data workers divide the data by themselves; drop --data-workers or --shares",
        ),
        (
            {"workers": workers(2), "virtual_replicas": 2},
            "virtual_replicas is 2, of which worker/1 would have 0 for 1 device; use more --virtual-replicas",
        ),
    ],
)
def test_mistake_is_named_with_its_value_and_a_remedy(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        plan(cluster((8, 0)), shares=Shares(weights=(3, 1)), **fields)
    assert str(caught.value) == f"shares is 3,1, but {message}"


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"virtual_replicas": 4}, "virtual_replicas is 4"),
        ({"resources": {"worker": {"gpus": 1}}}, "the workers have GPUs"),
    ],
)
def test_speeds_that_are_not_measured_have_to_be_given(fields: dict[str, Any], cause: str) -> None:
    hosts = cluster((8, 2 if "resources" in fields else 0))
    with pytest.raises(SpecError) as caught:
        plan(hosts, workers=workers(2), shares=Shares(), **fields)
    assert str(caught.value) == (
        f"shares is auto, but {cause}, with which raydist does not measure the workers' waits; write a "
        "number for each worker, such as 3,1"
    )


@pytest.mark.parametrize(
    ("written", "note"),
    [
        ("3,1", "workers take 3,1 parts of each batch, in the order of their indices"),
        ("auto", "workers take equal parts of each batch, until a restart gives faster ones larger parts"),
    ],
)
def test_plan_says_what_each_worker_takes(written: str, note: str) -> None:
    assert note in plan(cluster((8, 0)), workers=workers(2), shares=Shares.parse(written)).notes


def test_one_worker_has_no_share() -> None:
    with pytest.raises(SpecError, match=r"^shares is 1, but strategy is one_device, in which no workers"):
        plan(LAPTOP, shares=Shares(weights=(1,)))
