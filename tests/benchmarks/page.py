"""`raydist download RUN page` of a run with a million metric rows: seconds, memory, and the size of the file.

    python -m tests.benchmarks.page [--rows 1000000] [--repeats 5] [--browser]

The run is the one of metrics_reading.py: 4 tasks and 2 attempts, whose second attempt repeats a quarter of
the first one's steps, stored as MetricsWriter leaves it. Each report is a process of its own, start and
imports included. `--browser` opens the file in Chromium too, and times it until the charts are drawn, and
each zoom.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from raydist.storage.run_storage import open_run
from tests.benchmarks.figures.printing import figure
from tests.benchmarks.metrics_reading import CHECKOUT, KINDS, make_run

ZOOMS = ((0.0, 1.0), (0.2, 0.8), (0.4, 0.5), (0.45, 0.451))


def report_once(folder: str, file: Path) -> tuple[float, float, float]:
    """Returns wall time, CPU time and the highest resident memory in MB of one download of the page."""
    page = ("download", "written", "page", file, "--storage", folder)
    command = [sys.executable, "-m", "raydist.cli.main", *page]
    started_s = time.perf_counter()
    process = subprocess.Popen(
        [*map(str, command)],
        stdout=subprocess.DEVNULL,
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
    )
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0
    cpu_s = usage.ru_utime + usage.ru_stime
    return time.perf_counter() - started_s, cpu_s, usage.ru_maxrss / 1024


def time_browser(file: Path) -> None:
    """Prints how long Chromium takes to draw the page, and to zoom."""
    from playwright.sync_api import sync_playwright

    from tests.support.browser import ARGUMENTS, CHROMIUM

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = browser.new_page()
        started_s = time.perf_counter()
        page.goto(file.as_uri())
        page.wait_for_selector("body[data-ready]")
        page.wait_for_selector(".chart canvas")
        print(f"opened and drawn in {time.perf_counter() - started_s:.2f} s")
        for low, high in ZOOMS:
            took_ms = page.evaluate(
                """([low, high]) => {
                    const board = shownRun.board, [from, to] = board.charts[0].all;
                    const begun = performance.now();
                    board.zoomTo([from + low * (to - from), from + high * (to - from)]);
                    return performance.now() - begun;
                }""",
                [low, high],
            )
            print(f"zoom of all charts to {low:g}..{high:g}: {took_ms:.0f} ms")
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--browser", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file_rows, grows_to_bytes = KINDS["written"]
        storage = open_run(folder, run="written")
        make_run(storage, num_rows=asked.rows, file_rows=file_rows, grows_to_bytes=grows_to_bytes)
        file = Path(folder) / "written.html"
        figures = [report_once(folder, file) for _ in range(asked.repeats)]
        walls, cpus, memories_mb = zip(*figures, strict=True)
        figure("report", walls, "s")
        figure("report_cpu", cpus, "s of CPU time")
        figure("report_memory", max(memories_mb), "MB")
        figure("html", file.stat().st_size / 1e6, "MB")
        if asked.browser:
            time_browser(file)


if __name__ == "__main__":
    main()
