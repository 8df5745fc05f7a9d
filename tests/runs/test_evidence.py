from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from raydist.outcome.status import RunState
from raydist.runs.evidence import Evidence
from raydist.runtime.task.greeting import Hello
from raydist.storage.provenance import Environment, Machine
from raydist.storage.run_record import RunRecord
from tests.support.fakes import task

MACHINE = Machine(system="Linux", cpu="Some CPU", num_cpus=8, memory_bytes=None, gpus=())
BEFORE = RunRecord(
    run="r",
    state=RunState.FAILED,
    storage="s",
    environment=Environment().with_host("10.0.0.1", "h0", MACHINE),
    versions={"tensorflow": "2.20.0", "numpy": "2.0.0", "click": "8.1"},
)


def hello(**facts: Any) -> Hello:
    places = {"address": "10.0.0.1:3333", "pid": 7, "host": "10.0.0.1", "node_id": "n", "host_name": "h0"}
    known = {"machine": MACHINE, "packages": {**BEFORE.versions, "click": "8.2"}}
    return Hello(task=task("worker/0"), scratch_path=Path("/s"), **{**places, **known, **facts})


def noted(before: RunRecord | None, *hellos: Hello, **options: Any) -> tuple[str, ...]:
    evidence = Evidence(None, before=before, **{"has_same_bits": True, **options})
    for one in hellos:
        evidence.take(one)
    return evidence.notes()


def test_run_that_is_to_have_the_same_bits_tells_what_it_goes_on_with() -> None:
    newer = hello(packages={"tensorflow": "2.21.0", "numpy": "2.0.0"})
    other = hello(machine=Machine(system="Linux", cpu="Another CPU", num_cpus=8, memory_bytes=None, gpus=()))
    assert noted(BEFORE, hello()) == ()
    assert noted(BEFORE, newer, other, other) == (
        "the run continues with other versions (tensorflow 2.20.0 before and 2.21.0 now), so its bits may "
        "differ from here on",
        "the run computes on Another CPU, too, which it had not before, so its bits may depend on where "
        "it runs",
    )


def test_another_kind_of_cpu_is_told_within_a_run_too() -> None:
    other = hello(machine=Machine(system="Linux", cpu="Another CPU", num_cpus=8, memory_bytes=None, gpus=()))
    assert len(noted(None, hello(), other, hello())) == 1
    evaluator = dataclasses.replace(other, task=task("evaluator/0"))
    assert noted(None, evaluator, hello(), evaluator) == ()


def test_other_runs_and_first_submits_tell_nothing() -> None:
    newer = hello(packages={"tensorflow": "2.21.0"})
    assert noted(BEFORE, newer, has_same_bits=False) == ()
    older = dataclasses.replace(BEFORE, environment=Environment(), versions={})  # of an older raydist
    assert noted(older, newer) == ()
