"""Runs the benchmarks in turn, prints their figures as JSON lines, and writes them into the guide.

    python -m tests.benchmarks [SCRIPT ...] [--write]

Each line has a figure's name, median, minimum, maximum and rounds, its ratio to what it is compared with, and
the date, commit and machine. `--write` puts them into the record, tests/benchmarks/figures/record.jsonl, and
the record's figures into the pages that show them. Takes about half an hour on 2 cores, and two hours more
with `--long`.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import pages, running
from tests.benchmarks.figures.record import Figures, UnknownFigureError
from tests.benchmarks.figures.table import BENCHMARKS, Benchmark


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    scripts = list(dict.fromkeys(one.script for one in BENCHMARKS))
    parser.add_argument("scripts", nargs="*", metavar="SCRIPT", help="run only these")
    parser.add_argument("--long", action="store_true", help="run those that take long, too")
    parser.add_argument("--quick", action="store_true", help="only try whether each script works")
    parser.add_argument(
        "--write", action="store_true", help="write the figures into the record and the pages"
    )
    parser.add_argument("--list", action="store_true", help="list the benchmarks and run none")
    parser.add_argument(
        "--from",
        type=Path,
        dest="lines",
        metavar="FILE",
        help="write the JSON lines of an earlier run; run none",
    )
    asked = parser.parse_args()
    if unknown := set(asked.scripts) - set(scripts):
        parser.error(f"no script {', '.join(sorted(unknown))}; there are {', '.join(scripts)}")
    if asked.quick and asked.write:
        parser.error("--quick measures too little to be written; leave out one of --quick and --write")
    if asked.lines is not None:
        record([json.loads(line) for line in asked.lines.read_text().splitlines()])
        return finish([])
    chosen = [
        one
        for one in BENCHMARKS
        if (not asked.scripts or one.script in asked.scripts) and (asked.long or not one.is_long)
    ]
    if asked.list:
        for one in chosen:
            print(f"{one.minutes:5.1f} min  {one.title}")
        print(f"{sum(one.minutes for one in chosen):5.1f} min  all of them")
        return 0
    return run(chosen, is_quick=asked.quick, is_written=asked.write)


def run(chosen: Sequence[Benchmark], *, is_quick: bool, is_written: bool) -> int:
    """Runs benchmarks in turn; returns the exit code, 1 if any of them failed and 130 after Ctrl-C."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt_once)
    running.adopt_orphans()
    folder, about = Path(tempfile.mkdtemp(prefix="raydist-benchmarks-")), running.circumstances()
    failed: list[str] = []
    try:
        for index, one in enumerate(chosen, start=1):
            place = f"{index} of {len(chosen)}"
            print(f"{place}: {one.title}, about {one.minutes:g} min", file=sys.stderr, flush=True)
            began_at_s, own = time.monotonic(), folder / f"{index}-{one.script}"
            own.mkdir()
            lines: list[dict[str, Any]] = []
            try:
                running.carry_out(one, own, is_quick=is_quick, lines=lines)
            except running.FailedError as error:
                failed.append(f"{one.title}: {error}")
            finally:
                more = about | {"arguments": one.quick if is_quick else one.arguments}
                for line in lines:
                    print(json.dumps(line | more), flush=True)
                if is_written:
                    record([line | more for line in lines])
            took = f"{(time.monotonic() - began_at_s) / 60:.1f} min"
            print(f"    {len(lines)} figures in {took}", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("interrupted; all that was started has ended", file=sys.stderr)
        return 130
    print(
        f"{len(chosen) - len(failed)} of {len(chosen)} benchmarks worked; outputs: {folder}", file=sys.stderr
    )
    return finish(failed, is_written=is_written)


def _interrupt_once(number: int, frame: object) -> None:
    """A second Ctrl-C would leave running what the first one is about to end."""
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)
    raise KeyboardInterrupt


def record(lines: Sequence[dict[str, Any]]) -> None:
    Figures.read().with_lines(lines).write()


def finish(failed: list[str], *, is_written: bool = True) -> int:
    """Writes the pages and prints a sentence for each failure; returns the exit code."""
    try:
        for page, text in pages.written(Figures.read()).items() if is_written else ():
            page.write_text(text)
    except (UnknownFigureError, pages.QuoteError) as error:
        failed = [*failed, f"the pages were not written: {error}"]
    for sentence in failed:
        print(f"failed: {sentence}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
