"""Files of a storage, each as somebody may write it who wants to do harm, for `tests.support.hostile`."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import shutil
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from raydist.metrics.parquet import SCHEMA
from raydist.spec.tasks import TaskId
from raydist.storage.layout import INDEX, STUDIES, RunLayout
from tests.support.hostile import INTEGERS, NUMBERS, Hostile, Traps, dump
from tests.support.page_runs import record_facts

WORKER = TaskId.parse("worker/0")


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
        if field.name == "wall_time" and not is_wild:
            return 1.7e9
        if pa.types.is_string(field.type):
            return hostile.text()
        if pa.types.is_floating(field.type):
            return float(draw.choice(NUMBERS))
        fitting = [one for one in INTEGERS if one < 2 ** (field.type.bit_width - 1)]
        return draw.choice([*fitting, -fitting[-1]])

    columns = {field.name: [value(field) for _ in range(num_rows)] for field in SCHEMA}
    pq.write_table(pa.table(columns, schema=SCHEMA), path, store_schema=False)


def write_study(storage: Path, hostile: Hostile) -> None:
    """Writes what a storage keeps of the study `s`, with a pickle of Tune's that makes the canary."""
    folder = storage / STUDIES / "s"
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"--metric": "loss", "--mode": "max", "--num": 3, "job": "j.py"}
    told = {"headers": ["a", "b"], "cells": [["x", 1.0]], "sentence": "s", "picture": "<svg/>"}
    study = {"study": "s", "created_at_s": 1.7e9, "settings": settings}
    for name, value in (("study", study), ("comparison", told), ("values", {"r": 0.5, "x": 1})):
        value = hostile.like(value)
        is_damaged = hostile.draw.random() < 0.5
        (folder / f"{name}.json").write_bytes(dump(hostile.damaged(value) if is_damaged else value))
    (folder / "tuner.pkl").write_bytes(evil_pickle(hostile.traps))


def evil_pickle(traps: Traps) -> bytes:
    """Returns a pickle that makes the canary when it is loaded."""

    class Evil:
        def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
            return os.system, (f"touch {traps.canary}",)

    return pickle.dumps(Evil())


def evil_model(traps: Traps) -> bytes:
    """Returns a .keras file that calls os.system when tf_keras loads it, in its safe mode too."""
    function = {"class_name": "function", "config": "system", "module": "os", "registered_name": "function"}
    output = {"output_shape": None, "output_shape_type": "raw", "output_shape_module": None}
    config = {"name": "l", "trainable": True, "dtype": "float32", "arguments": {}, **output}
    config |= {"function": function, "function_type": "function", "module": "os"}
    layer = {"module": "tf_keras.layers", "class_name": "Lambda", "registered_name": None, "name": "l"}
    called = [[["_CONSTANT_VALUE", -1, f"touch {traps.canary}", {}]]]
    layers = [{**layer, "config": config, "inbound_nodes": called}]
    ends = {"input_layers": [["l", 0, 0]], "output_layers": [["l", 0, 0]]}
    model = {"module": "tf_keras.src.engine.functional", "class_name": "Functional"}
    inside = {"name": "m", "trainable": True, "layers": layers, **ends}
    return zip_of(
        {
            "metadata.json": json.dumps({"keras_version": "2.15.0"}).encode(),
            "config.json": json.dumps({**model, "registered_name": "Functional", "config": inside}).encode(),
            "model.weights.h5": b"",
        }
    )


