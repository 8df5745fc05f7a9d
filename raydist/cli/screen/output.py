"""Where everything that commands print goes through, and what they print alike: JSON, a table, an error."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import click

from raydist.cli.screen import guide_pages
from raydist.errors import MistakeError, RaydistError
from raydist.outcome.status import RunState
from raydist.spec.secrecy import dump_plain_json, redact_text
from raydist.spec.text import escaped

# JSON allows them in a string.
_CONTROL_IN_JSON = re.compile(r"[\x7f-\x9f]")


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether a command line asks for JSON; what follows `--` is a script's."""
    return "--json" in itertools.takewhile(lambda each: each != "--", arguments)


def show(
    text: str,
    *,
    end: str = "\n",
    is_error: bool = False,
    stream: IO[str] | None = None,
    is_raw: bool = False,
    is_alarming: bool = False,
) -> None:
    """Prints `text` with what could control the terminal written out: it may hold names that anybody chose.

    Args:
      stream: Where to; stdout, or stderr with `is_error`, when omitted.
      is_raw: Whether the text is printed as it is, also where stdout is not a terminal.
      is_alarming: Whether it is red on a terminal.
    """
    printed = text if is_raw else escaped(text)
    if is_alarming:
        printed = click.style(printed, fg="red")
    click.echo(f"{printed}{end}", nl=False, err=is_error, file=stream, color=True if is_raw else None)


def print_json(data: Mapping[str, Any]) -> None:
    """Prints the one object that `--json` promises. NaN and infinities become null: JSON has none."""
    show(json_text(dump_plain_json(data, indent=2)))


def json_text(text: str) -> str:
    """Returns JSON with all control characters in its strings written as JSON writes them."""
    return _CONTROL_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def print_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints aligned columns; numbers stand at the right of theirs."""
    for line in table_lines(headers, rows):
        show(line)


def table_lines(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    """Yields the lines of a table of aligned columns."""
    cells = [[cell(value) for value in row] for row in rows]
    widths = [max(len(line[index]) for line in [list(headers), *cells]) for index in range(len(headers))]
    is_number = [
        bool(rows) and all(isinstance(row[index], (int, float)) or row[index] is None for row in rows)
        for index in range(len(headers))
    ]
    for line in [list(headers), *cells]:
        columns = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, is_number, strict=True)
        ]
        yield "  ".join(columns).rstrip()


def print_raydist_error(error: RaydistError, *, is_json: bool, found: Mapping[str, Any] | None = None) -> int:
    """Prints an error that raydist raised on purpose, and returns its exit code.

    Args:
      found: What the JSON object has besides the error.
    """
    return print_error(
        str(error),
        type_name=type(error).__name__,
        code=error.exit_code,
        is_json=is_json,
        found=found,
        task=error.task,
        attempt=error.attempt,
        log=error.log,
    )


def print_error(
    message: str,
    *,
    type_name: str,
    code: int,
    is_json: bool,
    state: RunState = RunState.FAILED,
    found: Mapping[str, Any] | None = None,
    **where: object,
) -> int:
    """Prints one error: a sentence to stderr, and with `--json` an object to stdout. Returns `code`."""
    message = redact_text(message)
    places = {"task": None, "attempt": None, "log": None, **where}
    if is_json:
        described = {"type": type_name, "message": message, **places, "exit_code": code}
        print_json({**(found or {}), "state": state, "error": described})
    known = [f"{name} {value}" for name, value in places.items() if value is not None]
    if (page := guide_pages.command_about(type_name, code)) is not None:
        known.append(f"see `{page}`")
    show(f"raydist: {message}" + (f" ({', '.join(known)})" if known else ""), is_error=True)
    return code


def write_file(path: Path, text: str, *, option: str) -> None:
    """Writes a file that an option names; raises MistakeError where that cannot be done."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise unwritable(path, error.strerror or str(error), option) from error


def unwritable(path: Path, reason: str, option: str) -> MistakeError:
    return MistakeError(f"{path} cannot be written: {reason}; choose another with {option}")


def csv_text(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Returns rows as CSV, below a line of names."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()


@contextlib.contextmanager
def stdout_kept_for_json(is_json: bool) -> Iterator[None]:
    """Sends to stderr, while open, what anything in this process and its children writes to stdout.

    Ray and TensorFlow write to the file descriptor itself, which `sys.stdout` cannot see. A daemon that
    outlives the run does not hold the pipe of `raydist … --json | jq` open either.
    """
    if not is_json:
        yield
        return
    sys.stdout.flush()
    with contextlib.redirect_stdout(sys.stderr), _descriptor_1_on_2():
        yield


@contextlib.contextmanager
def _descriptor_1_on_2() -> Iterator[None]:
    try:
        kept = os.dup(1)
    except OSError:  # closed by whoever started this process
        yield
        return
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def cell(value: object) -> str:
    """Returns a value as a table shows it."""
    if value is None:
        return "-"
    # Escaped here already: a column is as wide as what is shown.
    return f"{value:.6g}" if isinstance(value, float) else escaped(str(value)).replace("\n", "\\n")
