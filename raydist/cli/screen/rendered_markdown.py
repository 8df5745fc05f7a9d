"""Markdown for a terminal, without losing anything on a narrow one."""

from __future__ import annotations

from typing import ClassVar

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Markdown, MarkdownElement, TableElement
from rich.table import Table


class _FoldedTable(TableElement):
    """A table that breaks long words. Rich cuts them off, and options and paths are long words."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for part in super().__rich_console__(console, options):
            if isinstance(part, Table):
                for column in part.columns:
                    column.overflow = "fold"
            yield part


class RenderedMarkdown(Markdown):
    """Markdown as the guide shows it; web addresses are in the text, as not every terminal has links."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {**Markdown.elements, "table_open": _FoldedTable}

    def __init__(self, markup: str) -> None:
        super().__init__(markup, hyperlinks=False)
