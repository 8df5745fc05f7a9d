"""The page of `raydist ui` follows a real run, in a real Chromium."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import browser as browsers
from tests.support.serving import serving
from tests.support.slow_job import write_slow_job


@pytest.mark.slow
@pytest.mark.skipif(browsers.why_unavailable() is not None, reason=str(browsers.why_unavailable()))
def test_page_follows_a_run_to_its_end(tmp_path: Path) -> None:
    storage = str(tmp_path / "live")
    command = [sys.executable, "-m", "raydist.cli.main", "submit", write_slow_job(tmp_path)]
    with (
        subprocess.Popen(
            [*command, "--name", "live", "--storage", storage, "--address", "local"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process,
        serving(storage) as server,
        browsers.running_browser() as browser,
    ):
        page = browser.open(server.url)
        page.click("a:text('live')", timeout=60_000)
        page.wait_for_selector(".badge:text('RUNNING')", timeout=120_000)
        page.wait_for_selector(".timeline .bar.running", timeout=60_000)
        page.wait_for_selector(".badge:text('SUCCEEDED')", timeout=120_000)
        page.wait_for_selector(".figure:has-text('steps') b:text('40')")
        assert process.wait(timeout=60) == 0
        assert page.locator(".timeline .rows .task").all_inner_texts() == ["worker/0", "worker/1"]
        assert page.locator(".bar.running").count() == 2
        assert browser.said == []
