"""Batch inference: Ray Data's actors predict the parts of an input, each of which becomes one file."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

import raydist.errors
from raydist.data.sources.files import first_line
from raydist.errors import ClusterError, DataError, MistakeError, RaydistError, StorageError, TrainingError
from raydist.inference.inputs import Batch, Input, check_output_names, open_input
from raydist.inference.parts import MANIFEST, Manifest, Part, cut, missing
from raydist.inference.served_model import ServedModel, as_column, identity, load_model, signature_of
from raydist.runtime.cluster.connection import EmbeddedSize, connect
from raydist.storage.failures import is_full_disk
from raydist.storage.filesystem import Storage
from raydist.storage.run_storage import RunStorage

# Ray Data would start the process of a model that kills it again for ever.
_MAX_RESTARTS = 3
# Of Ray Data's blocks there are no more than these for each worker; each has some of the parts.
_BLOCKS_PER_WORKER = 64


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What is asked for.

    Attributes:
      data: A file or a folder, as a path or URI.
      format: Of the data; None finds it out by the names of the files.
      features: The columns that are stacked to the model's only input; None where its inputs are columns.
      copy: The columns that are copied; None for all that are not features.
      to: The format of the predictions; None for that of the data if that is CSV, and else Parquet.
      delimiter: Between the columns of CSV that is predicted for; None for a comma.
      workers: How many actors hold the model.
      batch_size: How many rows the model gets at once; None for the format's own number.
      address: Of Ray; None as for a run.
    """

    run: RunStorage
    data: str
    out: str
    format: str | None = None
    features: tuple[str, ...] | None = None
    copy: tuple[str, ...] | None = None
    to: str | None = None
    delimiter: str | None = None
    workers: int = 1
    batch_size: int | None = None
    address: str | None = None

    def execute(self, tell: Callable[[int, int], None] = lambda done, rows: None) -> dict[str, int]:
        """Predicts what is not in the folder yet; returns numbers of parts and rows, and those done before.

        Args:
          tell: Called with the number of files that are there, and their rows, after each new one.

        Raises:
          MistakeError: The run has no exported model, the data do not fit it, or the folder has something
            else in it.
          ClusterError: Ray cannot be reached, or is too small.
        """
        model = identity(self.run)
        # The actors have another current folder.
        place = self.data if "://" in self.data else os.path.abspath(os.path.expanduser(self.data))
        out = Storage.open(self.out)
        if f"{out.uri()}/".startswith(f"{place.rstrip('/')}/"):
            raise MistakeError(f"{out.uri()} is in {place}, whose files are predicted for; give another -o")
        data = open_input(
            place,
            format=self.format,
            features=self.features,
            copy=self.copy,
            to=self.to,
            delimiter=self.delimiter,
        )
        if (signature := signature_of(self.run)) is not None:
            data.check(signature)
        parts = cut(data.unit_rows, data.unit_files, most_rows=data.part_rows, to=data.to)
        manifest = Manifest(
            run=self.run.run,
            model=model,
            data=data.files.fingerprint(has_times=True),
            format=data.format,
            to=data.to,
            features=self.features,
            copy=self.copy,
            num_parts=len(parts),
            num_rows=sum(data.unit_rows),
            delimiter=self.delimiter,
        )
        ahead = missing(parts, _claim(out, manifest))
        done, rows = len(parts) - len(ahead), manifest.num_rows - sum(part.num_rows for part in ahead)
        told = {"parts": len(parts), "rows": manifest.num_rows, "parts_before": done, "rows_before": rows}
        if ahead:
            for part_rows in self._predicted(ahead, data, out):
                done, rows = done + 1, rows + part_rows
                tell(done, rows)
        if missing(parts, out.list_names("")):
            raise ClusterError(
                f"Ray ended before all predictions were in {out.uri()}; give the same command again"
            )
        return told

    def _predicted(self, parts: Sequence[Part], data: Input, out: Storage) -> Iterator[int]:
        """Yields the rows of each part once it is written."""
        with connect(self.address, embedded=lambda: EmbeddedSize(num_cpus=self.workers + 1)):
            import ray
            import ray.data

            resources = ray.cluster_resources()
            if resources.get("CPU", 0) < self.workers:
                raise ClusterError(
                    f"{self.workers} workers need {self.workers} CPUs, and Ray has "
                    f"{resources.get('CPU', 0):g}; give fewer --workers"
                )
            context = ray.data.DataContext.get_current()
            context.enable_progress_bars = False
            logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # its tracebacks
            blocks = min(len(parts), _BLOCKS_PER_WORKER * self.workers)
            numbers = [{"part": number} for number in range(len(parts))]
            with warnings.catch_warnings():
                # Ray 2.60 says that actors will take no other options from 2.64 on, and has no other way yet.
                warnings.simplefilter("ignore", DeprecationWarning)
                dataset = ray.data.from_items(numbers, override_num_blocks=blocks).map_batches(
                    PartPredictor,
                    fn_constructor_kwargs={
                        "run": self.run,
                        "out": out,
                        "data": data,
                        "parts": parts,
                        "batch_size": self.batch_size or data.batch_size,
                    },
                    batch_size=1,
                    # Of more actors than parts Ray Data warns.
                    compute=ray.data.ActorPoolStrategy(size=min(self.workers, len(parts))),
                    num_cpus=1,
                    num_gpus=gpu_share(resources.get("GPU", 0), workers=self.workers),
                    max_restarts=_MAX_RESTARTS,
                    max_task_retries=_MAX_RESTARTS,
                )
            try:
                for row in dataset.iter_rows():
                    if row["error"]:
                        raise getattr(raydist.errors, row["kind"])(row["error"])
                    yield int(row["rows"])
            except ray.exceptions.RayError as error:
                reason = str(error).strip().partition("\n")[0].rstrip(".")
                raise ClusterError(
                    f"Ray cannot run the predictions: {reason}; if a worker's process dies each time, give "
                    "it smaller batches with --batch-size, or more memory; the same command continues"
                ) from error


