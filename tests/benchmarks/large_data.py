"""What raydist.data holds and asks for where the data are large: 1 TB of rows, a folder of 100,000 files.

    python -m tests.benchmarks.large_data [--files 8000] [--listed 100000] [--latency-ms 50] [--moto 0]

1 TB of Parquet: 8,000 files, each the same one by a hard link, of 60 row groups of 16384 rows in 33 float
columns of one value each, which take no place on the disk, but 132 bytes a row as tensors. Prints the seconds
to the source, the memory that it and the order of an epoch take, the seconds to the first batch of the run,
and to those of 5 steps all over an epoch, as of runs that resume there. Then the same of a part of a TB of
TFRecord, of records of 100 kB and of 1 kB, in sparse files.

Then a folder of 100,000 files in a store that answers that much later: requests and seconds for the list, its
memory, and, for 2,000 files, requests and seconds for the footers. With --moto N also the requests for the
list of N files by moto's S3.
"""

from __future__ import annotations

import argparse
import gc
import os
import pickle
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raydist import data
from raydist.data.sources.files import DataFiles
from tests.benchmarks.figures.printing import figure
from tests.benchmarks.input import FEATURES, NUM_FEATURES, ROWS_PER_GROUP
from tests.support.faulty_http import Fault, HttpRequest, faulty_proxy
from tests.support.object_store import new_bucket, s3_environ, s3_server
from tests.support.static_store import static_store

BATCH_SIZE, GROUPS_PER_FILE, STEPS = 4096, 60, 5
_MAX_LINKS = 60_000  # of ext4, nearly
RECORD_FILE_BYTES, RECORD_FILES = 128 << 20, 80
FOOTERS = 2000


def memory_mb() -> float:
    gc.collect()
    pa.default_memory_pool().release_unused()
    return int(Path("/proc/self/status").read_text().partition("VmRSS:")[2].split()[0]) / 1000


def link(first: Path, count: int) -> None:
    for number in range(1, count):
        other = first.with_name(f"{number:06}{first.suffix}")
        if number % _MAX_LINKS:
            os.link(first, other)
        else:
            first = Path(shutil.copy(first, other))


def write_parquet(path: Path, num_groups: int) -> None:
    table = pa.table(
        {name: np.zeros(ROWS_PER_GROUP, "float32") for name in [*FEATURES[:NUM_FEATURES], "label"]}
    )
    with pq.ParquetWriter(path, table.schema) as writer:
        for _ in range(num_groups):
            writer.write_table(table)


def write_records(path: Path, record_bytes: int) -> None:
    """Writes the headers alone: in between the file has holes."""
    with path.open("wb") as file:
        for first in range(0, RECORD_FILE_BYTES - record_bytes - 16, record_bytes + 16):
            file.seek(first)
            file.write(struct.pack("<QI", record_bytes, 0))
        file.truncate(first + record_bytes + 16)


