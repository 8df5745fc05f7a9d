"""The pages of raydist/guide: their topics, and which one helps with an error."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from raydist import errors

# In the order in which they are listed.
TOPICS = (
    "first-hour",
    "writing-a-job",
    "scripts",
    "from-python",
    "coming-from",
    "commands",
    "page",
    "input-data",
    "strategies",
    "parameter-servers",
    "failures",
    "storage",
    "after-training",
    "search",
    "scaling",
    "on-a-cluster",
    "deploying",
    "versions",
    "security",
    "figures",
    "limits",
)

# The page that helps with an error, for those that one page helps with.
_ABOUT: Mapping[type[errors.RaydistError], str] = {
    errors.JobFileError: "writing-a-job",
    errors.DataError: "input-data",
    errors.ClusterError: "on-a-cluster",
    errors.DeviceError: "strategies",
    errors.StartTimeoutError: "on-a-cluster",
    errors.StorageError: "storage",
    errors.CheckpointError: "storage",
}

_FOLDER = Path(__file__).parents[2] / "guide"


def page(topic: str) -> str:
    """Returns a page's Markdown."""
    return (_FOLDER / f"{topic}.md").read_text(encoding="utf-8")


def title(topic: str) -> str:
    """Returns a page's title, which is its first line."""
    return page(topic).partition("\n")[0].removeprefix("# ")


def command_about(type_name: str, exit_code: int | None) -> str | None:
    """Returns the command that shows the page about an error; None if there is none.

    Args:
      exit_code: Distinguishes raydist's errors from a user's exception of the same name.
    """
    for error, topic in _ABOUT.items():
        if (error.__name__, error.exit_code) == (type_name, exit_code):
            return f"raydist guide {topic}"
    return None
