"""Memory does not grow with the data, measured in a process of its own without TensorFlow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.slow

ROWS_PER_GROUP = 2000
# 32 features: 256 kB a row group as float32.
NUM_FEATURES = 32

# Prints by how much two epochs raised the process's peak, in MB; the first block has pyarrow import pandas.
READ = """
import sys
from pathlib import Path
from raydist import data

def peak_mb():
    # Not getrusage's, which begins with that of the process that started this one.
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) / 1000

source = data.from_parquet(sys.argv[1], features=[f"f{n}" for n in range(32)])
batches = source.batches(global_batch_size=500, seed=1, window_mb=4)
reader = batches.reader()
reader.block(0, 1, 0, 500)
before = peak_mb()
for step in range(2 * batches.steps_per_epoch):
    [x] = reader.block(step, 1, 0, 500)
    assert x.shape == (1, 500, 32)
print(peak_mb() - before)
"""


@pytest.fixture(scope="module")
def table() -> pa.Table:
    rng = np.random.default_rng(0)
    return pa.table({f"f{n}": rng.normal(size=ROWS_PER_GROUP).astype("float32") for n in range(NUM_FEATURES)})


def growth_mb(folder: Path, table: pa.Table, num_groups: int) -> float:
    path = folder / f"{num_groups}.parquet"
    with pq.ParquetWriter(path, table.schema, compression="none") as writer:
        for _ in range(num_groups):
            writer.write_table(table)
    process = subprocess.run(
        [sys.executable, "-c", READ, str(path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert process.returncode == 0, process.stderr
    return float(process.stdout)


def test_twenty_times_the_data_take_no_more_memory(tmp_path: Path, table: pa.Table) -> None:
    """10 MB and 205 MB, through windows of 4 MB; measured: 2 and 4 MB more than after the first block."""
    few, many = growth_mb(tmp_path, table, 40), growth_mb(tmp_path, table, 800)
    assert many < few + 10, (few, many)
    assert many < 20


EXIT = """
import sys
from raydist import data
batches = data.from_parquet(sys.argv[1]).batches(global_batch_size=100, seed=1, window_mb=1)
batches.reader().block(0, 1, 0, 100)  # and windows are being read ahead
"""


def test_process_ends_at_once_while_windows_are_read_ahead(tmp_path: Path, table: pa.Table) -> None:
    path = tmp_path / "data.parquet"
    with pq.ParquetWriter(path, table.schema) as writer:
        for _ in range(100):
            writer.write_table(table)
    for _ in range(3):
        process = subprocess.run(
            [sys.executable, "-c", EXIT, str(path)], capture_output=True, text=True, timeout=60, check=False
        )
        assert (process.returncode, process.stderr) == (0, "")
