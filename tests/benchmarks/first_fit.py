"""The first `ctx.fit` of a model with a `train_step` of its own, on two workers: CPU time, traces and memory.

    python -m tests.benchmarks.first_fit [dense] [transformer] [--rounds 3] [--against CHECKOUT]

The step is looked at before it trains: whether its loss is a mean, for example. With `--against`, another
checkout trains the same in turn. Of the chief, which does as much as the other worker.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.benchmarks.figures.printing import figure  # noqa: E402
from tests.support import first_fits  # noqa: E402

# Runs in a process of a checkout's own. The program is this checkout's, in a folder beside.
CODE = """
import json, sys
from tests.support.processes import Cluster, run_function
cluster = Cluster(strategy="multi_worker_mirrored", workers=2, keras=sys.argv[2])
options = {"export": False}
tasks = run_function("first_fits:run", cluster, kind=sys.argv[1], timeout_s=600, job_options=options)
print(json.dumps(tasks[0].values))
"""


def measure(checkout: Path, kind: str, keras: str) -> dict[str, float]:
    """Returns what `first_fits.run` does, with the package of a checkout."""
    with tempfile.TemporaryDirectory(prefix="raydist-first-fit-") as folder:
        shutil.copy(ROOT / "tests/support/first_fits.py", folder)
        done = subprocess.run(
            [sys.executable, "-c", CODE, kind, keras],
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": f"{checkout}:{folder}", "TF_CPP_MIN_LOG_LEVEL": "2"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*", choices=first_fits.SHAPES, default=[*first_fits.SHAPES])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keras", choices=("3", "legacy"), default="3")
    parser.add_argument("--against", type=Path, help="another checkout, such as one of the commit before")
    args = parser.parse_args()
    for kind in args.kinds:
        own, others = [], []
        for _ in range(args.rounds):
            own.append(measure(ROOT, kind, args.keras))
            if args.against is not None:
                others.append(measure(args.against.resolve(), kind, args.keras))
        for name, unit in (("cpu_s", "s"), ("traces", "traces"), ("grown_mb", "MB")):
            against = (str(args.against), [one[name] for one in others]) if others else None
            figure(f"{kind}_{name}", [one[name] for one in own], unit, against=against)


if __name__ == "__main__":
    main()
