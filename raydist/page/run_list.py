"""The runs of a storage, and those of a study, as the page lists them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from raydist.errors import SpecError, StorageError
from raydist.outcome.codec import as_plain
from raydist.page.gathering import Problems
from raydist.spec.best import Direction, direction_of
from raydist.storage.filesystem import Storage
from raydist.storage.run_record import RunRecord
from raydist.storage.run_removal import DamagedRecord, list_runs
from raydist.storage.studies import StudyStore

_FIELDS = ("state", "job", "steps", "best", "duration_s", "strategy", "study", "created_at_s")


def run_list(storage: Storage, problems: Problems) -> list[dict[str, Any]]:
    """Returns a line for each run, the newest first; a damaged one is named in `problems` too."""
    lines = []
    for record in list_runs(storage).runs:
        if isinstance(record, DamagedRecord):
            problems.add(StorageError(record.error.message))
            lines.append(_line(run=record.run))
        else:
            lines.append(_line_of(record))
    return lines


def study_list(storage: Storage, study: str, problems: Problems) -> dict[str, Any]:
    """Returns the runs of a study, the best first, each with its value of the metric and its params.

    With them is what `raydist compare` has found of them.

    The metric is the search's. Where runs share a study without one, it is that of each run's best value.
    Params that are the same in all runs are left out.

    Raises:
      SpecError: No run belongs to such a study.
    """
    records = [
        record
        for record in list_runs(storage).runs
        if isinstance(record, RunRecord) and record.spec.get("study") == study
    ]
    if not records:
        raise SpecError(f"no run in {storage.uri()} belongs to the study {study!r}")
    metric, direction, comparison = None, Direction.LOWEST, None
    values: dict[str, float] = {}
    store = StudyStore(storage)
    try:
        metric, direction = store.compared_by(study) or (metric, direction)
        comparison, values = store.comparison(study), store.values(study)
    except StorageError as error:
        problems.add(error)
    bests = [record.best.name for record in records if record.best is not None]
    if metric is None and bests:
        metric, direction = bests[0], direction_of(bests[0]) or direction
    params = [record.spec.get("params") or {} for record in records]
    varied = [
        name
        for name in dict.fromkeys(name for one in params for name in one)
        if len({repr(one.get(name)) for one in params}) > 1
    ]
    lines = [
        _line_of(record)
        | {"params": {name: own.get(name) for name in varied}, "value": value_of(record, metric, values)}
        for record, own in zip(records, params, strict=True)
    ]
    sign = -1 if direction is Direction.HIGHEST else 1
    lines.sort(key=lambda line: math.inf if line["value"] is None else sign * line["value"])
    told = {"study": study, "metric": metric, "mode": direction.value, "comparison": comparison}
    return {**told, "params": varied, "runs": lines}


def value_of(record: RunRecord, metric: str | None, values: Mapping[str, float]) -> float | None:
    """Returns a run's best value of the metric, or its newest where the best is not known; None without.

    Args:
      values: The best ones that the search has stored, of trials that have ended.
    """
    best = record.best
    if record.run in values:
        value: float | None = values[record.run]
    else:
        value = best.value if best is not None and best.name == metric else record.metrics.get(metric or "")
    return value if value is not None and math.isfinite(value) else None


def _line_of(record: RunRecord) -> dict[str, Any]:
    plain = as_plain(record)
    return _line(
        run=record.run,
        state=record.state.value,
        job=record.plan.get("job"),
        steps=record.steps,
        metrics=dict(sorted(plain["metrics"].items(), key=_metric_order)),
        best=None if record.best is None else {"name": record.best.name, "value": record.best.value},
        duration_s=record.timings.get("total"),
        strategy=record.strategy,
        study=record.spec.get("study"),
        created_at_s=record.created_at_s,
        params=record.spec.get("params") or {},
    )


def _metric_order(entry: tuple[str, Any]) -> int:
    """Places the loss and what was validated in front: a line has room for few."""
    name = entry[0]
    return 0 if name == "loss" else 1 if name == "val_loss" else 2 if name.startswith("val_") else 3


def _line(*, run: str, params: Mapping[str, Any] = MappingProxyType({}), **facts: Any) -> dict[str, Any]:
    """Returns the line, with the words that the filter looks in."""
    line: dict[str, Any] = {"run": run, **dict.fromkeys(_FIELDS), "metrics": {}, **facts}
    words = [run, line["state"], line["job"], line["strategy"], line["study"]]
    words += [f"{name}={value}" for name, value in params.items()]
    return {**line, "words": " ".join(str(word) for word in words if word).lower()}
