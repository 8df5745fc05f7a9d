"""A host with a slow link: its task is named with the cause `network`, until the link is fast again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import WaitUntil
from tests.support.hosts import Hosts
from tests.support.netns import why_unavailable

pytestmark = [
    pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable())),
    pytest.mark.slow,
    pytest.mark.timeout(2000),
]

DELAY_S = 0.02  # in each direction
# Hosts are slow to start where many of them share few CPUs.
TIMEOUT_S = 900

JOB = """
import numpy as np
import tensorflow as tf

import raydist


@raydist.job()
def train(ctx: raydist.TrainContext):
    x = np.random.default_rng(0).normal(size=(96, 6)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, (x[:, 0] > 0).astype("int64"))).batch(12)
    with ctx.strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((6,)), tf.keras.layers.Dense(2)])
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss=loss)
    ctx.fit(model, data.repeat(), epochs=1, steps_per_epoch=1_000_000)
"""


class Run:
    """A run that trains on all hosts until it is stopped."""

    def __init__(self, hosts: Hosts) -> None:
        path = hosts.head.write("code/job.py", JOB)
        place = ("--address", f"{hosts.head.address}:6379", "--storage", str(hosts.shared))
        options = ("--name", "far", "--workers", str(len(hosts.all)), "--no-export", *place)
        self._hosts = hosts
        self._process = hosts.raydist("submit", path, *options)

    def stragglers(self) -> list[tuple[str, str, bool]]:
        """Returns the hosts of those that were named, each with the cause and whether it is over."""
        record = self._hosts.status("far")
        assert self._process.poll() is None, self._process.communicate()
        places = {one["task"]: one["host"] for one in record.get("tasks", [])}
        named = record.get("stragglers", [])
        return sorted((places[one["task"]], one["cause"], one["is_over"]) for one in named)

    def end(self) -> str:
        """Stops the run and returns what it has printed."""
        if self._process.poll() is None:
            stop = self._hosts.raydist("stop", "far", "--storage", str(self._hosts.shared))
            stop.communicate(timeout=120)
            assert stop.returncode == 0
        out, err = self._process.communicate(timeout=120)
        return f"{out}{err}"


@pytest.fixture(params=[3, 2], ids=["three hosts", "two hosts"])
def hosts(request: pytest.FixtureRequest) -> Iterator[Hosts]:
    with Hosts.started(*[1] * request.param) as hosts:
        yield hosts


@pytest.mark.exhaustive(covered_by="training/test_slow_links.py; tests/stragglers")
def test_task_on_a_slow_link_is_named_until_the_link_is_as_fast_as_the_others(
    hosts: Hosts, wait_until: WaitUntil
) -> None:
    # Of a link that gets slow later Linux remembers for 5 minutes how fast it was.
    slow = hosts.all[-1]
    slow.slow(delay_s=DELAY_S, loss=0.0)
    run = Run(hosts)
    ends = [slow] if len(hosts.all) > 2 else hosts.all
    try:
        wait_until(
            lambda: run.stragglers() == [(one.address, "network", False) for one in ends], timeout_s=TIMEOUT_S
        )
        [note] = [one for one in hosts.status("far")["notes"] if "network" in one]
        names = [
            one["task"]
            for one in hosts.status("far")["tasks"]
            if one["host"] in {end.address for end in ends}
        ]
        assert note.startswith(f"the network of {' and '.join(names)} is slow: a round trip takes 4")
        slow.heal()
        wait_until(
            lambda: run.stragglers() == [(one.address, "network", True) for one in ends], timeout_s=TIMEOUT_S
        )
    finally:
        printed = run.end()
    assert printed.count(note) == 1
