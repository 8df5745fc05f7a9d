"""Small tables of HTML, as notebooks show objects."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping


def facts_html(title: str, facts: Iterable[tuple[str, object]]) -> str:
    """Returns a table of names and values, escaped; a value that is None or empty has no row."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
        f"<td style='text-align:left'>{html.escape(str(value))}</td></tr>"
        for name, value in facts
        if value not in (None, "", (), {})
    )
    return f"<div><b>{html.escape(title)}</b><table>{rows}</table></div>"


def metrics_text(metrics: Mapping[str, float]) -> str:
    """Returns `loss 0.3112, accuracy 0.89`."""
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
