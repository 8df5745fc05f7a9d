"""Runs a script, a module or a notebook as `__main__`: in a task, once its environment is set."""

from __future__ import annotations

import linecache
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from raydist.errors import JobFileError
from raydist.spec.entry.notebook import SUFFIX, read_cells
from raydist.spec.job import EntryPoint


class ScriptExit(SystemExit):
    """A script that ended with another exit code than 0; `code` is what it gave to `sys.exit`."""

    def __init__(self, script: str, code: object) -> None:
        super().__init__(code)
        self._message = (
            f"{script} ended with exit code {int(code)}"
            if isinstance(code, int)
            else f"{script} ended with exit code 1: {code}"
        )

    def __str__(self) -> str:
        return self._message


def run_script(
    entry_point: EntryPoint,
    *,
    args: Sequence[str],
    working_dir: Path | None,
    note: Callable[[str], None] = lambda sentence: None,
) -> None:
    """Runs it to its end. Exceptions of the user's code pass through; `sys.exit(0)` is an end like any other.

    The caller has put `working_dir` first on sys.path, and made it the current folder.

    Args:
      args: What follows its name in `sys.argv`.
      note: Is told what of a notebook is left out.

    Raises:
      ScriptExit: It ended by `sys.exit` with another code than 0.
    """
    before = sys.argv, list(sys.path)
    try:
        if entry_point.file is None:
            sys.argv = [str(entry_point.module), *args]  # the first one becomes the module's file
            runpy.run_module(str(entry_point.module), run_name="__main__", alter_sys=True)
        else:
            path = (working_dir or Path.cwd()) / entry_point.file
            sys.argv = [str(path), *args]
            # As `python FILE` does: modules beside the script come before those of the working directory.
            sys.path.insert(0, str(path.parent))
            _run_file(path, entry_point.file, note)
    except SystemExit as error:
        if error.code not in (None, 0):
            raise ScriptExit(str(entry_point), error.code).with_traceback(error.__traceback__) from None
    finally:
        sys.argv, sys.path[:] = before


def _run_file(path: Path, shown: str, note: Callable[[str], None]) -> None:
    if path.suffix == SUFFIX:
        _run_notebook(path, shown, note)
    else:
        runpy.run_path(str(path), run_name="__main__")


def _run_notebook(path: Path, shown: str, note: Callable[[str], None]) -> None:
    try:
        cells = read_cells(path.read_bytes(), shown=shown)
    except OSError as error:
        raise JobFileError(f"{shown} cannot be read: {error.strerror}") from error
    left_out = [f"{line!r} (cell {number})" for number, cell in enumerate(cells, 1) for line in cell.left_out]
    if left_out:
        note(f"left out of {shown}, as it is no Python: {', '.join(left_out)}")
    module = ModuleType("__main__")
    module.__file__ = str(path)
    before, sys.modules["__main__"] = sys.modules["__main__"], module
    try:
        for cell in cells:
            # For tracebacks, and for AutoGraph, which reads a function's source. Without a time of
            # change nobody looks for the file.
            lines = cell.source.splitlines(keepends=True)
            linecache.cache[cell.name] = (len(cell.source), None, lines, cell.name)
            exec(compile(cell.source, cell.name, "exec", dont_inherit=True), module.__dict__)
    finally:
        sys.modules["__main__"] = before
