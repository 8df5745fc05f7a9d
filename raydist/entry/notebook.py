"""The code of a Jupyter notebook: its cells in their order, without IPython's magics and shell commands."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from raydist.entry.own_source import parse
from raydist.errors import JobFileError

SUFFIX = ".ipynb"
# Cell magics around Python code; the text under any other is not Python.
_PYTHON_MAGICS = ("%%capture", "%%time", "%%timeit", "%%prun")
# `%matplotlib inline`, `!pip install`, `?help`, `files = !ls`, `model.fit?`
_NOT_PYTHON = re.compile(r"\s*([%!?]|[\w, ]+=\s*[%!]|[\w.]+\?{1,2}\s*$)")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One code cell.

    Attributes:
      name: What tracebacks call it: `train.ipynb, cell 3`, counted as the notebook shows code cells.
      source: Python with the line numbers of the cell.
      left_out: The lines that are not Python.
    """

    name: str
    source: str
    left_out: tuple[str, ...] = ()


def read_cells(content: bytes, *, shown: str) -> tuple[Cell, ...]:
    """Returns the code cells of a notebook, in their order.

    Args:
      shown: The notebook as messages and tracebacks name it.

    Raises:
      JobFileError: It is not a notebook with Python code, or a cell has a syntax error.
    """
    try:
        notebook = json.loads(content)
        cells = notebook["cells"]
        language = notebook.get("metadata", {}).get("kernelspec", {}).get("language", "python")
        sources = [_text(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise JobFileError(
            f"{shown} is not a notebook of format 4: {type(error).__name__}: {error}; save it with Jupyter"
        ) from error
    if language != "python":
        raise JobFileError(f"{shown} is written in {language}; give a notebook in Python")
    return tuple(_cell(source, f"{shown}, cell {number}") for number, source in enumerate(sources, start=1))


def _text(source: Any) -> str:
    return source if isinstance(source, str) else "".join(source)


def _cell(source: str, name: str) -> Cell:
    lines = source.splitlines()
    first = next((number for number, line in enumerate(lines) if line.strip()), 0)
    left_out = []
    if lines and lines[first].startswith("%%"):
        left_out.append(lines[first])
        is_python = lines[first].split()[0] in _PYTHON_MAGICS
        lines = ["" if not is_python or number == first else line for number, line in enumerate(lines)]
    while (error := _syntax_error(lines, name)) is not None:
        # Only a line that keeps the cell from being Python: in a longer expression `% b` is its second line.
        number = (error.lineno or 0) - 1
        if not 0 <= number < len(lines) or not _NOT_PYTHON.match(lines[number]):
            raise JobFileError(f"{name}, line {number + 1}: {error.msg}; correct the syntax there")
        left_out.append(lines[number].strip())
        lines[number] = re.sub(r"\S.*", "pass", lines[number])
    return Cell(name=name, source="\n".join(lines) + "\n", left_out=tuple(left_out))


def _syntax_error(lines: Sequence[str], name: str) -> SyntaxError | None:
    try:
        compile(parse("\n".join(lines), filename=name), name, "exec", dont_inherit=True)
    except SyntaxError as error:
        return error
    except (ValueError, RecursionError, MemoryError) as error:
        raise JobFileError(f"{name} is not Python source: {error}") from error
    return None
