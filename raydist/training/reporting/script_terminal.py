"""What a script finds in a task where `python` gives it a terminal and a screen."""

from __future__ import annotations

import builtins
import getpass
import os
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import NoReturn

_BACKEND = "MPLBACKEND"


@contextmanager
def without_terminal(*, given: Collection[str]) -> Iterator[None]:
    """Has `input` fail at once and `plt.show` draw nothing, while the block runs the script."""
    # With the shell's DISPLAY each task would open a window and wait; a notebook's backend is not here.
    if _BACKEND not in given:
        os.environ[_BACKEND] = "Agg"
    warnings.filterwarnings("ignore", message="FigureCanvasAgg is non-interactive")
    before = builtins.input, getpass.getpass
    builtins.input = getpass.getpass = _refuse_input
    try:
        yield
    finally:
        builtins.input, getpass.getpass = before


def _refuse_input(prompt: object = "", *args: object, **options: object) -> NoReturn:
    raise EOFError(
        f"the script asks for input ({prompt!r}), and a task has no terminal to read it from; pass values "
        "behind -- on the command line and read them from sys.argv, or secrets with --env"
    )
