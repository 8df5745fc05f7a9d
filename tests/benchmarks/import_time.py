"""Prints how long `import raydist` and `raydist plan` take, each in a fresh process: median of 9.

Wall times of whole processes, and that of an empty Python process for comparison; what is promised is 0.1 s
for the import and 1 s for the plan.

  python -m tests.benchmarks.import_time
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.benchmarks.figures.printing import figure

NUM_RUNS = 9
JOB = "import tensorflow\nimport raydist\n\n\n@raydist.job(workers=2)\ndef train(ctx):\n    pass\n"
IMPORT = "import time; start = time.perf_counter(); import raydist; print(time.perf_counter() - start)"


def repeated(measure: Callable[[], float]) -> list[float]:
    measure()  # writes the byte code
    return [measure() for _ in range(NUM_RUNS)]


def process_s(*command: str) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def import_s() -> float:
    return float(
        subprocess.run([sys.executable, "-c", IMPORT], check=True, capture_output=True, text=True).stdout
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.py"
        job.write_text(JOB)
        plan = (sys.executable, "-m", "raydist.cli.main", "plan", str(job), "--address", "local")
        figure("empty_process", repeated(lambda: process_s(sys.executable, "-c", "pass")), "s")
        figure("raydist", repeated(import_s), "s in the process")
        figure("plan", repeated(lambda: process_s(*plan)), "s as a process")


if __name__ == "__main__":
    main()
