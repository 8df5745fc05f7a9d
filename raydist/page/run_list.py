"""The runs of a storage as the list on the page shows them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from raydist.errors import StorageError
from raydist.page.gathering import Problems
from raydist.spec.plain import as_plain
from raydist.storage.filesystem import Storage
from raydist.storage.run_list import DamagedRecord, list_runs
from raydist.storage.run_record import RunRecord

_FIELDS = ("state", "job", "steps", "best", "duration_s", "strategy", "created_at_s")


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
    words = [run, line["state"], line["job"], line["strategy"]]
    words += [f"{name}={value}" for name, value in params.items()]
    return {**line, "words": " ".join(str(word) for word in words if word).lower()}
