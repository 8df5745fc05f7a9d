"""Input: rows/s from Parquet files to shuffled, training-ready tensors, and what resuming costs.

    python -m tests.benchmarks.input [--rows 2000000] [--rounds 5] [--parts | --images 1000]

33 float columns in row groups of 16384 rows; batches of 1024 of `([1024, 32], [1024])`. In turn: a bare
pyarrow scan of all columns, raydist.data shuffled, in a loop in Python and in a graph, and Ray Data's
`iter_tf_batches`, shuffled in a buffer of ten batches, not shuffled, and shuffled in a buffer of as many rows
as raydist's windows mix. Prints the rates of each round and the ratios of the medians (targets: at least 0.8
of the scan, 12 times Ray Data with the buffer of ten batches), the peak memory of the process for these data
and for a twentieth of them, and the longest time to the first batch when resuming at steps all over a set of
10 million rows (target: 1 s). Before that, the first epoch of 400,000 rows in a process takes turns with the
first scan of them in another one.

With `--parts` it prints instead where the CPU time of a row goes: of each part the least of the rounds.
With `--images 1000` it is that of an image, a JPEG of 500 x 375 that becomes one of 224 x 224, without a
cache and in the epochs that fill and read `cached()`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq

from raydist import data
from raydist.data import pipeline
from raydist.data.order.permutation import permuted
from raydist.data.order.windows import Piece
from tests.benchmarks.figures.printing import figure

NUM_FEATURES, BATCH_SIZE, ROWS_PER_GROUP, ROWS_PER_FILE = 32, 1024, 16384, 250_000
SHORT_ROWS = 400_000
REST_S = 3.0  # Ray's workers continue for a moment after the data are read
FEATURES = [f"f{number}" for number in range(NUM_FEATURES)]


def write(folder: Path, num_rows: int, *, num_features: int = NUM_FEATURES) -> None:
    rng = np.random.default_rng(0)
    columns = {
        f"f{number}": rng.normal(size=ROWS_PER_FILE).astype("float32") for number in range(num_features)
    }
    for number, first in enumerate(range(0, num_rows, ROWS_PER_FILE)):
        size = min(ROWS_PER_FILE, num_rows - first)
        own = {name: values[:size] for name, values in columns.items()}
        own["label"] = np.arange(first, first + size).astype("float32")
        pq.write_table(pa.table(own), folder / f"{number:04}.parquet", row_group_size=ROWS_PER_GROUP)


def batches(folder: Path, *, num_features: int = NUM_FEATURES) -> data.Batches:
    source = data.from_parquet(str(folder), features=FEATURES[:num_features], label="label")
    return source.batches(global_batch_size=BATCH_SIZE, seed=1)


def rate(folder: Path, read: Callable[[], int]) -> float:
    began_at_s = time.perf_counter()
    return read() / (time.perf_counter() - began_at_s)


def scanned(folder: Path) -> int:
    return sum(batch.num_rows for batch in pyarrow.dataset.dataset(folder).to_batches())


def ours(folder: Path) -> int:
    return sum(int(y.shape[0]) for _, y in batches(folder).for_epochs(1))


def in_a_graph(folder: Path) -> int:
    import tensorflow as tf

    @tf.function
    def count(dataset: tf.data.Dataset) -> tf.Tensor:
        num_rows = tf.constant(0)
        for _, y in dataset:
            num_rows += tf.shape(y)[0]
        return num_rows

    return int(count(batches(folder).for_epochs(1).dataset()))


def decoded(folder: Path) -> int:
    num_rows = 0
    for path in sorted(folder.iterdir()):
        with pq.ParquetFile(path, pre_buffer=True) as file:
            for group in range(file.num_row_groups):
                num_rows += file.read_row_group(group, columns=[*FEATURES, "label"]).num_rows
    return num_rows


def laid_out(folder: Path) -> int:
    source = batches(folder).source
    assert source.group_sizes is not None
    pieces = [Piece(group, 0, int(size)) for group, size in enumerate(source.group_sizes)]
    return sum(len(source.read([piece])[0]) for piece in pieces)


def ordered(folder: Path) -> int:
    num_rows = len(batches(folder).source)
    window = min(num_rows, 32768)
    return sum(len(permuted(np.arange(window), window, number)) for number in range(num_rows // window))


def in_blocks(folder: Path) -> int:
    recipe, part = batches(folder).for_epochs(1), pipeline.Part()
    read, blocks = pipeline.BlockReader(recipe, part, pads=False), pipeline.Blocks.of(recipe, part)
    return sum(read(block)[1].size for block in range(blocks.per_epoch))


def print_parts(folder: Path, rounds: int) -> None:
    """Prints nanoseconds of CPU time for each row, of all threads of this process."""
    ways = {
        "decode": decoded,
        "columns": laid_out,
        "order": ordered,
        "blocks": in_blocks,
        "loop": ours,
        "graph": in_a_graph,
        "scan": scanned,
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, way in ways.items():
            began_at_s = time.process_time()
            num_rows = way(folder)
            found[name].append((time.process_time() - began_at_s) * 1e9 / num_rows)
    for name, values in found.items():  # the first one warms up
        figure(f"row_{name}", values[1:], "ns of CPU time a row")


def print_images(folder: Path, num_images: int) -> None:
    import tensorflow as tf

    os.environ["RAYDIST_CACHE"] = str(folder / "cache")
    rng = np.random.default_rng(0)
    (folder / "images" / "all").mkdir(parents=True)
    for number in range(num_images):
        pixels = tf.image.resize(rng.integers(0, 256, (48, 64, 3), np.uint8), (375, 500))
        jpeg = tf.io.encode_jpeg(tf.cast(pixels, tf.uint8)).numpy()
        (folder / "images" / "all" / f"{number}.jpg").write_bytes(jpeg)
    source = data.from_images(folder / "images", size=(224, 224))
    recipe = source.batches(global_batch_size=64, seed=1, drop_remainder=True)
    for name, one in (("no cache", recipe), ("cache", recipe.cached())):
        batches = iter(one.for_epochs(3).dataset())
        for epoch in range(1, 4):
            began_at_s, cpu_s = time.perf_counter(), time.process_time()
            count = sum(int(next(batches)[1].shape[0]) for _ in range(one.steps_per_epoch))
            rate, cpu_s = count / (time.perf_counter() - began_at_s), time.process_time() - cpu_s
            print(f"{name}, epoch {epoch}: {cpu_s / count * 1e3:.2f} ms of CPU time an image, {rate:.0f} /s")


def ray_data(folder: Path, **options: Any) -> int:
    import ray.data

    found = ray.data.read_parquet(str(folder)).iter_tf_batches(batch_size=BATCH_SIZE, **options)
    return sum(int(batch["label"].shape[0]) for batch in found)


def ray_data_shuffled(folder: Path) -> int:
    return ray_data(folder, local_shuffle_buffer_size=10 * BATCH_SIZE)


def ray_data_as_mixed(folder: Path) -> int:
    recipe = batches(folder)
    return ray_data(folder, local_shuffle_buffer_size=recipe.window_bytes // recipe.source.num_bytes)


def compare_short(folder: Path, rounds: int) -> None:
    """Prints the rate of the first epoch of a process, TensorFlow imported, and that of its first scan."""
    rates: dict[str, list[float]] = {"scan": [], "raydist": []}
    for _ in range(rounds):
        for name, call in (("scan", "print_scan"), ("raydist", "print_epoch")):
            rates[name].append(in_process(call, folder))
    figure("scan_400000", rates["raydist"], "rows/s", against=("bare pyarrow scan", rates["scan"]))


def print_scan(folder: str) -> None:
    print(rate(Path(folder), lambda: scanned(Path(folder))))


def print_epoch(folder: str) -> None:
    import tensorflow as tf

    next(iter(tf.data.Dataset.range(1)))
    print(rate(Path(folder), lambda: ours(Path(folder))))


def compare(folder: Path, rounds: int) -> None:
    import ray

    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    ray.data.DataContext.get_current().enable_progress_bars = False
    ways = {
        "scan": scanned,
        "raydist": ours,
        "in a graph": in_a_graph,
        "shuffled": ray_data_shuffled,
        "unshuffled": ray_data,
        "as mixed": ray_data_as_mixed,
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name, way in ways.items():
            time.sleep(REST_S)
            rates[name].append(rate(folder, lambda way=way: way(folder)))  # type: ignore[misc]
        print(
            f"round {number}: " + ", ".join(f"{name} {found[-1]:,.0f}" for name, found in rates.items()),
            flush=True,
        )
    medians = {name: statistics.median(found) for name, found in rates.items()}
    own = medians["raydist"]
    others = "shuffled", "unshuffled", "as mixed"
    print(
        f"rows/s: {medians['scan']:,.0f} scan, {own:,.0f} raydist, Ray Data "
        + ", ".join(f"{medians[name]:,.0f} {name}" for name in others)
        + f"; ratio to the scan {own / medians['scan']:.2f}, in a graph "
        + f"{medians['in a graph'] / medians['scan']:.2f}, to Ray Data "
        + ", ".join(f"{own / medians[name]:.1f} {name}" for name in others)
    )
    figure("scan", rates["raydist"], "rows/s", against=("bare pyarrow scan", rates["scan"]))
    figure("graph", rates["in a graph"], "rows/s in a graph", against=("bare pyarrow scan", rates["scan"]))
    for name in others:
        key = f"ray_data_{name.replace(' ', '_')}"
        figure(key, rates["raydist"], "rows/s", against=(f"Ray Data, {name}", rates[name]))
    ray.shutdown()


def in_process(call: str, folder: Path) -> float:
    """Returns the number that a function of this module prints in a process of its own."""
    code = f"import sys; sys.argv = ['']; from tests.benchmarks import input as i; i.{call}({str(folder)!r})"
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return float(json.loads(output.stdout.splitlines()[-1]))


def print_peak(folder: str) -> None:
    """Prints the peak memory in MB of a process that reads all of the data once."""
    ours(Path(folder))
    status = Path("/proc/self/status").read_text()  # ru_maxrss begins with that of the parent
    print(int(status.partition("VmHWM:")[2].split()[0]) / 1024)


def resume_s(folder: Path, steps: list[int], **options: Any) -> list[float]:
    """Returns the seconds from a recipe to its first batch, for each step."""
    recipe = batches(folder, **options)
    found = []
    for step in steps:
        began_at_s = time.perf_counter()
        next(iter(recipe.dataset(start_step=step)))
        found.append(time.perf_counter() - began_at_s)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--images", type=int)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="raydist-input-"))
    try:
        if options.images:
            return print_images(folder, options.images)
        (folder / "all").mkdir()
        (folder / "few").mkdir()
        (folder / "short").mkdir()
        (folder / "long").mkdir()
        write(folder / "all", options.rows)
        if options.parts:
            print_parts(folder / "all", options.rounds)
            return
        import tensorflow as tf

        write(folder / "few", options.rows // 20)
        write(folder / "short", SHORT_ROWS)
        os.sync()  # else the kernel writes it while the first ways read
        next(iter(tf.data.Dataset.range(1)))  # its start belongs to none of the ways
        compare_short(folder / "short", options.rounds + 1)
        compare(folder / "all", options.rounds)
        few, whole = (in_process("print_peak", folder / name) for name in ("few", "all"))
        print(
            f"peak memory: {few:.0f} MB for {options.rows // 20:,} rows, {whole:.0f} MB for {options.rows:,}"
        )
        write(folder / "long", 10_000_000, num_features=8)
        steps = [random.Random(0).randrange(10_000_000 // BATCH_SIZE) for _ in range(20)]
        first, *others = resume_s(folder / "long", [0, *steps], num_features=8)
        print(
            f"resuming in 10,000,000 rows: {first:.2f} s at step 0, at 20 others "
            f"{statistics.median(others):.2f} s, at most {max(others):.2f} s"
        )
        figure("peak_memory", whole, "MB", against=("a twentieth of the rows", few))
        figure("resume", others, "s")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
