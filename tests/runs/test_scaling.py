"""What bounds a job is read from measurements, and each Measurement from what its tasks reported."""

from __future__ import annotations

from typing import Any

import pytest

from raydist.runs.scaling import Bound, Measurement, TaskReadings, measured, verdict


def run(workers: int, examples_per_s: float | None, **facts: Any) -> Measurement:
    known: dict[str, Any] = {"num_cores": 16, "num_hosts": workers, "step_s": 0.1, **facts}
    return Measurement(
        name=f"{workers} workers",
        run="a",
        state="CANCELLED",
        strategy="multi_worker_mirrored",
        workers=workers,
        examples_per_s=examples_per_s,
        **known,
    )


ALONE = run(1, 1000.0)


@pytest.mark.parametrize(
    ("largest", "bound", "piece"),
    [
        (run(4, 3600.0, collective_wait=0.1), Bound.NOTHING, "3.6 times as fast"),
        (run(4, 3600.0, input_wait=0.5), Bound.NOTHING, "more workers pay"),
        (run(4, 1000.0, num_cores=2, num_hosts=1, collective_wait=0.8), Bound.CORES, "share 2 CPU cores"),
        (run(4, 1000.0, num_cores=2, has_gpus=True, collective_wait=0.8), Bound.ALL_REDUCE, "80%"),
        (run(4, 1000.0, input_wait=0.5, collective_wait=0.3), Bound.INPUT, "wait for it 50%"),
        (run(4, 1000.0, input_wait=0.3, collective_wait=0.5), Bound.ALL_REDUCE, "--compress-gradients"),
        (run(4, 900.0, collective_wait=0.5, step_s=0.005, batch=32), Bound.SMALL_BATCH, "of 32 examples"),
        (run(4, 1000.0, num_hosts=1), Bound.CORES, "one device had for itself"),
        (run(4, 1000.0), Bound.COMPUTE, "raydist profile"),
        (run(4, None), Bound.UNKNOWN, "not counted"),
    ],
)
def test_verdict_names_the_bound_and_a_remedy(largest: Measurement, bound: Bound, piece: str) -> None:
    found = verdict(ALONE, [ALONE, run(2, 1900.0), largest])
    assert found.bound is bound
    assert piece in found.sentence


def test_one_device_alone_says_nothing_of_workers() -> None:
    found = verdict(ALONE, [ALONE])
    assert found.bound is Bound.UNKNOWN
    assert found.sentence.startswith("only the run on one device was measured")


def test_one_worker_is_compared_with_one_device() -> None:
    found = verdict(ALONE, [ALONE, run(1, 500.0)])
    assert (found.bound, "1 worker trains 0.5 times" in found.sentence) == (Bound.COMPUTE, True)


def test_speed_up_efficiency_and_cost() -> None:
    row = run(4, 2500.0).as_dict(ALONE)
    assert (row["speed_up"], row["efficiency"], row["worker_s_per_million_examples"]) == (2.5, 0.625, 1600.0)
    unknown = run(2, None).as_dict(ALONE)
    assert (unknown["speed_up"], unknown["efficiency"]) == (None, None)


def test_first_reports_are_left_out_and_tasks_are_summed() -> None:
    one = TaskReadings(
        steps=[5, 10, 20, 30],
        times=[0.0, 9.0, 10.0, 11.0],
        examples_per_s=[1.0, 100.0, 110.0, 90.0],
        input_wait=[1.0, 0.1, 0.1, 0.1],
    )
    other = TaskReadings(steps=one.steps, times=one.times, examples_per_s=[50.0] * 4, input_wait=[0.3] * 4)
    found = measured({"worker/0": one, "worker/1": other}, batch=None)
    assert found["examples_per_s"] == 150.0
    assert found["step_s"] == pytest.approx(0.1)
    assert found["input_wait"] == pytest.approx(0.2)
    assert found["collective_wait"] is None


def test_examples_that_tasks_do_not_count_come_from_the_batch() -> None:
    readings = {"chief": TaskReadings(steps=[0, 10, 20, 30], times=[0.0, 2.0, 4.0, 6.0])}
    assert measured(readings, batch=64)["examples_per_s"] == pytest.approx(320.0)
    assert measured(readings, batch=None)["examples_per_s"] is None
    assert measured({}, batch=64)["examples_per_s"] is None
