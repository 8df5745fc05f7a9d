"""The pictures of pages in the guide; `python -m tests.support.guide_pictures` takes them of new runs.

The runs are those of the guide's first hour: one that nothing happened to, and one whose worker was killed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.browser import running_browser
from tests.support.guide import FOLDER, blocks
from tests.support.serving import serving

IMAGES = FOLDER / "images"
WIDTH = 1180
RAYDIST = str(Path(sys.executable).parent / "raydist")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="raydist-pictures-") as folder:
        make_runs(Path(folder))
        take_pictures(Path(folder, "raydist_runs"))


def make_runs(folder: Path) -> None:
    (folder / "digits.py").write_text(blocks(FOLDER / "first-hour.md", "python")[0])
    submit = [RAYDIST, "submit", "digits.py", "-p", "epochs=60"]
    subprocess.run([*submit, "--name", "calm"], cwd=folder, check=True)
    chaos = [RAYDIST, "chaos", "killed", "--kill", "worker/1", "--at-step", "150", "--wait", "5m"]
    with subprocess.Popen(chaos, cwd=folder) as killing:
        subprocess.run([*submit, "--name", "killed", "--checkpoint-every", "150"], cwd=folder, check=True)
    assert killing.returncode == 0, "no worker was killed"


def take_pictures(runs: Path) -> None:
    with serving(str(runs)) as server, running_browser() as browser:

        def shown(view: str, *, height: int) -> None:
            page.set_viewport_size({"width": WIDTH, "height": height})
            page.goto("about:blank")
            page.goto(f"{server.url}{view}")
            page.wait_for_selector("body[data-ready]")

        page = browser.open(server.url, width=WIDTH)
        shown("", height=270)
        for run in ("calm", "killed"):
            page.check(f"[aria-label='compare {run}']")
        page.screenshot(path=IMAGES / "list.png")
        shown("#run=killed", height=640)
        page.wait_for_selector(".chart canvas")
        page.screenshot(path=IMAGES / "page.png")
        page.locator("#timeline").screenshot(path=IMAGES / "timeline.png")
        shown("#compare=calm,killed", height=720)
        page.wait_for_selector(".chart canvas")
        page.screenshot(path=IMAGES / "compare.png")


if __name__ == "__main__":
    main()
