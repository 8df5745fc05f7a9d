"""Files of a run, each as somebody may write it who wants to do harm, for `tests.support.hostile`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from raydist.metrics.parquet import SCHEMA
from tests.support.hostile import INTEGERS, NUMBERS, Hostile, dump


def write_metrics(path: Path, hostile: Hostile, *, num_rows: int = 30) -> None:
    """Writes a file of metrics with values that its schema allows."""
    draw = hostile.draw
    is_wild = draw.random() < 0.5

    def value(field: Any) -> Any:
        if field.name == "task" and not is_wild:
            return "worker/0"
        if field.name == "scope" and draw.random() < 0.95:
            return draw.choice(("global", "local"))
        if field.name == "name":
            return draw.choice(("loss", "val_loss", "input_wait", hostile.text()[:9000]))
        if pa.types.is_string(field.type):
            return hostile.text()
        if pa.types.is_floating(field.type):
            return float(draw.choice(NUMBERS))
        fitting = [one for one in INTEGERS if one < 2 ** (field.type.bit_width - 1)]
        return draw.choice([*fitting, -fitting[-1]])

    columns = {field.name: [value(field) for _ in range(num_rows)] for field in SCHEMA}
    pq.write_table(pa.table(columns, schema=SCHEMA), path, store_schema=False)


def write_study(storage: Path, hostile: Hostile) -> None:
    """Writes what a storage keeps of the study `s`."""
    folder = storage / ".studies" / "s"
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"--metric": "loss", "--mode": "max", "--num": 3, "job": "j.py"}
    told = {"headers": ["a", "b"], "cells": [["x", 1.0]], "sentence": "s", "picture": "<svg/>"}
    study = {"study": "s", "created_at_s": 1.7e9, "settings": settings}
    for name, value in (("study", study), ("comparison", told), ("values", {"r": 0.5, "x": 1})):
        value = hostile.like(value)
        is_damaged = hostile.draw.random() < 0.5
        (folder / f"{name}.json").write_bytes(dump(hostile.damaged(value) if is_damaged else value))
