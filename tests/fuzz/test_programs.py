"""Programs of tests.fuzz that were wrong once, on two workers; `.ci/run` compares random ones."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pytest
from click.testing import CliRunner

from tests.fuzz.__main__ import main
from tests.fuzz.comparison import Result, Verdict, compare
from tests.fuzz.program import KEEP, ORDINARY, program_of
from tests.support.selected import selected

# All programs of a test's kind run for the first test that asks for one.
pytestmark = pytest.mark.timeout(3600)

# What was wrong once: sums that a step gives to a metric, epochs that do not end with their arrays, metrics
# of a loop on a replica without examples, an evaluation before any training; the weights behind a layer of
# tf_keras that may draw numbers; metrics that a step of the model's own never updates. Logs of batches,
# losses of outputs, and metrics by other names, in eager steps, Keras's Dice, what a step shows where a
# worker has one row, a LambdaCallback; metrics in a file, a model that is compiled again, arrays that end.
FOUND = {
    "3": (
        "1009",
        "loop1~num_optimizers~structure",
        "3115~layers~clipping~schedule~data~optimizer~epochs~callbacks~after",
        "7020~metrics~optimizer~clipping~decay~schedule~weights~callbacks~layers~inputs~task~num_examples",
        "10001~layers~metrics~optimizer~clipping~ema~decay~after~first_epoch~validation_freq"
        "~metrics_weighted~model~num_examples~batch_size~steps_per_epoch",
        "10011~metrics~optimizer~clipping~decay~schedule~weights~model~logs~data~callbacks"
        "~steps_per_execution~metrics_weighted",
        "10004~layers~metrics~optimizer~clipping~schedule~shuffle~metrics_weighted~inputs",
        "10025~inputs~metrics~optimizer~clipping~schedule~callbacks~after~outputs~model~validation_freq",
        "11125~layers~inputs~optimizer~clipping~decay~schedule~data~validation~validation_freq",
    ),
    "legacy": (
        *("2017~model~after~call~data~clipping~ema~optimizer", "19~after~data~optimizer", "6234"),
        "10033~layers~metrics~optimizer~data~inputs~callbacks~validation_freq~run_eagerly~steps_per_epoch"
        "~batch_size~metrics_weighted~logs",
        "10015~layers~metrics~optimizer~schedule~weights~metrics_weighted~epochs~batch_size",
    ),
}
# The same, and a note says how they differ.
TOLD = {
    "3": (
        "1033~optimizer~model",
        "10055~inputs~after~validation~ema~decay~schedule~optimizer~clipping~data~steps_per_execution"
        "~steps_per_epoch~validation_freq~logs",
    ),
    "legacy": (
        "10001~layers~data~metrics~optimizer~clipping~ema~decay~model~callbacks~after~metrics_weighted"
        "~validation_freq~reduction",
    ),
}


@functools.cache
def results(names: tuple[str, ...], keras: str) -> dict[str, Result]:
    return {one.program.name: one for one in compare(names, keras=keras, cluster="2")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "keras"), [(name, keras) for keras in FOUND for name in (*FOUND[keras], *TOLD[keras])]
)
def test_random_program_trains_what_one_device_trains(
    request: pytest.FixtureRequest, name: str, keras: str
) -> None:
    result = results(selected(request, "name", keras=keras), keras)[name]
    wanted = Verdict.TOLD if name in TOLD[keras] else Verdict.EQUAL
    assert result.verdict is wanted, f"{result.program.describe()}\n{result.details}"


@pytest.mark.parametrize("seeds", ["5:3", "xx"])
def test_seeds_of_which_nothing_would_run_are_a_mistake(seeds: str) -> None:
    found = CliRunner().invoke(main, ["--seeds", *seeds.split()])
    assert found.exit_code == 2, found.output
    assert "Invalid value for --seeds" in found.output


def test_each_strategy_runs_its_own_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: dict[str, list[str]] = {"2": [], "parameter_server": []}

    def compared(names: Sequence[str], *, keras: str, cluster: str) -> list[Result]:
        ran[cluster] += names
        return [Result(program=program_of(name), verdict=Verdict.EQUAL) for name in names]

    monkeypatch.setattr("tests.fuzz.__main__.compare", compared)
    arguments = ["--seeds", "1:3", *(part for one in ran for part in ("--strategy", one))]
    found = CliRunner().invoke(main, arguments)
    assert found.exit_code == 0, found.output
    for cluster, prefix in (("2", ""), ("parameter_server", "ps")):
        assert ran[cluster] == [f"{prefix}{seed}" for seed in range(1, 4)]
        assert f"{cluster}: {len(ran[cluster])} equal" in found.output.splitlines()


def test_ordinary_programs_predict_and_evaluate_and_most_have_even_batches() -> None:
    programs = [program_of(str(seed)) for seed in range(ORDINARY, ORDINARY + 400)]
    for program in programs:
        assert {"evaluate", "predict"} <= {*program.before, *program.after}, program.describe()
    even = [one for one in programs if one.num_examples % one.batch_size == 0]
    assert len(even) >= len(programs) / 2
    for count in (
        sum(one.decorated != KEEP for one in programs),
        sum(not one.is_seeded for one in programs),
        sum(bool(one.before) for one in programs),
        sum(one.inputs in ("sparse", "text") or "adapted" in one.layers for one in programs),
    ):
        assert count >= len(programs) / 4


@pytest.mark.slow
def test_parameter_servers_count_examples_and_evaluate_each_once_with_three_workers() -> None:
    names = [f"still{seed}" for seed in range(1, 4)]
    for result in compare(names, keras="3", cluster="parameter_server_3"):
        assert not result.verdict.is_defect, f"{result.program.describe()}\n{result.details}"