def zip_of(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return content.getvalue()


def zip_bomb(name: str) -> bytes:
    """Returns a zip of 200 KB that unpacks to 200 MB."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive, archive.open(name, "w") as file:
        for _ in range(200):
            file.write(bytes(2**20))
    return content.getvalue()


def parquet_bomb() -> bytes:
    """Returns a file of metrics whose one row group says that it has 3 million rows of 1 KB."""
    target = io.BytesIO()
    row = {"run": "r", "attempt": 0, "task": "worker/0", "step": 1, "epoch": 1, "wall_time": 1.7e9}
    row |= {"scope": "global", "name": "n" * 1000, "value": 1.0}
    index = pa.array([0]).take(pa.array([0] * 3_000_000, pa.int32()))
    columns = [
        pa.DictionaryArray.from_arrays(index.cast(pa.int32()), pa.array([row[field.name]], field.type))
        if pa.types.is_string(field.type)
        else pa.array([row[field.name]], field.type).take(index)
        for field in SCHEMA
    ]
    table = pa.table(columns, names=SCHEMA.names)
    pq.write_table(table, target, compression="zstd", store_schema=False)
    return target.getvalue()


def write_run(storage: Path, run: str, hostile: Hostile, record: Any = None) -> None:
    """Writes every file that a run may have.

    Args:
      record: What run.json has; None for hostile values.
    """
    layout, traps, draw = RunLayout(run=run), hostile.traps, hostile.draw
    code = zip_of({"job.py": traps.program.encode(), "../../../canary": b"x"})
    if draw.random() < 0.5:
        code = zip_of({"job.py": traps.program.encode()})
    digest = hashlib.sha256(code).hexdigest()
    record = record or hostile.record()
    record["code"] = {**(record["code"] or {"num_bytes": 1}), "digest": digest, "file": f"code/{digest}.zip"}
    log = "\n".join(hostile.text() for _ in range(20)).encode() + b"\xff\xfe\x00 no line end"
    marks = {"marks": [[draw.choice(NUMBERS), draw.choice(INTEGERS)] for _ in range(5)]}
    claim = {"id": "x", "holder": hostile.process(), "at_s": time.time()}
    answer = {"error": hostile.text(), "profile": hostile.text(), "steps": 1}
    model = f"{layout.export}/saved_model"
    files: dict[str, bytes] = {
        layout.record: dump(record),
        layout.event_segment(0): b"\n".join(map(dump, hostile.events())),
        layout.log_segment(WORKER, attempt=0, seq=0): log,
        layout.log_times(WORKER, attempt=0, seq=0): dump(marks),
        layout.claim(0): dump(claim if draw.random() < 0.5 else hostile.damaged(claim)),
        layout.evaluations: dump(hostile.damaged({"step-1-a0": {"loss": 1.0}})),
        layout.mlflow: dump(
            {"uri": f"http://{traps.address}", "run_id": hostile.text(), "experiment_id": "1"}
        ),
        layout.kept_code(digest): code,
        layout.exported_model: evil_model(traps),
        f"{model}/saved_model.pb": draw.choice((b"\x08\x01\x12" + bytes(9), b"\xff" * 99, b"", log)),
        f"{model}/variables/variables.index": log,
        f"{layout.output}/result.txt": log,
        f"{layout.working_files}/state.pkl": evil_pickle(traps),
        f"{layout.task_profile_mail(WORKER)}/00000000000001-a.answer.json": dump(answer),
        f"{layout.tensorboard}/chief/train/events.out.tfevents.000000-000000.raydist": log,
        f"{layout.tensorboard}/chief/train/plugins/profile/x/h.xplane.pb": evil_pickle(traps),
        f"{layout.tensorboard}/chief/projector_config.pbtxt": f'tensor_path: "{traps.secret}"'.encode(),
        layout.token: log,
    }
    for step in (1, 2):
        files[layout.checkpoint_marker(step=step, attempt=0)] = hostile.marker(step=step, attempt=0)
        folder = layout.checkpoint(step=step, attempt=0)
        files |= {f"{folder}/state.json": b"{}", f"{folder}/variables.npz": evil_pickle(traps)}
    for key, content in files.items():
        (storage / key).parent.mkdir(parents=True, exist_ok=True)
        (storage / key).write_bytes(content)
    (storage / layout.metrics).mkdir()
    for attempt in (0, 1):
        write_metrics(storage / layout.metrics_segment(WORKER, attempt=attempt, seq=0), hostile)
    (storage / INDEX).mkdir(exist_ok=True)
    for name in (f"{draw.randint(0, 10**13):014d}-{run}", "00000000000001-..", "9" * 14 + "-../../victim"):
        if "/" not in name:
            (storage / INDEX / name).write_bytes(b"")


def live_record(hostile: Hostile) -> dict[str, Any]:
    """Returns the record of a live run whose driver and tasks are the process that is none of the run's."""
    task = {"state": "RUNNING", "steps": 20, "host": "127.0.0.1", "pid": hostile.traps.pid}
    tasks = [{**task, "task": name, "address": hostile.traps.address} for name in ("worker/0", "worker/1")]
    spec = {
        "entry_point": {"file": "j.py", "module": None, "function": "f"},
        "address": hostile.traps.address,
        "params": {},
        "study": "s",
    }
    facts = record_facts(state="RUNNING", tasks=tasks, driver=hostile.process(), spec=spec)
    return {**facts, "steps": 20, "created_at_s": 1.7e9, "updated_at_s": time.time() - 60}


def detached_record(hostile: Hostile) -> dict[str, Any]:
    """Returns the same of a run in a Ray whose address is that of the socket that listens."""
    record = live_record(hostile)
    tasks = [{**task, "host": "198.51.100.7"} for task in record["tasks"]]
    driver = {**hostile.process(), **hostile.in_ray(), "host": "elsewhere"}
    return {**record, "tasks": tasks, "driver": driver}


def files_of(run: Path) -> Iterator[Path]:
    for path in sorted(run.rglob("*")):
        if path.is_file():
            yield path


def sparse(path: Path) -> None:
    path.write_bytes(b"")
    os.truncate(path, 3 * 2**30)


def plant(run: Path, what: Callable[[Path], object], *, but: str = "") -> None:
    """Puts something else in the place of each file of a run but that name."""
    for path in files_of(run):
        if path.name != but:
            path.unlink()
            what(path)


def link_folders(run: Path, target: Path) -> None:
    """Puts links in the place of a run's folders."""
    for path in run.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
            path.symlink_to(target)
