from __future__ import annotations

from typing import Any

import pytest

from raydist.planning.batch_sizes import batch_sizes_of
from raydist.planning.describe import describe_plan
from raydist.spec.job import Strategy
from raydist.spec.shares import Shares
from tests.planning.plans import cluster, plan, workers


@pytest.mark.parametrize(
    ("size", "fields", "expected"),
    [
        (128, {}, "128 examples a step, on one replica"),
        (128, {"workers": workers(2)}, "128 examples a step: 64 on each of 2 replicas"),
        (128, {"workers": workers(3)}, "128 examples a step: uneven, 43 on 2 replicas, 42 on 1"),
        (
            128,
            {"workers": workers(2), "shares": Shares(weights=(3, 1))},
            "128 examples a step: uneven, 96 on 1 replica, 32 on 1",
        ),
        (2, {"workers": workers(3)}, "2 examples a step: uneven, 1 on 2 replicas, none on 1"),
        (
            12,
            {"workers": workers(2), "resources": {"worker": {"gpus": 2}}},
            "12 examples a step: 3 on each of 4 replicas",
        ),
        (
            9,
            {"strategy": Strategy.MIRRORED, "devices": 2},
            "9 examples a step: uneven, 5 on 1 replica, 4 on 1",
        ),
        (50, {"ps": 1, "workers": workers(3)}, "50 examples a step, on one worker, asynchronously"),
    ],
    ids=[
        "one",
        "even",
        "uneven",
        "shares",
        "fewer-examples-than-replicas",
        "gpus",
        "devices",
        "parameter-servers",
    ],
)
def test_batch_is_shown_for_the_planned_replicas(size: int, fields: dict[str, Any], expected: str) -> None:
    hosts = cluster((8, 4)) if "resources" in fields else cluster((8, 0))
    assert str(batch_sizes_of(plan(hosts, params={"batch_size": size}, **fields))) == expected


@pytest.mark.parametrize("size", [0, -1, "64", True, None, 2.5])
def test_param_that_is_no_batch_size_shows_nothing(size: object) -> None:
    assert batch_sizes_of(plan(params={"batch_size": size})) is None


def test_rate_is_shown_where_the_job_names_what_it_was_found_for() -> None:
    params = {"batch_size": 256, "base_batch_size": 64, "learning_rate": 0.1}
    described = describe_plan(plan(workers=workers(2), params=params))
    assert described["batch"] == {"global": 256, "per_replica": [128, 128]}
    assert described["learning_rate"] == pytest.approx(0.4)
    without = describe_plan(plan(params={"batch_size": 256, "learning_rate": 0.1}))
    assert (without["batch"], without["learning_rate"]) == ({"global": 256, "per_replica": [256]}, None)
    assert describe_plan(plan(params={}))["batch"] is None
