"""Goodput while workers are killed all the time, against Ray Train's TensorflowTrainer.

    python -m tests.benchmarks.goodput [--rounds 2] [--seconds 60] [--every 15] [--working-dir DIR]

The training of `recovery`, with 2 workers and steps of about 20 ms. Every so many seconds SIGKILL ends a
random worker's process. Goodput is how far the training gets in that time from its first step on, divided by
how far it gets without kills, right before.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.figures.printing import figure
from tests.benchmarks.recovery import DRIVERS, SCRIPT, started
from tests.support.ray_heads import RayHead, ray_head

_ENDLESS, _START_S = 10**9, 120.0


def steps_of(
    who: str, head: RayHead, log: Path, working_dir: Path, *, seconds: float, every_s: float | None
) -> int:
    """Returns the step that the training has reached after so many seconds."""
    chance = random.Random(0)
    with started(who, head, log, working_dir, steps=_ENDLESS, failures=_ENDLESS) as driver:
        try:
            begin_s = first_step(log, driver)
            num_kills = math.ceil(seconds / every_s) - 1 if every_s is not None else 0  # none at the end
            for number in range(1, num_kills + 1):
                time.sleep(max(0.0, begin_s + number * every_s - time.time()))
                newest = {worker: pid for worker, pid, _ in lines_of(log)}
                with contextlib.suppress(ProcessLookupError):  # the one after it has taken no step yet
                    os.kill(newest[chance.choice(sorted(newest))], signal.SIGKILL)
            time.sleep(max(0.0, begin_s + seconds - time.time()))
            assert driver.poll() is None, driver.communicate()[1][-3000:]
            return max(step for _, _, step in lines_of(log))
        finally:
            driver.send_signal(signal.SIGINT)
            try:
                driver.wait(timeout=60)
            except subprocess.TimeoutExpired:
                driver.kill()


def first_step(log: Path, driver: subprocess.Popen[str]) -> float:
    deadline = time.monotonic() + _START_S
    while not (log.exists() and lines_of(log)):
        assert driver.poll() is None, driver.communicate()[1][-3000:]
        assert time.monotonic() < deadline, "no step was taken"
        time.sleep(0.05)
    return time.time()


def lines_of(log: Path) -> list[tuple[int, int, int]]:
    """Returns worker, process and step of each step done; a line may be half written."""
    lines = (line.split() for line in log.read_text().splitlines()[:-1])
    return [(int(worker), int(pid), int(step)) for worker, pid, step, _ in lines]


def main() -> None:
    """Prints each run, and the goodput of both."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=15.0, help="seconds between kills")
    parser.add_argument("--working-dir", type=Path, default=SCRIPT.parent)
    options = parser.parse_args()
    found: dict[str, list[float]] = {who: [] for who in DRIVERS}
    with tempfile.TemporaryDirectory(prefix="rd-") as folder, ray_head(num_cpus=4) as head:
        working_dir = options.working_dir.resolve()
        for number, who in itertools.product(range(options.rounds), DRIVERS):
            calm, killed = (
                steps_of(
                    *(who, head, Path(folder, f"{who}-{number}-{every_s}.log"), working_dir),
                    seconds=options.seconds,
                    every_s=every_s,
                )
                for every_s in (None, options.every)
            )
            print(f"{who}: {calm} steps without kills, {killed} with them", flush=True)
            found[who].append(killed / calm)
    figure("killed", found["raydist"], "of the steps", against=("Ray Train", found["ray-train"]))


if __name__ == "__main__":
    main()
