"""A checksum of a traced function is that of any other trace of the same step, and of no other step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support.late import LateModule

tf = LateModule("tensorflow")
tf_private = LateModule("raydist.tf_private")


class Steps:
    """Variables, and functions of a batch that differ in one thing each."""

    def __init__(self) -> None:
        self.one, self.other = (tf.Variable([[1.0], [2.0]], name=name) for name in ("one", "other"))
        self.captured = tf.constant(3.0)
        self.others: dict[str, Callable[[Any], Any]] = {
            "another number": lambda x: self.step(x, factor=2.5),
            "another branch": lambda x: self.step(x, in_branch=tf.subtract),
            "another loop": lambda x: self.step(x, rounds=4),
            "another variable": lambda x: self.step(x, variable=self.other),
            "another constant from outside": lambda x: self.step(x, captured=tf_constant(4.0)),
            "another type": lambda x: self.step(tf.cast(x, tf.float64)),
            "another attribute": lambda x: self.step(x, is_matrix=False),
        }

    def step(
        self,
        x: Any,
        *,
        factor: float = 2.0,
        in_branch: Any = None,
        rounds: int = 3,
        variable: Any = None,
        captured: Any = None,
        is_matrix: bool = True,
    ) -> Any:
        variable = self.one if variable is None else variable
        captured = self.captured if captured is None else captured
        branch = in_branch or tf.add
        with tf.GradientTape() as tape:
            weight = tf.cast(variable, x.dtype)
            product = tf.matmul(x, weight) if is_matrix else tf.linalg.matvec(x, weight[:, 0])
            value = factor * tf.reduce_sum(product) * tf.cast(captured, x.dtype)
            value = tf.cond(value > 0, lambda: branch(value, 1.0), lambda: value)
            _, value = tf.while_loop(
                lambda index, value: index < rounds, lambda index, value: (index + 1, value * 1.5), [0, value]
            )
        noted = tf.numpy_function(np.negative, [value], value.dtype)
        return tape.gradient(value, variable), noted


def tf_constant(value: float) -> Any:
    with tf.init_scope():
        return tf.constant(value)


@pytest.fixture(scope="module")
def steps() -> Steps:
    return Steps()


def checksum_of(function: Callable[[Any], Any]) -> int:
    spec = tf.TensorSpec([None, 2])
    return tf_private.checksum_of(tf.function(function).get_concrete_function(spec).graph)


def test_each_trace_of_a_step_has_the_same(steps: Steps) -> None:
    found = [checksum_of(steps.step)]
    checksum_of(steps.others["another branch"])  # so that names and tokens count on
    assert [*found, checksum_of(steps.step)] == found * 2
    assert 0 < found[0] < 2**62  # workers exchange it


@pytest.mark.parametrize(
    "name",
    [
        *("another number", "another branch", "another loop", "another variable"),
        *("another constant from outside", "another type", "another attribute"),
    ],
)
def test_step_that_differs_has_another(name: str, steps: Steps) -> None:
    assert checksum_of(steps.others[name]) != checksum_of(steps.step)
