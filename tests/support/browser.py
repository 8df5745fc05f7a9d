"""A real Chromium without a screen, which lists what went wrong in it and what it asked the network for."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
# None of these asks anything of the network by itself.
ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]


def why_unavailable() -> str | None:
    """Returns why no browser can be started here; None where one can."""
    if not Path(CHROMIUM).exists():
        return "chromium is not installed"
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is not installed"
    return None


@dataclass
class Browser:
    """Opens pages; what their consoles say and what they request is gathered.

    Attributes:
      said: Errors and warnings of consoles, exceptions and dialogs.
      requested: Every address that was asked for.
    """

    chromium: Any
    said: list[str] = field(default_factory=list)
    requested: list[str] = field(default_factory=list)

    def open(self, url: str, *, is_dark: bool = False, width: int = 1280) -> Any:
        """Returns a page in a context of its own, once the page has what it shows."""
        scheme = "dark" if is_dark else "light"
        context = self.chromium.new_context(
            color_scheme=scheme, viewport={"width": width, "height": 900}, accept_downloads=False
        )
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("console", lambda message: self._take_console(message))
        page.on("pageerror", lambda error: self.said.append(f"exception: {error}"))
        page.on("dialog", lambda dialog: (self.said.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: self.requested.append(request.url))
        page.goto(url)
        page.wait_for_selector("main:not([hidden])")
        return page

    def _take_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.said.append(f"{message.type}: {message.text}")


@contextlib.contextmanager
def running_browser() -> Iterator[Browser]:
    """Starts Chromium, and ends it with everything that it started."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        try:
            yield Browser(chromium)
        finally:
            chromium.close()
