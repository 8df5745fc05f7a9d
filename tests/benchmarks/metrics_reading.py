"""`raydist metrics` of a run with a million rows: seconds and memory of each way to print it.

    python -m tests.benchmarks.metrics_reading [--rows 1000000] [--repeats 3] [--against CHECKOUT]

Three runs of 4 tasks and 2 attempts, whose second attempt repeats a quarter of the first one's steps:
`written`, with the files that MetricsWriter leaves, which ticks every 5 s and meets 60 rows each time;
`small`, the same with each small file left as it is; and `large`, with files of 40,000
rows. Each command runs as a process of its own, start and imports included; its stdout is read and thrown
away. Prints the best and the median of the repeats: wall time, CPU time and the highest resident memory.
With `--against`, another checkout's command runs in turn with this one's. `| head` is timed by reading the
first ten lines and closing the pipe.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from raydist.metrics import parquet
from raydist.metrics.parquet import MetricsWriter
from raydist.outcome.status import MetricRow, Scope
from raydist.spec.tasks import TaskId
from raydist.storage.run_record import RunRecordStore
from raydist.storage.run_storage import RunStorage, open_run
from tests.benchmarks.figures.printing import figure
from tests.support.records import make_record

CHECKOUT = Path(__file__).parents[2]
NAMES = ("loss", "accuracy", "examples_per_s", "input_wait")
NUM_TASKS, NUM_ATTEMPTS = 4, 2
# Rows that come in 5 s, and the size to which a file grows.
KINDS = {"written": (60, parquet.GROWS_TO_BYTES), "small": (60, 0), "large": (40_000, 0)}
WAYS = (["--format", "csv"], ["--format", "json"], [], ["--plot"])
HEAD_LINES = 10


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What one process took."""

    wall_s: float
    cpu_s: float
    memory_mb: float


def make_run(storage: RunStorage, *, num_rows: int, file_rows: int, grows_to_bytes: int) -> None:
    """Writes a run's metrics with its own writer, whose clock advances by 5 s with each file."""
    RunRecordStore(storage).replace(make_record(storage, state="SUCCEEDED", attempts=NUM_ATTEMPTS))
    num_steps = num_rows // (NUM_TASKS * NUM_ATTEMPTS * len(NAMES))
    parquet.GROWS_TO_BYTES = grows_to_bytes
    for attempt in range(NUM_ATTEMPTS):
        first = attempt * num_steps * 3 // 4
        for index in range(NUM_TASKS):
            task = TaskId.parse(f"worker/{index}")
            _write(storage, task, attempt, range(first + 1, first + num_steps + 1), file_rows)


def _write(storage: RunStorage, task: TaskId, attempt: int, steps: range, file_rows: int) -> None:
    now_s = [0.0]
    writer = MetricsWriter.open(storage, task=task, attempt=attempt, clock=lambda: now_s[0])
    file_steps = file_rows // len(NAMES)
    for start in range(0, len(steps), file_steps):
        for step in steps[start : start + file_steps]:
            writer.append(_row(storage.run, attempt, task, step, name) for name in NAMES)
        now_s[0] += 5.0
        writer.tick()
    writer.flush()


def _row(run: str, attempt: int, task: TaskId, step: int, name: str) -> MetricRow:
    return MetricRow(
        run=run,
        attempt=attempt,
        task=task,
        step=step,
        epoch=step // 1000,
        wall_time=1.7e9 + attempt * 1e6 + step * 0.1,
        scope=Scope.GLOBAL,
        name=name,
        value=hash((step, name, task.index, attempt)) % 1_000_003 / 1_000_003,
    )


def measure(checkout: Path, arguments: list[str], *, is_head: bool) -> Figures:
    """Runs `raydist` of a checkout, and reads what it prints to its end or ten lines of it."""
    started_s = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "raydist.cli.main", *arguments],
        stdout=subprocess.PIPE,
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
    )
    assert process.stdout is not None
    if is_head:
        for _ in range(HEAD_LINES):
            process.stdout.readline()
        process.stdout.close()
    else:
        while process.stdout.read(1 << 20):
            pass
    _, _, usage = os.wait4(process.pid, 0)
    return Figures(
        wall_s=time.perf_counter() - started_s,
        cpu_s=usage.ru_utime + usage.ru_stime,
        memory_mb=usage.ru_maxrss / 1024,
    )


def report(label: str, figures: list[Figures]) -> None:
    walls, cpus = [each.wall_s for each in figures], [each.cpu_s for each in figures]
    print(
        f"{label:44s} wall {min(walls):6.2f} s (median {statistics.median(walls):6.2f})   "
        f"CPU {min(cpus):6.2f} s   {max(each.memory_mb for each in figures):5.0f} MB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--against", type=Path, help="another checkout, such as one of the commit before")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    asked = parser.parse_args()
    checkouts = {"this": CHECKOUT, **({"other": asked.against.resolve()} if asked.against else {})}
    with tempfile.TemporaryDirectory() as folder:
        for kind in asked.kinds:
            storage = open_run(folder, run=kind)
            file_rows, grows_to_bytes = KINDS[kind]
            make_run(storage, num_rows=asked.rows, file_rows=file_rows, grows_to_bytes=grows_to_bytes)
            print(f"{kind}: {len(storage.list_names(storage.metrics))} files")
            whole: list[list[Figures]] = []
            for way, is_head in [*((way, False) for way in WAYS), ([], True)]:
                arguments = ["metrics", kind, "--storage", folder, *way]
                found: dict[str, list[Figures]] = {name: [] for name in checkouts}
                for _ in range(asked.repeats):
                    for name, checkout in checkouts.items():
                        found[name].append(measure(checkout, arguments, is_head=is_head))
                for name, figures in found.items():
                    shown = " ".join(way) or "table"
                    report(f"  {name}: {shown}{' | head' if is_head else ''}", figures)
                if not is_head:
                    whole.append(found["this"])
            cpus_s = [statistics.median(one.cpu_s for one in figures) for figures in whole]
            figure(f"{kind}_cpu", cpus_s, "s of CPU time, of each way to print them")
            figure(f"{kind}_memory", max(one.memory_mb for figures in whole for one in figures), "MB")


if __name__ == "__main__":
    main()
