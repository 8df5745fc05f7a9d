"""`raydist list` and names of runs on a storage with many runs: a local folder, and moto's S3 server.

    python -m tests.benchmarks.run_list [--runs 2000] [--no-s3]

Writes records of 8 kB as a run of two workers has them, through raydist's own writer, and prints the seconds
that each command takes, the start of Python included: the median of three on the folder, one try on S3. The
S3 server is one process of Python, which answers about 200 requests a second on 2 cores.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from raydist.outcome.codec import as_plain
from raydist.planning.describe import describe_job, describe_plan
from raydist.runtime.host.software import package_versions
from raydist.storage.filesystem import Storage
from raydist.storage.layout import INDEX
from raydist.storage.run_record import RunRecordStore
from raydist.storage.run_storage import RunStorage
from tests.benchmarks.figures.printing import figure
from tests.support.fakes import make_plan
from tests.support.object_store import new_bucket, s3_environ, s3_server
from tests.support.records import make_record

COMMANDS = {
    "list": ["list"],
    "list --limit 0": ["list", "--limit", "0"],
    "list --state FAILED --limit 20 (every 10th)": ["list", "--state", "FAILED", "--limit", "20"],
    "list --state RUNNING (none)": ["list", "--state", "RUNNING"],
    "status @latest": ["status", "@latest"],
    "status PREFIX": ["status", "run-0077"],
    "status NEAR (exit code 2)": ["status", "rum-0077"],
}


def fill(storage: Storage, num_runs: int) -> None:
    plan = make_plan()
    facts = {
        "spec": json.loads(json.dumps(as_plain(describe_job(plan.job)))),
        "plan": describe_plan(plan),
        "tasks": [
            {"task": f"worker/{index}", "state": "FINISHED", "steps": 450, "host": "10.0.0.1", "pid": 9}
            for index in range(2)
        ],
        "notes": ["x" * 100] * 20,
        "timings": {"total": 63.0},
        "versions": package_versions(),
        "code": {"digest": "5e" * 32, "num_bytes": 2048, "commit": "c0" * 20, "branch": "main"},
        "metrics": {"loss": 0.25, "accuracy": 0.875},
    }

    def write(number: int) -> None:
        folder = RunStorage(storage, run=f"run-{number:04d}0")
        state = "FAILED" if number % 10 == 0 else "SUCCEEDED"
        record = make_record(folder, state=state, **facts)
        RunRecordStore(folder, clock=lambda: 1e9 + number).replace(record)

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(write, range(num_runs)))


def seconds(arguments: list[str], uri: str) -> float:
    raydist = str(Path(sys.executable).parent / "raydist")
    begin_s = time.monotonic()
    done = subprocess.run([raydist, *arguments, "--storage", uri], capture_output=True, text=True)
    assert done.returncode in (0, 2), done.stderr
    return time.monotonic() - begin_s


def measure(kind: str, uri: str, num_runs: int, *, tries: int) -> None:
    storage = Storage.open(uri)
    fill(storage, num_runs)
    size = storage.size("run-00000/run.json")
    print(f"{num_runs} runs of {size} bytes in {uri}")
    for name, arguments in COMMANDS.items():
        print(f"raydist {name}")
        key = re.sub(r"\W+", "_", name.partition(" (")[0].lower()).strip("_")
        figure(f"{kind}_{key}", [seconds(arguments, uri) for _ in range(tries)], "s")
    storage.delete(INDEX)
    figure(f"{kind}_list_without_index", seconds(["list"], uri), "s, runs of an older raydist")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--no-s3", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure("folder", f"{folder}/runs", arguments.runs, tries=3)
    if not arguments.no_s3:
        with s3_server() as endpoint:
            os.environ.update(s3_environ(endpoint))
            measure("s3", f"s3://{new_bucket(endpoint)}/runs", arguments.runs, tries=1)


if __name__ == "__main__":
    main()
