"""Virtual replicas that a strategy does not have, or too few of them, and options that need them."""

from __future__ import annotations

from typing import Any

import pytest

from raydist.errors import SpecError
from raydist.spec.job import Strategy
from tests.planning.plans import LAPTOP, cluster, plan, workers

MIRRORED = {"strategy": Strategy.MIRRORED}
FOUR = {"virtual_replicas": 4}
WITH_THEM = "use one of one_device, mirrored, multi_worker_mirrored"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"virtual_replicas": 2, "workers": workers(3)},
            "virtual_replicas is 2, too few for 3 workers of 1 device, each of which computes one; use "
            "--virtual-replicas 3 or more",
        ),
        (
            {"virtual_replicas": 4, "workers": workers(2, 5)},  # elastic: of the most that there can be
            "virtual_replicas is 4, too few for 5 workers of 1 device, each of which computes one; use "
            "--virtual-replicas 5 or more",
        ),
        (
            {**MIRRORED, "virtual_replicas": 2, "devices": 3},
            "virtual_replicas is 2, too few for 1 worker of 3 devices, each of which computes one; use "
            "--virtual-replicas 3 or more",
        ),
        (
            {**FOUR, "workers": workers(1), "ps": 1},
            f"virtual_replicas is 4, but strategy is parameter_server, which has none; {WITH_THEM}",
        ),
        (
            {**FOUR, "strategy": Strategy.CENTRAL_STORAGE},
            f"virtual_replicas is 4, but strategy is central_storage, which has none; {WITH_THEM}",
        ),
        (
            {**FOUR, "workers": workers(2), "compress_gradients": "fp16"},
            "compress_gradients rounds what workers send each other, so results would depend on their "
            "number; leave it or virtual_replicas out",
        ),
        (
            {"virtual_replicas": 4, "patch_keras": False},
            "virtual_replicas is 4, which need raydist's patches of Keras, and patch_keras is off; drop "
            "--no-patch-keras or --virtual-replicas",
        ),
    ],
)
def test_mistake_is_named_with_its_value_and_a_remedy(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        plan(cluster((8, 0)), **fields)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "fields",
    [
        {**FOUR},
        {**FOUR, "workers": workers(4)},
        {"virtual_replicas": 5, "workers": workers(3)},
        {**FOUR, **MIRRORED, "devices": 4},
    ],
)
def test_options_that_go_together_are_planned_as_asked(fields: dict[str, Any]) -> None:
    made = plan(LAPTOP if "workers" not in fields else cluster((8, 0)), **fields)
    assert {name: getattr(made.job, name) for name in fields} == fields


def test_elastic_run_is_told_what_makes_its_results_independent_of_its_workers() -> None:
    hosts = cluster((8, 0))
    told = "--virtual-replicas 4 gives the same bits for any number"
    elastic = plan(hosts, workers=workers(2, 4))
    assert any(told in note for note in elastic.notes)
    for other in (plan(hosts, workers=workers(2, 4), virtual_replicas=4), plan(hosts, workers=workers(4))):
        assert not any("--virtual-replicas" in note for note in other.notes)
