"""Workers that hold other weights than each other are found before they train on."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from raydist.errors import UnsupportedError
from tests.support.processes import Cluster, TaskProcess, run_function, run_in_turn

FUNCTIONS = "tests.support.equal_state_functions"
WAYS = {
    "ctx.fit": "before the first step of this fit",
    "model.fit": "before the first step of this fit",
    "train_steps": "before the first step of this train_steps",
    "save": "at the checkpoint of step 1",
    "checkpoint": r"at the checkpoint of step \d+",
}


VARIABLES = ("of Keras", "of TensorFlow")


@functools.cache
def run(keras: str) -> dict[str, list[TaskProcess]]:
    calls = {"equal": (f"{FUNCTIONS}:equal", {})}
    calls |= {how: (f"{FUNCTIONS}:unequal", {"how": how}) for how in WAYS}
    accumulating = f"{FUNCTIONS}:accumulating"
    calls |= {kind: (accumulating, {"is_of_keras": kind == "of Keras"}) for kind in VARIABLES}
    cluster = Cluster(strategy="multi_worker_mirrored", workers=2, keras=keras)
    return run_in_turn(calls, cluster, job_options={"checkpoint_every": "3", "export": False})


@pytest.mark.slow
@pytest.mark.parametrize("how", WAYS)
def test_workers_with_other_values_end_with_the_variables_name(how: str, keras: str) -> None:
    for task in run(keras)[how]:
        error = task.values["error"]
        assert re.match(rf"{WAYS[how]} (\w+/)?last/kernel\S*, \S*last/bias\S* of worker/1 differ", error)


@pytest.mark.slow
def test_equal_workers_train_and_generators_of_other_seeds_are_noted(keras: str) -> None:
    for task in run(keras)["equal"]:
        [note] = [one for one in task.values["notes"] if "worker/1" in one]
        assert note.startswith("StateVar")


@pytest.mark.slow
@pytest.mark.parametrize("kind", VARIABLES)
def test_step_that_assigns_what_each_worker_has_is_refused_before_it_runs(kind: str, keras: str) -> None:
    for task in run(keras)[kind]:
        assert task.values["steps"] == 0
        assert re.search(r"train_step \(.*\) assigns to \S*total_\d", task.values["error"])
        assert "ctx.fit(..., accumulate=K)" in task.values["error"]


ONE_DEVICE = Cluster()
TWO_WORKERS = Cluster(strategy="multi_worker_mirrored", workers=2)
TWO_DEVICES = Cluster(strategy="mirrored", devices=2)


@functools.cache
def weights_by_hand(cluster: Cluster) -> list[TaskProcess]:
    return run_function(f"{FUNCTIONS}:weights_by_hand", cluster)


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [TWO_WORKERS, TWO_DEVICES], ids=["2 workers", "2 devices"])
@pytest.mark.parametrize("way", ["loop", "beside", "fit"])
def test_weights_that_a_step_assigns_are_those_of_one_device_or_told(
    way: str, cluster: Cluster, keras: str
) -> None:
    [one] = weights_by_hand(replace(ONE_DEVICE, keras=keras))
    for task in weights_by_hand(replace(cluster, keras=keras)):
        trained = task.values["trained"]
        assert trained[f"{way}, of all"] == pytest.approx(one.values["trained"][way])
        told = [trained[way]] if cluster is TWO_WORKERS else task.values["notes"]
        assert any(" on each replica, from its own part of the batch" in str(each) for each in told)


def gather_of(*others: Sequence[int]) -> Callable[[Sequence[int]], list[list[int]]]:
    """A gather in which the others have other numbers in place of those that do not fit."""
    return lambda own: [list(own), *([*other[: len(own)]] for other in others)]


@pytest.mark.slow
def test_worker_with_another_number_of_variables_is_named() -> None:
    import tensorflow as tf

    from raydist.training.cluster import equal_workers

    with pytest.raises(UnsupportedError, match=r"worker/0 has 1, worker/1 has 2\).* of worker/1 differs"):
        equal_workers.check([tf.Variable(1.0)], gather_of([2, 5]), when="here")


def test_only_some_of_many_variables_are_named() -> None:
    from raydist.training.cluster import equal_workers

    found = {f"v{index}": [1] for index in range(5)}
    assert "v0, v1, v2 and 2 more variables of worker/1 differ " in equal_workers.describe(found)
