"""Random programs under two workers give what plain Keras gives on one device, or a note says why not."""

from __future__ import annotations

import functools

import pytest

from tests.fuzz.comparison import Result, compare

# All programs of a test's kind run for the first test that asks for one.
pytestmark = pytest.mark.timeout(3600)

# What was wrong once: sums that a step gives to a metric, the weights behind a layer of tf_keras that could
# draw random numbers, epochs that do not end with their arrays.
FOUND = {
    "3": ("1009", "1038~after", "1033~optimizer~model"),
    "legacy": ("2017~model~after~call~data~clipping~ema~optimizer", "2029~after"),
}
SEEDS = {"3": range(1, 11), "legacy": range(11, 21)}
MORE_SEEDS = {"3": range(21, 61), "legacy": range(61, 101)}


def cases() -> list[object]:
    """Returns names of programs, and the Keras that each runs with."""
    default = [(name, keras) for keras in FOUND for name in (*FOUND[keras], *map(str, SEEDS[keras]))]
    slow = [(str(seed), keras) for keras in MORE_SEEDS for seed in MORE_SEEDS[keras]]
    return [*default, *(pytest.param(*one, marks=pytest.mark.slow) for one in slow)]


@functools.cache
def results(names: tuple[str, ...], keras: str) -> dict[str, Result]:
    return {one.program.name: one for one in compare(names, keras=keras, cluster="2")}


def of_same_kind(name: str, keras: str) -> tuple[str, ...]:
    """Returns the names of the default cases of a Keras, or those that are slow, ten at a time."""
    found = (*FOUND[keras], *map(str, SEEDS[keras]))
    if name in found:
        return found
    start = int(name) // 10 * 10
    return tuple(str(seed) for seed in MORE_SEEDS[keras] if start <= seed < start + 10)


@pytest.mark.parametrize(("name", "keras"), cases())
def test_random_program_trains_what_one_device_trains(name: str, keras: str) -> None:
    result = results(of_same_kind(name, keras), keras)[name]
    assert not result.verdict.is_defect, f"{result.program.describe()}\n{result.details}"
