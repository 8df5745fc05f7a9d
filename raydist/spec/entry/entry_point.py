"""From an entry point to the train function. Runs the user's code: only in a task, or in the probe."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

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
