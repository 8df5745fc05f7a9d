"""One HTML file that needs nothing but itself, and the JSON inside of it."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raydist.spec.secrecy import dump_plain_json

_STATIC = Path(__file__).parent / "static"
# uPlot 1.6.32, from npm. Each script uses what is above it; the last one starts.
SCRIPTS = (
    *("uplot.js", "values.js", "points.js", "chart.js", "timeline.js", "run.js", "runs.js", "compare.js"),
    *("study.js", "start.js"),
)
STYLES = ("uplot.css", "page.css")


def script() -> str:
    """Returns all of the page's JavaScript, with the licence of what is not raydist's own."""
    licence = f"/* uPlot\n{_read('uplot.LICENSE')}*/"
    return "\n".join([licence, *map(_read, SCRIPTS)])


def style() -> str:
    """Returns the page's style sheet."""
    return "\n".join(map(_read, STYLES))


def page_json(facts: Mapping[str, Any], curves: Mapping[str, Any] | None = None) -> str:
    """Returns the facts as strict JSON, secrets taken out, with the curves as they are.

    The curves are numbers and one long text, in which to look for secrets takes seconds.
    """
    text = dump_plain_json(facts)
    if curves is None:
        return text
    return f'{text[:-1]}, "curves": {json.dumps(curves, allow_nan=False)}}}'


def report_html(facts: Mapping[str, Any], curves: Mapping[str, Any]) -> str:
    """Returns the page of one run, which opens without network.

    Names, params and logs of a run are shown as text: it stands in JSON in which no tag can
    begin, and the browser runs no script but the one whose digest the policy names.
    """
    data = page_json({"mode": "report", **facts}, curves).replace("<", "\\u003c")
    code, styles = script(), style()
    policy = (
        f"default-src 'none'; script-src '{_digest(code)}'; style-src '{_digest(styles)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return _PAGE.format(
        policy=html.escape(policy, quote=False),
        title=html.escape(f"{facts['run']} - raydist"),
        styles=f"<style>{styles}</style>",
        data=f'<script type="application/json" id="data">{data}</script>',
        code=f"<script>{code}</script>",
    )


def live_html() -> str:
    """Returns the page that `raydist ui` serves, which asks its server for everything."""
    return _PAGE.format(
        policy=LIVE_POLICY,
        title="runs - raydist",
        styles='<link rel="stylesheet" href="page.css">',
        data="",
        code='<script src="page.js"></script>',
    )


LIVE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)

# The icon is empty, so that no browser asks for one.
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>{title}</title>
{styles}
</head>
<body>
<noscript>This page draws its charts with JavaScript, which is switched off.</noscript>
{data}
{code}
</body>
</html>
"""


def _read(name: str) -> str:
    return (_STATIC / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
