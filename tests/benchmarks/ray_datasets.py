"""Ray Data in a job: rows/s that two workers get of a `ray.data.Dataset` through `ctx.dataset`.

    python -m tests.benchmarks.ray_datasets [--rows 400000] [--rounds 5]

33 float columns in Parquet files, read by Ray Data, split between the workers. Prints the rate of the workers
together in each round and the median. To compare two versions of raydist, run it in turn in a checkout of
each.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

NUM_WORKERS, BATCH_SIZE, NUM_COLUMNS, ROWS_PER_FILE = 2, 1024, 33, 50_000


def read(ctx) -> None:
    """Counts the rows of this worker's share, and reports the rate."""
    import tensorflow as tf

    next(iter(tf.data.Dataset.range(1)))  # its start belongs to none of the versions
    began_at_s, num_rows = time.perf_counter(), 0
    for batch in ctx.dataset("train").iter_batches(batch_size=BATCH_SIZE):
        num_rows += len(batch["f0"])
    ctx.report({"rows_per_s": num_rows / (time.perf_counter() - began_at_s), "rows": num_rows}, step=1)


def write(folder: Path, num_rows: int) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    columns = {
        f"f{number}": rng.normal(size=ROWS_PER_FILE).astype("float32") for number in range(NUM_COLUMNS)
    }
    for number in range(num_rows // ROWS_PER_FILE):
        pq.write_table(pa.table(columns), folder / f"{number:04}.parquet")


def main() -> None:
    import ray

    import raydist
    from tests.benchmarks.figures.printing import figure

    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rd-", dir="/tmp") as name:
        folder = Path(name) / "data"
        folder.mkdir()
        write(folder, arguments.rows)
        ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="error")
        ray.data.DataContext.get_current().enable_progress_bars = False
        rates = []
        for number in range(arguments.rounds):
            result = raydist.run(
                read,
                workers=NUM_WORKERS,
                datasets={"train": ray.data.read_parquet(str(folder))},
                storage=f"{name}/runs",
            )
            # The chief's rate; both read until the end of the same data.
            rates.append(NUM_WORKERS * result.metrics["rows_per_s"])
            print(f"round {number}: {rates[-1]:,.0f} rows/s, {result.metrics['rows']:,.0f} rows", flush=True)
        ray.shutdown()
    figure("two_workers", rates, "rows/s")


if __name__ == "__main__":
    main()