def gpu_share(num_gpus: float, *, workers: int) -> float:
    """Returns the GPUs of each worker: one, or the part of one that is left if several have to share it.

    The part is of one GPU: with two GPUs, three workers that ask for two thirds each do not fit.
    """
    whole = int(num_gpus)
    return 1 / -(-workers // whole) if whole else 0.0


def _claim(out: Storage, manifest: Manifest) -> list[str]:
    """Returns the names of the files in the folder, which from now on is this prediction's.

    Raises MistakeError where it has those of something else.
    """
    names = out.list_names("")
    if any(name != MANIFEST for name in names):
        if MANIFEST not in names:
            raise MistakeError(f"{out.uri()} has files that are not predictions; give a folder that is empty")
        manifest.check_same(out.read_text(MANIFEST), uri=out.uri(MANIFEST))
    else:
        out.write_text(MANIFEST, manifest.as_json(), is_durable=True)
    return names


class PartPredictor:
    """Ray Data's actor: predicts parts by their places in the list.

    An error is a row of its result, because Ray would wrap it in a page of text.
    """

    def __init__(
        self, *, run: RunStorage, out: Storage, data: Input, parts: Sequence[Part], batch_size: int
    ) -> None:
        self._out, self._data, self._parts, self._batch_size = out, data, parts, batch_size
        self._model: ServedModel | None = None
        self._run = run

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, list[Any]]:
        [number] = batch["part"].tolist()
        part = self._parts[number]
        error: RaydistError | None = None
        try:
            if self._model is None:
                self._model = load_model(self._run)
            self._write(part, self._model)
        except RaydistError as caught:
            error = caught
        except Exception as caught:  # the model's layers may raise anything
            error = _failure(caught, part)
        told, kind = ("", "") if error is None else (str(error), type(error).__name__)
        return {"part": [number], "rows": [part.num_rows], "error": [told], "kind": [kind]}

    def _write(self, part: Part, model: ServedModel) -> None:
        """Stores a part's predictions: whole, or not at all."""
        with tempfile.TemporaryDirectory(prefix="raydist-predict-") as folder:
            path = Path(folder) / part.name
            batches = self._data.batches(part, model.inputs, size=self._batch_size)
            num_rows = _written(path, (_joined(batch, model) for batch in batches))
            if num_rows != part.num_rows:
                raise DataError(f"{part.name} has {num_rows} rows, not {part.num_rows} as its input said")
            self._out.upload(path, part.name, is_durable=True)


def _failure(error: Exception, part: Part) -> RaydistError:
    if is_full_disk(error):
        return StorageError(
            f"{tempfile.gettempdir()} is full, where {part.name} was being written; make room there, or set "
            "TMPDIR to another folder"
        )
    lines = str(error).strip().splitlines() or [""]
    return TrainingError(f"the model fails in {part.name}: {type(error).__name__}: {lines[0]}")


def _joined(batch: Batch, model: ServedModel) -> pa.Table:
    table = batch.kept
    for name, values in model.predict(batch.values).items():
        if values.ndim == 0 or len(values) != len(table):
            raise DataError(
                f"output {name} of the model has no row for each example; its shape is {values.shape}"
            )
        check_output_names([name], table.column_names)
        table = table.append_column(name, as_column(values))
    return table


def _written(path: Path, tables: Iterable[pa.Table]) -> int:
    """Writes Parquet or CSV, as the name says; returns the number of rows."""
    is_csv = path.suffix == ".csv"
    num_rows = 0
    with contextlib.ExitStack() as stack:
        writer: Any = None
        for table in tables:
            if is_csv:
                table = _flat(table)
            if writer is None:
                kind = pyarrow.csv.CSVWriter if is_csv else pq.ParquetWriter
                writer = stack.enter_context(kind(path, table.schema))
            try:
                writer.write_table(table)
            except pa.ArrowException as error:  # such as bytes that are not text
                told = f"cannot write {path.name}: {first_line(error)}; write Parquet with --to parquet"
                raise DataError(told) from error
            num_rows += len(table)
    return num_rows


def _flat(table: pa.Table) -> pa.Table:
    """Returns a table with a column for each number of lists of a fixed length, as CSV has no lists."""
    columns: dict[str, Any] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        sizes, values = [], column.combine_chunks()
        while pa.types.is_fixed_size_list(values.type) and not values.null_count:
            sizes.append(values.type.list_size)
            values = values.flatten()
        if pa.types.is_nested(values.type):
            raise DataError(
                f"column {name} is {column.type}, which CSV cannot hold; leave it out with --copy, or write "
                "Parquet with --to parquet"
            )
        for place, index in enumerate(np.ndindex(*sizes)):
            each = "_".join(map(str, [name, *index]))
            if each in columns:
                raise DataError(f"two columns are named {each}; leave one out with --copy, or rename it")
            columns[each] = values.take(np.arange(place, len(values), math.prod(sizes)))
    return pa.table(columns)
