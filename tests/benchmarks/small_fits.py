"""Small fits: how long the fit of a model of two layers takes on two workers, and by itself in one process.

    python -m tests.benchmarks.small_fits [--fits 6] [--rounds 3] [--parts]

Both train the same models one after another, in turn. Most of such a fit is what it begins with. Prints the
seconds of the fits of each round, of the first one apart, which has TensorFlow load what it needs, and the
ratios of the medians. `--parts` says what the time is spent on; a profile makes it longer.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from typing import Any

from tests.benchmarks.figures.printing import figure
from tests.support import small_fits
from tests.support.processes import Cluster, run_function

TWO_WORKERS = Cluster(strategy="multi_worker_mirrored", workers=2)


def by_raydist(num_fits: int, *, is_profiled: bool = False) -> dict[str, Any]:
    tasks = run_function(
        "tests.support.small_fits:run",
        TWO_WORKERS,
        num_fits=num_fits,
        is_profiled=is_profiled,
        job_options={"export": True},
    )
    return tasks[0].values


def bare(num_fits: int) -> list[float]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.small_fits", "--fits", str(num_fits), "--bare"],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    seconds: list[float] = json.loads(done.stdout.splitlines()[-1])
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fits", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--bare", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.bare:
        from tests.programs.bare import Bare

        print(json.dumps(small_fits.run(Bare(), num_fits=args.fits)["seconds"]))
        return
    if args.parts:
        parts = by_raydist(args.fits, is_profiled=True)["parts"]
        for part, seconds in parts.items():
            print(f"{part}: {seconds / (args.fits - 1):.2f} s a fit, {seconds / parts['all']:.0%}")
            figure(part.split()[0].rstrip(","), 100 * seconds / parts["all"], "% of a fit")
        return
    found: dict[str, list[float]] = {"two workers": [], "one process": []}
    firsts: dict[str, list[float]] = {"two workers": [], "one process": []}
    for number in range(args.rounds):
        done = {"two workers": by_raydist(args.fits)["seconds"], "one process": bare(args.fits)}
        for name, seconds in done.items():
            firsts[name].append(seconds[0])
            found[name] += seconds[1:]
            print(f"round {number + 1}, {name}: {' '.join(f'{one:.2f}' for one in seconds)}", flush=True)
    figure("first_fit", firsts["two workers"], "s", against=("one process", firsts["one process"]))
    figure("two_workers", found["two workers"], "s", against=("one process", found["one process"]))


if __name__ == "__main__":
    main()
