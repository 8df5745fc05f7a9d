"""Pages of runs that somebody has written who wants to do harm: no error but raydist's own, and no tags."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from raydist.errors import RaydistError, StorageError
from raydist.page.gathering import Problems, gather_curves, gather_facts
from raydist.page.html import report_html
from raydist.page.site import Site
from raydist.storage.filesystem import Storage
from raydist.storage.run_record import decode_record
from raydist.storage.run_storage import RunStorage
from tests.support.hostile import Hostile, Traps, dump
from tests.support.hostile_files import write_metrics, write_study

DEFAULT, ALL = 60, 2000
PAGES = ("api/runs", "api/run/r", "api/study/s")


def write_case(folder: Path, number: int) -> None:
    hostile = Hostile(random.Random(number), Traps(folder=folder))
    run = folder / "r"
    for name in ("events", "metrics", "logs/0/worker-0"):
        (run / name).mkdir(parents=True, exist_ok=True)
    record = hostile.record()
    (run / "run.json").write_bytes(dump(record if number % 3 else hostile.damaged(record)))
    lines = list(map(dump, hostile.events(15)))
    (run / "events" / "000000.jsonl").write_bytes(b"\n".join(lines))
    (run / "logs" / "0" / "worker-0" / "000000.log").write_text(hostile.text() + "\n")
    if number % 4 == 0:
        write_metrics(run / "metrics" / "0-worker-0-000000.parquet", hostile)
        write_study(folder, hostile)
        for step in (1, 2):
            checkpoint = run / "checkpoints" / f"step-{step}-a0"
            checkpoint.mkdir(parents=True, exist_ok=True)
            (checkpoint / "_COMMITTED").write_bytes(hostile.marker(step=step, attempt=0))


def check_pages(folder: Path) -> bool:
    """Asks for each page; returns whether the record was whole."""
    storage = Storage.open(str(folder))
    site = Site(storage, version="0")
    for page in PAGES:
        answer = site.answer(page)
        assert answer.status in (200, 404, 503)
        json.loads(answer.content, parse_constant=_no_constant)
    run, problems = RunStorage(storage, run="r"), Problems()
    try:
        facts = gather_facts(run, problems, now_s=time.time())
        page = report_html(facts | {"raydist": "0"}, gather_curves(run, problems, facts["record"]))
        assert "<script>alert" not in page
        assert "<img src=x" not in page
    except RaydistError:
        pass
    try:
        decode_record((folder / "r" / "run.json").read_bytes(), run)
    except StorageError:
        return False
    return True


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def check_cases(folder: Path, numbers: range) -> None:
    problems: dict[str, Any] = {}
    num_whole = 0
    for number in numbers:
        write_case(folder, number)
        try:
            num_whole += check_pages(folder)
        except Exception as error:
            trace = error.__traceback__
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            where = "" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
            problems.setdefault(f"{type(error).__name__}: {error!s:.80} at {where}", number)
    assert not problems
    assert num_whole > len(numbers) / 2  # else nothing would get as far as the pages


def test_pages_of_hostile_runs_have_no_tracebacks_and_no_tags(tmp_path: Path) -> None:
    check_cases(tmp_path, range(DEFAULT))


@pytest.mark.exhaustive(covered_by="test_pages_of_hostile_runs_have_no_tracebacks_and_no_tags")
@pytest.mark.parametrize("first", range(DEFAULT, ALL, 500))
def test_pages_of_thousands_of_hostile_runs(first: int, tmp_path: Path) -> None:
    check_cases(tmp_path, range(first, min(first + 500, ALL)))
