"""`raydist guide [TOPIC]`: the pages of raydist/guide, without network."""

from __future__ import annotations

import re
import sys

import click

from raydist.cli.screen import output
from raydist.cli.screen.guide_pages import TOPICS, page, title
from raydist.spec.text import suggest

_LINK = re.compile(r"\[(?P<text>[^\]]+)\]\((?P<target>[^)\s]+)\)")
_IMAGE = re.compile(r"^!\[[^\]]*\]\([^)\s]+\)\n+", re.MULTILINE)
_WIDTH = 110


@click.command("guide")
@click.argument("topic", metavar="[TOPIC]", required=False)
def guide(topic: str | None) -> None:
    """Show a page of the guide, or list the topics.

    The pages are part of the installation and need no network. Example: raydist guide input-data
    """
    if topic is None:
        _print_topics()
    elif topic not in TOPICS:
        raise click.UsageError(f"no topic {topic!r}; {suggest(topic, TOPICS)}")
    elif sys.stdout.isatty():
        _print_rendered(page(topic))
    else:
        output.show(page(topic), end="")


def without_links(markdown: str) -> str:
    """Returns a page as it reads in a terminal, where no link can be followed.

    A link to another page becomes the command that shows it. A link to a file or a heading becomes its text.
    Images are left out.
    """
    return _LINK.sub(_as_text, _IMAGE.sub("", markdown))


def _as_text(link: re.Match[str]) -> str:
    text, target = link["text"], link["target"]
    other = target.partition("#")[0].removesuffix(".md")
    if other in TOPICS:
        return f"{text} (`raydist guide {other}`)"
    return f"{text} ({target})" if target.startswith("https://") else text


def _print_topics() -> None:
    width = max(map(len, TOPICS))
    for topic in TOPICS:
        output.show(f"{topic.ljust(width)}  {title(topic)}")
    output.show("\nraydist guide TOPIC shows a page")


def _print_rendered(markdown: str) -> None:
    import rich.console

    from raydist.cli.screen.rendered_markdown import RenderedMarkdown

    console = rich.console.Console()
    with console.capture() as captured:
        console.print(RenderedMarkdown(without_links(markdown)), width=min(console.width, _WIDTH))
    output.show(captured.get(), end="", is_raw=True)  # also where the locale's encoding is ASCII, unlike rich
