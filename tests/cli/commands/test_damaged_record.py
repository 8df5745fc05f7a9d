"""A run.json that is not as raydist writes it is one sentence, in every command."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import raydist as package
from raydist.controller.revival import Revival
from raydist.errors import StorageError
from raydist.outcome.codec import as_plain
from raydist.outcome.result import Evaluation, RunError, RunProgress, RunResult, TaskRecord
from raydist.outcome.status import FailureKind, GroupLoss, RunState, TaskState
from raydist.planning.describe import describe_job, describe_plan
from raydist.spec.best import Best
from raydist.storage.run_record import RunRecord, RunRecordStore, read_record
from raydist.storage.run_storage import open_run
from tests.cli.conftest import Run
from tests.support.fakes import make_failure, make_plan, task

DAMAGES: tuple[Any, ...] = (None, "x", "", 7, -1, 0, 1.5, 1e300, 10**400, True, [], ["x"], {}, {"x": "x"})
# Of the damages, each place is tried with every third, and so all places with each of them.
EVERY = 3
HALF_A_CHARACTER = "\ud800"
Place = tuple[str | int, ...]


def whole_record() -> RunRecord:
    """Makes the record of a detached live run, with every field filled."""
    plan = make_plan(working_dir="/nowhere", params={"epochs": 3})
    result = RunResult(
        run="digits-1",
        state=RunState.RUNNING,
        strategy="multi_worker_mirrored",
        keras="3",
        attempts=3,
        steps=20,
        storage="/runs/digits-1",
        metrics={"loss": 0.25},
        best=Best(name="loss", value=0.25, step=20),
        progress=RunProgress(epoch=2, num_epochs=3, num_steps=30, steps_per_s=4.5, eta_s=2.0),
        evaluation=Evaluation(step=10, lag_steps=2, metrics={"loss": 0.5}),
        checkpoint="/runs/digits-1/checkpoints/step-20-a2",
        tasks=(
            TaskRecord(
                task=task("worker/0"),
                state=TaskState.RUNNING,
                steps=20,
                host="h0",
                pid=2**31 - 1,
                address="h0:1",
            ),
        ),
        error=RunError(type="ValueError", message="bad batch", task=task("worker/0"), attempt=0, log="/l"),
        notes=("trained on digits",),
        timings={"ray": 0.5, "total": None},
    )
    spec: Any = describe_job(plan.job)
    return RunRecord.of(
        result,
        spec=spec,
        plan=describe_plan(plan),
        failures=(make_failure("worker/1", FailureKind.LOST), GroupLoss(message="Ray is away")),
        driver={"host": "elsewhere", "pid": 2**31 - 1, "start": 17},
        datasets=("train",),
    )


def places(value: Any, place: Place = ()) -> Iterator[Place]:
    """Yields where something stands in a record, at every depth but inside of the plan."""
    if place:
        yield place
    if place != ("plan",) and isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*place, key))


def replaced(record: dict[str, Any], place: Place, value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(record)
    holder: Any = changed
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    return changed


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What is read back from the file that is written for `whole_record`."""
    storage = open_run(str(tmp_path_factory.mktemp("runs")), run="digits-1")
    RunRecordStore(storage).replace(whole_record())
    assert dataclasses.replace(read_record(storage), created_at_s=None, updated_at_s=None) == whole_record()
    content: dict[str, Any] = json.loads(storage.read_text(storage.record))
    return content


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "raydist_runs" / "digits-1" / "run.json"
    path.parent.mkdir(parents=True)
    return path


FIELDS = as_plain(whole_record())


@pytest.mark.slow
@pytest.mark.parametrize("field", FIELDS)
def test_no_field_of_another_type_ends_in_a_traceback(
    raydist: Run, file: Path, record: dict[str, Any], field: str
) -> None:
    storage = open_run(str(file.parents[1]), run="digits-1")
    for number, place in enumerate(places(record)):
        if place[0] != field:
            continue
        refused: set[str] = set()
        for damage in DAMAGES[number % EVERY :: EVERY]:
            file.write_text(json.dumps(replaced(record, place, damage)))
            try:
                stored = read_record(storage)
            except StorageError as error:
                refused.add(str(error))
                if len(refused) > 1:
                    continue
                expected = 4
            else:
                expected = 0
                found = package.attach("digits-1", storage=str(file.parents[1])).status()
                assert isinstance(found.steps, int)
                revival = Revival.of(stored, history=stored.failures, spent_s=1.0)
                assert revival.first_attempt == found.attempts
            for more in ([], ["--json"]):
                code, out, err = raydist("status", "digits-1", *more)
                assert code == expected, (place, damage, err)
                if code:
                    assert (err.count("\n"), "run.json is damaged: " in err) == (1, True)
                    assert out == "" or json.loads(out)["error"]["type"] == "StorageError"
        assert all(field in sentence for sentence in refused)


