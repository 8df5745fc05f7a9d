"""What is gathered of a run: all of a whole one, and what is left of a damaged one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from raydist.errors import MistakeError
from raydist.page.gathering import MAX_TASKS, Problems, gather_curves, gather_facts
from raydist.spec.tasks import TaskId
from raydist.storage.run_storage import RunStorage, open_run
from tests.support.page_runs import BEGUN_S, DEATH, store_metrics, store_record, store_run


def gathered(run: RunStorage) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    problems = Problems()
    facts = gather_facts(run, problems, now_s=BEGUN_S + 99)
    return facts, gather_curves(run, problems, facts["record"]), problems.sentences


def names_of(curves: dict[str, Any]) -> set[tuple[str, str, str]]:
    return {(one["scope"], one["name"], one["task"]) for one in curves["series"]}


def test_whole_run_is_gathered(run: RunStorage) -> None:
    facts, curves, problems = gathered(run)
    assert problems == []
    assert (facts["record"]["state"], facts["record"]["spec"]["params"]["epochs"]) == ("SUCCEEDED", 3)
    assert [(one["step"], one["epoch"], one["attempt"]) for one in facts["checkpoints"]] == [
        (100, 1, 1),
        (200, 2, 1),
    ]
    assert names_of(curves) == {
        ("global", "loss", "worker/0"),
        ("global", "accuracy", "worker/0"),
        *(("local", name, f"worker/{i}") for name in ("loss", "input_wait", "step_time") for i in (0, 1)),
    }
    assert [(one["attempt"], one["step"]) for one in curves["attempts"]] == [(0, 1), (1, 81)]
    assert [(one["task"], round(one["step_s"], 3)) for one in curves["workers"]] == [
        ("worker/0", 0.1),
        ("worker/1", 0.1),
    ]


def test_curves_of_a_large_run_are_those_of_the_chief_stragglers_and_first_tasks(tmp_path: Path) -> None:
    run = open_run(str(tmp_path), run="large")
    tasks = [f"worker/{index}" for index in range(MAX_TASKS + 20)]
    straggler = {"task": tasks[-1], "cause": "data", "times_slower": 2.0, "message": "it is slow"}
    store_record(run, stragglers=[straggler])
    store_metrics(run, steps=range(1, 3), attempt=0, tasks=tasks)
    _, curves, problems = gathered(run)
    assert {one["task"] for one in curves["series"]} == {*tasks[: MAX_TASKS - 1], tasks[-1]}
    assert (curves["tasks_left_out"], problems) == (20, [])
    # By the median of all tasks, and not of those that are drawn.
    assert {one["task"]: one["times_slower"] for one in curves["workers"]}[tasks[-1]] == 2.0
    assert [one["task"] for one in curves["workers"] if one["times_slower"]] == [tasks[-1]]


def test_excerpt_of_a_log_has_no_control_sequences(run: RunStorage) -> None:
    key = run.log_segment(TaskId.parse("worker/1"), attempt=0, seq=1)
    run.write_text(key, "\x1b[31mred\x1b[0m\x1b]0;owned\x07\n")
    (failure,) = gathered(run)[0]["failures"]
    assert failure["log_end"].endswith("attempt 0\nred\n")


def test_root_cause_has_the_end_of_its_log(run: RunStorage) -> None:
    (failure,) = gathered(run)[0]["failures"]
    assert (failure["task"], failure["attempt"], failure["message"]) == ("worker/1", 0, DEATH)
    assert failure["log_end"] == "first line\nlast words of worker/1 in attempt 0\n"


def test_damaged_metrics_file_is_named_and_the_others_are_shown(run: RunStorage) -> None:
    run.write_text(f"{run.metrics}/0-worker-1-000000.parquet", "x")
    _, curves, problems = gathered(run)
    assert len(problems) == 1
    assert "0-worker-1-000000.parquet is damaged" in problems[0]
    assert ("global", "loss", "worker/0") in names_of(curves)
    assert ("local", "loss", "worker/1") in names_of(curves)  # of attempt 1


@pytest.mark.parametrize("content", ['{"run": "dig', "[]", "7", ""])
def test_record_that_is_no_json_is_named_and_the_rest_is_shown(run: RunStorage, content: str) -> None:
    run.write_text(run.record, content)
    facts, curves, problems = gathered(run)
    assert ["run.json is damaged" in sentence for sentence in problems] == [True]
    assert (facts["record"]["state"], facts["is_over"]) == (None, False)
    assert facts["failures"][0]["message"] == DEATH
    assert len(facts["checkpoints"]) == 2
    assert curves["points"] > 0


def test_whole_fields_of_a_damaged_record_are_shown(run: RunStorage) -> None:
    record = json.loads(run.read_text(run.record))
    run.write_text(run.record, json.dumps({**record, "steps": "many"}))
    facts, _, problems = gathered(run)
    assert "run.json is damaged: steps" in problems[0]
    assert (facts["record"]["state"], facts["record"]["steps"]) == ("SUCCEEDED", 0)
    assert facts["record"]["notes"][0] == "trained on digits"


def test_damaged_line_of_the_events_is_named_and_the_others_are_shown(run: RunStorage) -> None:
    key = run.event_segment(0)
    run.write_text(key, run.read_text(key) + '{"event": \n[1]\n')
    facts, _, problems = gathered(run)
    assert ["000000.jsonl is damaged" in sentence for sentence in problems] == [True, True]
    assert [row["task"] for row in facts["timeline"]["rows"]] == ["worker/0", "worker/1"]


@pytest.mark.parametrize("odd", [{"attempt": []}, {"task": {}}, {"attempt": 1e999}])
def test_failure_of_no_attempt_and_no_task_has_no_log(run: RunStorage, odd: dict[str, Any]) -> None:
    error = {"type": "T", "message": "m", "task": "worker/0", "attempt": 0, "exit_code": 1}
    store_record(run, state="FAILED", error=error)
    event = {"event": "task_failed", "task": "worker/1", "attempt": 0, **odd}
    run.write_text(run.event_segment(0), json.dumps(event))
    told = [(one["is_cause"], one["log_end"] is None) for one in gathered(run)[0]["failures"]]
    assert told == [(True, True), (True, False)]


def test_run_that_has_only_begun_is_shown(tmp_path: Path) -> None:
    run = open_run(str(tmp_path), run="young")
    run.write_text(run.record, '{"state": "STARTING"}')
    facts, curves, problems = gathered(run)
    assert (facts["record"]["state"], curves["series"], problems) == ("STARTING", [], [])


def test_run_that_does_not_exist_is_a_mistake(run: RunStorage) -> None:
    with pytest.raises(MistakeError, match="did you mean digits-1"):
        gathered(RunStorage(run, run="digits-2"))


def test_run_on_an_object_store_is_gathered(s3_uri: str) -> None:
    run = open_run(s3_uri, run="digits-1")
    store_run(run)
    facts, curves, problems = gathered(run)
    assert (facts["record"]["steps"], curves["points"] > 0, problems) == (200, True, [])
