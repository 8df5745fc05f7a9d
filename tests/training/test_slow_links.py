"""Tasks on machines one of which has a slow link: what they measure on it, and who is named for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.machine_tasks import Machines
from tests.support.netns import why_unavailable
from tests.support.paces import stragglers

pytestmark = [
    pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable())),
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

SLOWED = "tests.support.straggler_functions:slowed"


@pytest.mark.exhaustive("loss", "two machines", covered_by="[delay], [no slow link]; tests/stragglers")
@pytest.mark.parametrize(
    ("num_machines", "slow", "named"),
    [
        (3, {"delay_s": 0.02}, ["worker/2"]),
        (3, {"loss": 0.05}, ["worker/2"]),
        (2, {"delay_s": 0.02}, ["worker/0", "worker/1"]),
        (3, {}, []),
    ],
    ids=["delay", "loss", "two machines", "no slow link"],
)
def test_task_on_a_slow_link_is_named_although_no_task_is_slower_by_itself(
    tmp_path: Path, num_machines: int, slow: dict[str, Any], named: list[str]
) -> None:
    with Machines.started(num_machines) as machines:
        if slow:
            machines.slow(num_machines - 1, **slow)
        tasks = machines.run_workers(SLOWED, folder=tmp_path, timeout_s=800, by=None, num_steps=150)
    found = stragglers({name: values["paces"] for name, values in tasks.items()})
    assert [(str(one.task), one.cause.value) for one in found] == [(name, "network") for name in named]
