"""Batch inference: actors predict the parts of an input, each of which becomes one file."""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from raydist.data.sources.files import first_line
from raydist.errors import ClusterError, DataError, MistakeError, RaydistError, StorageError, TrainingError
from raydist.inference.inputs import Batch, Input, check_output_names, open_input
from raydist.inference.parts import MANIFEST, Manifest, Part, cut, missing
from raydist.inference.served_model import ServedModel, as_column, identity, load_model, signature_of
from raydist.runtime.cluster.connection import EmbeddedSize, connect
from raydist.storage.failures import is_full_disk
from raydist.storage.filesystem import Storage
from raydist.storage.run_storage import RunStorage

# Of each actor's process, which a model may kill each time.
_MAX_RESTARTS = 3


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
        return told

    def _predicted(self, parts: Sequence[Part], data: Input, out: Storage) -> Iterator[int]:
        """Yields the rows of each part once it is written."""
        with connect(self.address, embedded=lambda: EmbeddedSize(num_cpus=self.workers + 1)):
            import ray

            resources = ray.cluster_resources()
            if resources.get("CPU", 0) < self.workers:
                raise ClusterError(
                    f"{self.workers} workers need {self.workers} CPUs, and Ray has "
                    f"{resources.get('CPU', 0):g}; give fewer --workers"
                )
            actor = ray.remote(
                num_cpus=1,
                num_gpus=gpu_share(resources.get("GPU", 0), workers=self.workers),
                max_restarts=_MAX_RESTARTS,
                max_task_retries=_MAX_RESTARTS,
            )(PredictWorker)
            batch_size = self.batch_size or data.batch_size
            predictor = PartPredictor(run=self.run, out=out, data=data, parts=parts, batch_size=batch_size)
            workers: list[Any] = [actor.remote() for _ in range(min(self.workers, len(parts)))]
            try:
                yield from _predicted_by(workers, predictor, len(parts))
            except ray.exceptions.RayError as error:
                reason = str(error).strip().partition("\n")[0].rstrip(".")
                raise ClusterError(
                    f"Ray cannot run the predictions: {reason}; if a worker's process dies each time, give "
                    "it smaller batches with --batch-size, or more memory; the same command continues"
                ) from error
            finally:
                for worker in workers:
                    ray.kill(worker)


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


def _predicted_by(workers: Sequence[Any], predictor: PartPredictor, num_parts: int) -> Iterator[int]:
    """Yields the rows of each part; raises the first part's error."""
    import ray

    shared, ahead, num_left = [ray.put(predictor)], iter(range(num_parts)), num_parts
    # An actor gets its first part once it is placed: a busy cluster may have no room for some of them.
    calls = {worker.ready.remote(): worker for worker in workers}
    while num_left:
        [ended], _ = ray.wait(list(calls))
        worker, told = calls.pop(ended), ray.get(ended)
        if isinstance(told, RaydistError):
            raise told
        if (number := next(ahead, None)) is not None:
            calls[worker.predict.remote(shared, number)] = worker
        if told is not None:
            num_left -= 1
            yield told


class PredictWorker:
    """An actor that predicts.

    Each call brings the predictor, and the constructor has no arguments: Ray prints an error if they are in
    its object store and the actor may be restarted (https://github.com/ray-project/ray/issues/53727).
    """

    def __init__(self) -> None:
        self._predictor: PartPredictor | None = None

    def ready(self) -> None:
        """Returns once the actor is placed."""

    def predict(self, shared: Sequence[Any], number: int) -> int | RaydistError:
        """Predicts a part by the predictor that the only reference of `shared` is to."""
        import ray

        if self._predictor is None:
            [predictor] = shared
            self._predictor = ray.get(predictor)
        return self._predictor(number)


class PartPredictor:
    """Predicts parts by their places in the list.

    It returns its errors: Ray would wrap one that is raised in a page of text.
    """

    def __init__(
        self, *, run: RunStorage, out: Storage, data: Input, parts: Sequence[Part], batch_size: int
    ) -> None:
        self._out, self._data, self._parts, self._batch_size = out, data, parts, batch_size
        self._model: ServedModel | None = None
        self._run = run

    def __call__(self, number: int) -> int | RaydistError:
        """Returns the number of the part's rows, or its error."""
        part = self._parts[number]
        try:
            if self._model is None:
                self._model = load_model(self._run)
            self._write(part, self._model)
        except RaydistError as error:
            return error
        except Exception as error:  # the model's layers may raise anything
            return _failure(error, part)
        return part.num_rows

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
