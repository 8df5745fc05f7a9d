"""From a Job or a function in memory, as `raydist.run` is given it, to a JobDefinition."""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from raydist.errors import JobFileError
from raydist.spec.definition import JobDefinition, TypedOptions
from raydist.spec.entry.call_check import problem_of_function
from raydist.spec.entry.keras2_source import Part, legacy_reason
from raydist.spec.entry.working_dir import existing_folder, module_working_dir
from raydist.spec.job import EntryPoint
from raydist.spec.settings.decorator import Job


def define_from_object(
    job_or_function: object, *, pickle: Callable[[object], bytes], working_dir: str | None = None
) -> JobDefinition:
    """Returns the definition of a job or function.

    A function at the top level of an importable module travels by its name; one of `__main__`, of a
    notebook, a closure or a lambda is pickled by value.

    Args:
      pickle: `ray.cloudpickle.dumps`, or what else pickles functions by value.
      working_dir: The asked folder that travels; None takes the job's own, else the folder that
        holds the script or the top-level package, if any.
    """
    if not callable(job_or_function):
        raise JobFileError(f"the job is {job_or_function!r:.80}; give a function, or one with @raydist.job")
    defaults = job_or_function.defaults if isinstance(job_or_function, Job) else TypedOptions({})
    function = job_or_function.function if isinstance(job_or_function, Job) else job_or_function
    name = getattr(function, "__name__", type(function).__name__)
    if (problem := problem_of_function(function)) is not None:
        raise JobFileError(f"the job {name} {problem}")
    asked_text = working_dir if working_dir is not None else defaults.get("working_dir")
    asked = existing_folder(asked_text, base=Path.cwd()) if asked_text is not None else None
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    path = getattr(module, "__file__", None)
    file = Path(path).absolute() if path else None
    if module and file and _is_importable(module, file) and getattr(module, name, None) is job_or_function:
        entry_point = EntryPoint(module=module.__name__, function=name)
        folder = module_working_dir(module.__name__, file, asked=asked)
    else:
        entry_point = EntryPoint(function="", pickled=pickle(function))
        folder = asked or _folder_of(module, file)
    return JobDefinition(
        name=name if file is None else file.stem,
        entry_point=entry_point,
        working_dir=folder,
        defaults=defaults,
        legacy_keras_reason=_legacy_reason(function, folder),
        where=f"the job {name}",
    )


def _is_importable(module: ModuleType, file: Path) -> bool:
    """Whether another process finds the module by its name: its file lies where the name says."""
    if module.__name__ == "__main__" or getattr(module, "__spec__", None) is None:
        return False
    parts = module.__name__.split(".")
    path = file.parent if file.name == "__init__.py" else file.with_suffix("")
    return list(path.parts[-len(parts) :]) == parts


def _folder_of(module: ModuleType | None, file: Path | None) -> Path | None:
    """What a pickled function may import: the script's folder, or its module's root."""
    if module is None or file is None:
        return None
    return (
        module_working_dir(module.__name__, file, asked=None) if _is_importable(module, file) else file.parent
    )


def _legacy_reason(function: Any, folder: Path | None) -> str | None:
    if not isinstance(function, FunctionType):
        return None
    # In a notebook the import is in another cell than the function.
    modules = (each for each in function.__globals__.values() if isinstance(each, ModuleType))
    if any(each.__name__.partition(".")[0] == "tf_keras" for each in modules):
        return "the job's source imports tf_keras"
    name = function.__code__.co_filename
    lines = linecache.getlines(name)  # knows notebooks' cells too
    try:
        part = Part(Path(name).name, ast.parse("".join(lines)))
    except (SyntaxError, ValueError):
        return None
    file = Path(name) if Path(name).is_file() else None
    return legacy_reason([part], file=file, roots=[] if folder is None else [folder])