def measure(name: str, make: Any) -> None:
    before_mb, began_at_s = memory_mb(), time.perf_counter()
    source = make()
    source_s, source_mb = time.perf_counter() - began_at_s, memory_mb() - before_mb
    recipe = source.batches(global_batch_size=BATCH_SIZE, seed=1)
    num_bytes = len(source) * source.num_bytes
    print(
        f"{name}: {num_bytes / 1e12:.3f} TB as tensors, {len(source):,} examples, "
        f"{len(source.group_sizes):,} groups, {len(source.files):,} files",
        flush=True,
    )
    figure(f"{name}_source", source_s, "s to the source")
    figure(f"{name}_source_memory", source_mb, "MB for the source")
    order = recipe.reader()._windows._order  # type: ignore[union-attr]
    before_mb, began_at_s = memory_mb(), time.perf_counter()
    for lane in range(order.num_lanes):
        order.stretches(lane, recipe.steps_per_epoch // 2, 1)
    figure(f"{name}_order", time.perf_counter() - began_at_s, f"s for the order of {order.num_lanes} lanes")
    figure(f"{name}_order_memory", memory_mb() - before_mb, "MB for the order of an epoch")
    began_at_s = time.perf_counter()
    recipe.reader().block(0, 1, 0, BATCH_SIZE)
    figure(f"{name}_first", time.perf_counter() - began_at_s, "s from the source to the first batch")
    steps = [random.Random(0).randrange(recipe.steps_per_epoch) for _ in range(STEPS)]
    resumed = []
    for step in steps:
        began_at_s = time.perf_counter()
        recipe.reader().block(step, 1, 0, BATCH_SIZE)
        resumed.append(time.perf_counter() - began_at_s)
    figure(f"{name}_resumed", resumed, "s from the source to the first batch of a resumed run")


def measure_list(folder: Path, num_files: int, *, latency_s: float) -> None:
    (folder / "bucket/listed").mkdir(parents=True)
    (folder / "bucket/footers").mkdir()
    write_parquet(folder / "bucket/listed/000000.parquet", GROUPS_PER_FILE)
    write_parquet(folder / "bucket/footers/000000.parquet", GROUPS_PER_FILE)
    link(folder / "bucket/listed/000000.parquet", num_files)
    link(folder / "bucket/footers/000000.parquet", FOOTERS)
    with static_store(folder, delay_s=latency_s) as store:
        os.environ.update(s3_environ(store.endpoint))
        before_mb, began_at_s = memory_mb(), time.perf_counter()
        files = DataFiles("s3://bucket/listed", what="benchmark")
        took_s = time.perf_counter() - began_at_s
        list_mb = memory_mb() - before_mb
        sent_mb = len(pickle.dumps(files, protocol=5)) / 1e6
        figure("list_requests", sum(store.take_counts().values()), f"requests to list {len(files):,} files")
        figure("list", took_s, "s for that")
        figure("list_memory", list_mb, "MB in memory")
        figure("list_sent", sent_mb, "MB to send to another process")
        began_at_s = time.perf_counter()
        source = data.from_parquet("s3://bucket/footers", features=FEATURES, label="label")
        took_s = time.perf_counter() - began_at_s
        num_requests = sum(store.take_counts().values())
        figure(
            "footers_requests",
            num_requests,
            f"requests for the list and footers of {len(source.files):,} files",
        )
        figure("footers", took_s, "s for that")


def measure_moto(num_files: int) -> None:
    with s3_server() as endpoint, faulty_proxy(endpoint) as proxy:
        bucket = new_bucket(endpoint)

        def put(number: int) -> None:
            url = f"{endpoint}/{bucket}/listed/{number:06}"
            urllib.request.urlopen(urllib.request.Request(url, data=b"x", method="PUT")).close()

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(put, range(num_files)))
        os.environ.update(s3_environ(proxy.endpoint))
        asked: list[str] = []

        def note(request: HttpRequest) -> Fault | None:
            asked.append(request.method)
            return None

        proxy.choose = note
        files = DataFiles(f"s3://{bucket}/listed", what="benchmark")
        told = {method: asked.count(method) for method in sorted(set(asked))}
        print(f"moto: list of {len(files):,} files: {told}", flush=True)


def in_process(*arguments: str) -> None:
    """Runs a part of this alone: memory that another one has freed would be taken again."""
    subprocess.run([sys.executable, "-m", "tests.benchmarks.large_data", *arguments], check=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=8000)
    parser.add_argument("--listed", type=int, default=100_000)
    parser.add_argument("--latency-ms", type=float, default=50.0)
    parser.add_argument("--moto", type=int, default=0)
    parser.add_argument("--only", choices=["parquet", "tfrecord", "list", "moto"])
    given = parser.parse_args()
    if given.only is None:
        for part in ("parquet", "tfrecord", "list", *(["moto"] if given.moto else [])):
            in_process(*sys.argv[1:], "--only", part)
        return
    with tempfile.TemporaryDirectory(prefix="raydist-large-") as name:
        folder = Path(name)
        os.environ["RAYDIST_CACHE"] = str(folder / "cache")
        if given.only == "parquet":
            (folder / "data").mkdir()
            write_parquet(folder / "data/000000.parquet", GROUPS_PER_FILE)
            link(folder / "data/000000.parquet", given.files)
            measure("parquet", lambda: data.from_parquet(folder / "data", features=FEATURES, label="label"))
        elif given.only == "tfrecord":
            for record_bytes in (100_000, 1000):
                (folder / f"{record_bytes}").mkdir()
                write_records(folder / f"{record_bytes}/000000.tfrecord", record_bytes)
                link(folder / f"{record_bytes}/000000.tfrecord", RECORD_FILES)
                measure(
                    f"tfrecord_{record_bytes}",
                    lambda size=record_bytes: data.from_tfrecord(folder / f"{size}"),  # type: ignore[misc]
                )
        elif given.only == "list":
            measure_list(folder, given.listed, latency_s=given.latency_ms / 1e3)
        else:
            measure_moto(given.moto)


if __name__ == "__main__":
    main()
