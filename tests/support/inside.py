"""What is behind the context that a train function gets, for tests that look inside of a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raydist.training.reporting.progress import TaskProgress
    from raydist.training.trainers.base import TaskRun


def run_of(ctx: Any) -> TaskRun:
    return ctx._run  # type: ignore[no-any-return]


def progress_of(ctx: Any) -> TaskProgress:
    return run_of(ctx).reporter.progress


def notes_of(ctx: Any) -> list[str]:
    """Returns the notes of the run so far, without the one that each plain `fit` of a job gets."""
    return [note for note in progress_of(ctx).status().notes if "stores no checkpoints" not in note]


def forget_notes(ctx: Any) -> None:
    """Has each sentence noted again, which is noted once otherwise."""
    progress_of(ctx)._fields["notes"] = ()


def reports_of(ctx: Any) -> list[dict[str, float]]:
    """Returns the metrics that are reported from now on."""
    recorded: list[dict[str, float]] = []
    reporter = run_of(ctx).reporter
    record = reporter.report

    def recording(metrics: dict[str, float], **place: Any) -> None:
        recorded.append(dict(metrics))
        record(metrics, **place)

    reporter.report = recording
    return recorded
