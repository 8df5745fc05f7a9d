"""Which checkpoints --keep-best keeps where an evaluator's values come in later."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from raydist.spec.tasks import TaskId
from raydist.storage.checkpoint_marker import STATE_FILE, Checkpoint
from raydist.storage.checkpoints import CheckpointStore, EvaluationStore
from raydist.storage.run_storage import open_run
from tests.support.processes import Cluster, run_function

CHIEF, EVALUATOR = TaskId.parse("worker/0"), TaskId.parse("evaluator/0")
NOTHING: Mapping[str, float] = {}  # of a checkpoint that could not be read


def checkpoints(*steps: int, fit: int = 0) -> list[Checkpoint]:
    return [
        Checkpoint(step=step, attempt=0, uri=f"/r/step-{step}-a0", files=(), info={"fit": fit})
        for step in steps
    ]


@pytest.mark.parametrize(
    ("num_committed", "evaluated", "expected"),
    [
        (3, (), {1, 2, 3}),
        (3, (1, 2), {3}),
        (3, (1, 2, 3), set()),
        (9, (), {1, 6, 7, 8, 9}),  # the evaluator is at work on the oldest
        (9, (1, 3), {2, 6, 7, 8, 9}),
    ],
)
def test_checkpoints_that_the_evaluator_has_yet_to_evaluate_are_kept_within_bounds(
    num_committed: int, evaluated: tuple[int, ...], expected: set[int]
) -> None:
    from raydist.training.checkpointing.schedule import awaited_steps

    committed = checkpoints(*range(num_committed, 0, -1))
    values = {f"step-{step}-a0": {"val_loss": 1.0} if step < 3 else NOTHING for step in evaluated}
    assert awaited_steps(committed, values) == expected


def test_only_checkpoints_of_the_newest_fit_are_awaited() -> None:
    from raydist.training.checkpointing.schedule import awaited_steps

    assert awaited_steps([*checkpoints(30, 40, fit=1), *checkpoints(10, 20)], {}) == {30, 40}


@pytest.mark.slow
def test_evaluators_values_decide_which_checkpoint_is_best_when_they_arrive(tmp_path: Path) -> None:
    from raydist.training.checkpointing.checkpoints import TaskCheckpoints
    from raydist.training.reporting.progress import TaskProgress

    storage = open_run(str(tmp_path), run="test")
    store, values = CheckpointStore(storage), EvaluationStore(storage)
    progress = TaskProgress(CHIEF)

    def of_task(task: TaskId, *, has_evaluator: bool = True) -> TaskCheckpoints:
        return TaskCheckpoints(
            store,
            attempt=0,
            is_chief=task == CHIEF,
            keep=1,
            keep_best="val_loss",
            progress=progress,
            evaluations=values,
            has_evaluator=has_evaluator,
        )

    def steps() -> list[int]:
        return [one.step for one in store.committed()]

    chief, evaluator, seen = of_task(CHIEF), of_task(EVALUATOR), None
    for step in (10, 20, 30):
        chief.save({}, step=step)
        chief.finish()
    assert steps() == [30, 20, 10]  # --keep 1, but any of them may be the best
    for step, loss in ((10, 0.5), (20, 0.3)):
        seen = evaluator.next_to_evaluate(seen)
        assert seen.step == step
        evaluator.evaluated(seen, {"val_loss": loss})
    chief.save({}, step=40)
    chief.finish()
    assert steps() == [40, 30, 20]
    [damaged] = (one for one in store.committed() if one.step == 30)
    (tmp_path / "test/checkpoints" / damaged.name / STATE_FILE).write_bytes(b"")
    seen = evaluator.next_to_evaluate(seen)
    assert seen.step == 40
    assert set(values.read()) == {"step-20-a0", "step-30-a0"}  # and not that of a checkpoint that is gone
    chief.settle_best(fit=0, is_alone=lambda: True)  # does not wait for step 40
    assert progress.status().notes == (
        "the evaluator has not evaluated the checkpoints of step 40, so --keep-best val_loss chose among the "
        "others",
    )
    assert steps() == [40, 20]
    files = chief.best_files(fit=0)
    assert b'"step": 20' in files[STATE_FILE]
    evaluator.evaluated(seen, {"val_loss": 0.1})
    chief.settle_best(fit=0)
    assert steps() == [40]

    resumed = of_task(CHIEF, has_evaluator=False)
    for step in (50, 60):
        resumed.save({}, step=step)
        resumed.finish()
    resumed.settle_best(fit=0)  # waits for nobody
    assert steps() == [60, 40]


def test_damaged_values_of_the_evaluator_count_as_none(tmp_path: Path) -> None:
    storage = open_run(str(tmp_path), run="test")
    values = EvaluationStore(storage)
    values.add("step-10-a0", {"val_loss": float("inf")}, present=())
    assert values.read() == {"step-10-a0": {"val_loss": float("inf")}}
    storage.write_bytes(storage.evaluations, b"[1")
    assert values.read() == {}


@pytest.mark.exhaustive("mae", covered_by="test_export.py: best_model_of_the_last_fit")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("keep_best", "told"),
    [
        ("mae", [None, None]),
        ("mea:min", ["write one of loss, mae"] * 2),
        # The second epoch is the first one that validates.
        ("val_mea:min", [None, "did you mean val_mae?"]),
    ],
)
def test_metric_to_keep_that_no_epoch_has_is_told_at_once(keep_best: str, told: list[str | None]) -> None:
    options = {"keep_best": keep_best}
    [task] = run_function("tests.support.checkpoint_functions:keeps_best", Cluster(), job_options=options)
    for sentence, notes in zip(told, task.values["notes"], strict=True):
        assert len(notes) == (sentence is not None)
        assert sentence is None or notes[0].endswith(f"so far, as the epochs do not report it; {sentence}")
