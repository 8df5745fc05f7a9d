"""Runs the user's code: loads a train function, or runs a script, a module or a notebook as `__main__`.

It is called only in a task, once its environment is set, and in the probe of a job file.
"""

from __future__ import annotations

import importlib
import importlib.util
import linecache
import pickle
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from raydist.entry.notebook import SUFFIX, read_cells
from raydist.errors import JobFileError
from raydist.spec.job import EntryPoint
from raydist.spec.settings.decorator import Job


def load_object(entry_point: EntryPoint, *, working_dir: Path | None) -> Any:
    """Returns what the entry point names: a Job, or a function. Exceptions of the user's code pass through.

    The caller has put `working_dir` first on sys.path.
    """
    if entry_point.pickled is not None:
        return pickle.loads(entry_point.pickled)
    if entry_point.file is not None:
        module = _load_file((working_dir or Path.cwd()) / entry_point.file, entry_point.file)
    else:
        module = importlib.import_module(str(entry_point.module))
    if not hasattr(module, entry_point.function):
        raise JobFileError(
            f"{entry_point} does not exist once the file has run; name a function at its top level"
        )
    return getattr(module, entry_point.function)


def load_function(entry_point: EntryPoint, *, working_dir: Path | None) -> Callable[..., Any]:
    """Returns the train function itself, without the Job around it."""
    loaded = load_object(entry_point, working_dir=working_dir)
    if isinstance(loaded, Job):
        return loaded.function
    if not callable(loaded):
        raise JobFileError(f"{entry_point} is of type {type(loaded).__name__}; name a function")
    function: Callable[..., Any] = loaded
    return function


def _load_file(path: Path, relative: str) -> ModuleType:
    """Imports a file under its dotted path, so that what it defines pickles by reference in the task.

    Modules beside the file can be imported, as from a script; those of the working directory come first.
    """
    name = ".".join(Path(relative).with_suffix("").parts)
    present = sys.modules.get(name)
    if present is not None and getattr(present, "__file__", None) == str(path):
        return present
    if present is not None or name in sys.stdlib_module_names:
        name = f"raydist_job_{path.stem}"  # a job file called random.py must not become the random module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise JobFileError(f"{path} cannot be imported; give a .py file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


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
            # As `python FILE` does: the script's folder comes before the working directory.
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
        note(f"left out of {shown}, as it is not Python: {', '.join(left_out)}")
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