COMMANDS = {
    "list": {0},
    "logs": {2, 4},  # no log is stored for this run
    "metrics": {0, 4},
    "status --checkpoints": {0, 4},
    "stop": {0, 2, 4},  # a host that cannot be reached drives it, where it has not ended
    "resume": {2, 4},  # its job is not there
    "chaos": {2, 4},  # no such task
}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_a_damaged_record(
    raydist: Run, file: Path, record: dict[str, Any], command: str
) -> None:
    arguments = {"list": ["list"], "chaos": ["chaos", "digits-1", "--kill", "ps/7"]}
    for place in places(record):
        if len(place) > 2 or place[0] == "plan":
            continue
        file.write_text(json.dumps(replaced(record, place, damage := "x" if place[-1] != "state" else 7)))
        code, _, err = raydist(*arguments.get(command, [*command.split(), "digits-1"]))
        assert code in COMMANDS[command], (place, damage, err)
        assert "Traceback" not in err


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        pytest.param("metrics", "x", "metrics is 'x', not an object", id="metrics"),
        pytest.param("metrics", {"loss": "x"}, "metrics.loss is 'x', not a number", id="metric"),
        pytest.param("state", "LOST", "state is 'LOST', not one of STARTING, RUNNING", id="state"),
        pytest.param("steps", True, "steps is True, not a whole number", id="bool"),
        pytest.param("tasks", [{"task": "x"}], "tasks[0].task is 'x': 'x' is not a task", id="task"),
        pytest.param("tasks", [{"task": "ps/0"}], "tasks[0].state is missing", id="missing"),
        pytest.param("created_at_s", -5, "created_at_s is -5: write a Unix time", id="time"),
        pytest.param("driver", {"host": "h", "pid": -1}, "driver.pid is -1: no process", id="pid"),
        pytest.param("notes", [["x"]], "notes[0] is ['x'], not a string", id="list"),
        pytest.param("failures", [{"kind": "x"}], "failures[0].kind is 'x'", id="union"),
        pytest.param("checkpoint", "x" * 9999, None, id="long"),
        pytest.param("timings", ["x" * 9999], f"timings is ['{'x' * 58}…, not an object", id="shortened"),
        pytest.param("notes", [HALF_A_CHARACTER], "surrogates not allowed", id="half-a-character"),
        pytest.param("added_later", [1, {}], None, id="unknown"),
    ],
)
def test_damage_is_told_with_place_and_value(
    raydist: Run, file: Path, record: dict[str, Any], field: str, value: Any, why: str | None
) -> None:
    file.write_text(json.dumps({**record, field: value}))
    code, _, err = raydist("status", "digits-1")
    if why is None:
        assert code == 0
    else:
        assert (code, why in err) == (4, True), err
        assert "put back a copy of it" in err


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.5, 0.99])
def test_truncated_record_is_damaged(
    raydist: Run, file: Path, record: dict[str, Any], fraction: float
) -> None:
    text = json.dumps(record)
    file.write_text(text[: int(len(text) * fraction)])
    assert raydist("status", "digits-1")[0] == 4


def test_damaged_record_of_a_run_without_checkpoints_is_given_up(raydist: Run, file: Path) -> None:
    file.write_text("{")
    err = raydist("status", "digits-1")[2]
    assert "put back a copy of it, or give the run up and remove its folder" in err


def test_record_that_is_nested_too_deeply_is_damaged(raydist: Run, file: Path) -> None:
    file.write_text('{"plan": ' + "[" * 100_000 + "]" * 100_000 + "}")
    assert raydist("status", "digits-1")[0] == 4


def test_list_shows_the_other_runs_and_names_the_damaged_one(
    raydist: Run, stored_run: dict[str, Any], file_of_another: Path
) -> None:
    file_of_another.write_text(json.dumps({"state": "RUNNING", "created_at_s": "x"}))
    code, out, _ = raydist("list")
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()[1:3]] == [["digits-1", "SUCCEEDED"], ["other", "-"]]
    assert f"{file_of_another} is damaged: created_at_s is 'x', not a number" in out
    [whole, damaged] = json.loads(raydist("list", "--json")[1])["runs"]
    assert (whole["error"], damaged["error"]["type"]) == (None, "StorageError")


@pytest.fixture
def file_of_another(tmp_path: Path) -> Path:
    path = tmp_path / "raydist_runs" / "other" / "run.json"
    path.parent.mkdir(parents=True)
    return path
