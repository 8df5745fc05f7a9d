"""From what names a job to its JobDefinition: a file, a module, `-m package.module`, or a function in memory.

Also finds the folder that travels with a run, so that the job can be imported in every task.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import linecache
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from raydist.entry.job_probe import probe_defaults
from raydist.entry.job_source import FoundJob, JobSource, problem_of_function, read_notebook, read_source
from raydist.entry.keras2_source import legacy_reason
from raydist.entry.notebook import SUFFIX
from raydist.entry.own_source import Part, own_modules, parse
from raydist.entry.strategy_source import imports_raydist, own_loop, strategy_use
from raydist.errors import JobFileError, SpecError
from raydist.spec.job import MODULE_FLAG, EntryPoint, SourceFacts
from raydist.spec.settings.decorator import Job
from raydist.spec.settings.options import check_names
from raydist.spec.settings.resolution import JobDefinition, TypedOptions, typed_values
from raydist.spec.text import suggest

_INSTALLED = {"site-packages", "dist-packages"}
_STANDARD_LIBRARY = Path(os.__file__).resolve().parent
_UNREAD = "the job has no source that could be read"


def absolute(path: str | os.PathLike[str], *, base: Path) -> Path:
    """Symbolic links stay: a linked job file belongs to the folder that it is linked into."""
    return Path(os.path.abspath(base / Path(path).expanduser()))


def existing_folder(path: str, *, base: Path) -> Path:
    folder = absolute(path, base=base)
    if not os.path.isdir(folder):  # unlike Path.is_dir, takes a name that is too long
        raise SpecError(f"working_dir is {path!r}; there is no such folder, give one that holds the job")
    return folder


def relative_to_working_dir(file: Path, working_dir: Path) -> str:
    """Returns the job file's path inside the working directory, as an entry point writes it."""
    for inner, outer in ((file, working_dir), (file.resolve(), working_dir.resolve())):
        if inner.is_relative_to(outer):
            return inner.relative_to(outer).as_posix()
    raise SpecError(
        f"working_dir is {str(working_dir)!r}, which does not hold the job {file}; give a folder above it"
    )


def module_working_dir(module: str, file: Path, *, asked: Path | None) -> Path | None:
    """Returns the folder that holds the module's top-level package; None for an installed one."""
    if _INSTALLED & set(file.resolve().parts) or file.resolve().is_relative_to(_STANDARD_LIBRARY):
        return asked
    num_levels = module.count(".") + (1 if file.name == "__init__.py" else 0)
    root = file.parents[num_levels]
    if asked is not None and asked.resolve() != root.resolve():
        raise SpecError(
            f"working_dir is {str(asked)!r}, but the module {module} lies in {root}; give that folder"
        )
    return root


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
    written = _written(function)
    name = getattr(written, "__name__", type(written).__name__)
    if (problem := problem_of_function(function)) is not None:
        raise JobFileError(f"the job {name} {problem}")
    asked_text = working_dir if working_dir is not None else defaults.get("working_dir")
    asked = existing_folder(asked_text, base=Path.cwd()) if asked_text is not None else None
    module = sys.modules.get(getattr(written, "__module__", None) or "")
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
        source=_facts_of_function(written, folder),
        where=f"the job {name}",
    )


def _written(function: Any) -> Any:
    """Returns the function that the user has written of a method or a `functools.partial`."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__func__", function)


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


def _facts_of_function(function: Any, folder: Path | None) -> SourceFacts:
    if not isinstance(function, FunctionType):
        return _facts([], file=None, roots=[], has_context=True)
    name = function.__code__.co_filename
    lines = linecache.getlines(name)  # knows notebooks' cells too
    try:
        parts = [Part(Path(name).name, parse("".join(lines)))] if lines else []
    except (SyntaxError, ValueError):
        parts = []
    file = Path(name) if Path(name).is_file() else None
    facts = _facts(parts, file=file, roots=[] if folder is None else [folder], has_context=True)
    # In a notebook the import is in another cell than the function.
    modules = (each for each in function.__globals__.values() if isinstance(each, ModuleType))
    if any(each.__name__.partition(".")[0] == "tf_keras" for each in modules):
        return dataclasses.replace(facts, legacy_keras_reason="the job's source imports tf_keras")
    return facts


_MAIN = "__main__.py"
_MODULE_PATTERN = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True, kw_only=True)
class _Target:
    """The job as the user named it. `location` is shown in messages."""

    location: str
    function: str | None
    file: Path
    module: str | None = None
    must_be_script: bool = False  # as `-m` says

    @property
    def is_notebook(self) -> bool:
        return self.file.suffix == SUFFIX


def read_job(target: str, *, cwd: Path, working_dir: str | None = None) -> JobDefinition:
    """Returns the job that `target` names, without importing or running anything in this process.

    Only where the decorator's arguments are not literals is the file run, in a process of its own. A program
    without a job is a script.

    Args:
      target: `path/to/file.py[:function]`, `package.module[:function]`, a notebook's path, or
        `-m package.module` for a script as `python -m` runs it.
      cwd: What relative paths start at, and the first place to look for a module.
      working_dir: The asked folder that travels; None takes the job's own, else the file's folder.

    Raises:
      JobFileError: The file or the job in it is missing, ambiguous, or broken.
      SpecError: An argument of the decorator, or `working_dir`, is wrong.
    """
    asked = existing_folder(working_dir, base=cwd) if working_dir is not None else None
    found = _locate(target, cwd=cwd, first=asked or cwd)
    source = _read(found)
    if found.module is not None and found.file.name == "__init__.py" and not (found.function or source.jobs):
        return read_job(f"{MODULE_FLAG}{found.module}", cwd=cwd, working_dir=working_dir)
    if found.function is None and (found.must_be_script or found.is_notebook or not source.jobs):
        if not source.is_program:
            raise JobFileError(_without_job(source, found.location))
        return _define_script(found, source, asked=asked)
    function = found.function or _only_job(source, found.location)
    _check_exists(function, source, found.location)
    job = source.jobs.get(function)
    where = f"{found.location}, line {job.line}" if job else found.location
    if function in source.problems:
        raise JobFileError(f"{where}: {function} {source.problems[function]}")
    defaults = _literal_defaults(job, found.location) if function in source.functions else None
    if defaults is None:
        entry_point, folder = _entry_point(found, function, asked=asked)
        written = probe_defaults(entry_point, working_dir=folder, shown=f"{found.location}:{function}")
        defaults = typed_values(written, where=where)
    if asked is None and defaults.get("working_dir") is not None:
        asked = existing_folder(defaults["working_dir"], base=found.file.parent)
    entry_point, folder = _entry_point(found, function, asked=asked)
    return JobDefinition(
        name=found.file.stem if len(source.jobs) <= 1 else f"{found.file.stem}-{function}",
        entry_point=entry_point,
        working_dir=folder,
        defaults=defaults,
        source=_facts_of_source(found, source, folder, has_context=True),
        where=where,
    )


def literal_defaults(target: str, *, cwd: Path) -> TypedOptions | None:
    """Returns the decorator's arguments as they stand in the source, typed; None where only a run tells them.

    Runs nothing, so the source may be anybody's. Raises JobFileError as `read_job` does.
    """
    found = _locate(target, cwd=cwd, first=cwd)
    source = _read(found)
    if found.function is None and (found.must_be_script or found.is_notebook or not source.jobs):
        return TypedOptions({})
    function = found.function or _only_job(source, found.location)
    return (
        _literal_defaults(source.jobs.get(function), found.location) if function in source.functions else None
    )


def _read(found: _Target) -> JobSource:
    try:
        content = found.file.read_bytes()
    except OSError as error:
        raise JobFileError(
            f"{found.location} cannot be read: {error.strerror}; give a readable .py file"
        ) from error
    return (read_notebook if found.is_notebook else read_source)(content, shown=found.location)


def _define_script(found: _Target, source: JobSource, *, asked: Path | None) -> JobDefinition:
    entry_point, folder = _entry_point(found, "", asked=asked)
    name = found.file.parent.name if found.file.name == _MAIN else found.file.stem
    return JobDefinition(
        name=name,
        entry_point=entry_point,
        working_dir=folder,
        source=_facts_of_source(found, source, folder, has_context=False),
        where=found.location,
    )


def _facts_of_source(
    found: _Target, source: JobSource, folder: Path | None, *, has_context: bool
) -> SourceFacts:
    """Returns what the source says. A script also finds modules in its own folder."""
    roots = [] if folder is None else list(dict.fromkeys((found.file.parent, folder)))
    return _facts(source.parts, file=found.file, roots=roots, has_context=has_context)


def _facts(
    parts: Sequence[Part], *, file: Path | None, roots: Sequence[Path], has_context: bool
) -> SourceFacts:
    own = list(own_modules(parts, file=file, roots=roots))
    read = [*parts, *own]
    return SourceFacts(
        legacy_keras_reason=legacy_reason(parts, own),
        strategy_use=strategy_use(read, has_context=has_context) if parts else _UNREAD,
        own_loop=own_loop(read),
        imports_raydist=imports_raydist(read) if parts else True,
    )


def _locate(target: str, *, cwd: Path, first: Path) -> _Target:
    if target.startswith(MODULE_FLAG):
        return _locate_main(target.removeprefix(MODULE_FLAG).strip(), first=first)
    location, colon, function = target.rpartition(":")
    if not colon or "/" in function or function.endswith(".py"):
        location, function = target, ""
    elif not function.isidentifier():
        raise JobFileError(f"{target!r} names no function after ':'; write FILE.py:FUNCTION")
    elif location.endswith(":"):
        raise JobFileError(f"{target} has too many colons; write {location.rstrip(':')}:{function}")
    file = absolute(location, base=cwd)
    is_module = (
        _MODULE_PATTERN.fullmatch(location) and not location.endswith(".py") and not os.path.exists(file)
    )
    if is_module:
        return _Target(
            location=location, function=function or None, file=_module_file(location, first), module=location
        )
    if os.path.isdir(file):
        raise JobFileError(f"{location or 'the empty path'} is a directory; give a .py file in it")
    if not os.path.exists(file):  # unlike Path.exists, takes a name that is too long
        siblings = os.listdir(file.parent) if os.path.isdir(file.parent) else []
        others = sorted(name for name in siblings if name.endswith(".py") and name != file.name)
        near = suggest(file.name, others)
        remedy = near if near.startswith("did") else "give path/to/file.py or package.module:function"
        if os.path.islink(file):
            missing = f"{location} is a link to {os.readlink(file)}, which does not exist"
        else:
            missing = f"there is no job file {location}"
        raise JobFileError(f"{missing}; {remedy}")
    if file.suffix not in (".py", SUFFIX):
        raise JobFileError(f"{location} is not a Python file; give a file that ends in .py or {SUFFIX}")
    if not os.path.isfile(file):  # to read a pipe would wait for whoever writes to it
        raise JobFileError(f"{location} is not a regular file; give a file that ends in .py or {SUFFIX}")
    if file.suffix == SUFFIX and function:
        raise JobFileError(f"{location} is a notebook, which runs as a whole; drop :{function}")
    return _Target(location=location, function=function or None, file=file)


def _locate_main(module: str, *, first: Path) -> _Target:
    """Finds what `python -m MODULE` runs."""
    if not _MODULE_PATTERN.fullmatch(module) or module.endswith(".py"):
        raise JobFileError(f"-m is given {module!r}, which is not a module name; write -m package.module")
    file = _module_file(module, first)
    if file.name == "__init__.py":
        file = file.with_name(_MAIN)
        if not file.exists():
            raise JobFileError(f"the package {module} has no {_MAIN}; give a module in it: -m {module}.NAME")
    return _Target(location=f"-m {module}", function=None, file=file, module=module, must_be_script=True)


def _module_file(module: str, first: Path) -> Path:
    """Finds a module's source without importing its packages, which `find_spec` alone would do."""
    importlib.invalidate_caches()
    top, *rest = module.split(".")
    spec: ModuleSpec | None = PathFinder.find_spec(top, [str(first)])
    try:
        spec = spec or importlib.util.find_spec(top)
    except ValueError:  # in sys.modules without a spec, as __main__ is
        spec = None
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            spec = None
            break
        # By its last name alone: Python would ask for the outer package, if that has no __init__.py.
        spec = PathFinder.find_spec(part, list(spec.submodule_search_locations))
    if spec is None:
        raise JobFileError(
            f"there is no module {module} in {first} or on sys.path; "
            "give path/to/file.py or package.module:function"
        )
    if spec.origin is None or not spec.origin.endswith(".py"):
        raise JobFileError(
            f"the module {module} has no Python source file; give a module with the train function"
        )
    return Path(spec.origin)


def _only_job(source: JobSource, location: str) -> str:
    names = list(source.jobs)
    if len(names) == 1:
        return names[0]
    choices = " or ".join(f"{location}:{name}" for name in names)
    raise JobFileError(f"{location} has {len(names)} jobs; say which: {choices}")


def _without_job(source: JobSource, location: str) -> str:
    remedy = "decorate its train function with @raydist.job"
    if source.functions:
        first = min(source.functions, key=lambda name: (name != "train", name in source.problems, name))
        remedy += f", or name one: {location}:{first}"
    return f"{location} has no job; {remedy}"


def _check_exists(function: str, source: JobSource, location: str) -> None:
    names = source.functions | source.other_names
    if function not in names and "*" not in names:
        choices = sorted(source.jobs) or sorted(source.functions)
        remedy = suggest(function, choices) if choices else "define it at the top level of the file"
        raise JobFileError(f"{location} has no function {function!r}; {remedy}")


def _literal_defaults(job: FoundJob | None, location: str) -> TypedOptions | None:
    """Returns the typed arguments, {} for an undecorated function, None where they are not literals."""
    if job is None:
        return TypedOptions({})
    lines: Mapping[str, str] = {name: f"{location}, line {line}" for name, line in job.lines.items()}
    if job.defaults is None:
        for name, where in lines.items():
            check_names([name], where=where)  # a wrong name needs no run of the file
        return None
    return typed_values(job.defaults, where=f"{location}, line {job.line}", lines=lines)


def _entry_point(found: _Target, function: str, *, asked: Path | None) -> tuple[EntryPoint, Path | None]:
    if found.module is not None:
        module = f"{found.module}.__main__" if found.file.name == _MAIN else found.module
        folder = module_working_dir(module, found.file, asked=asked)
        return EntryPoint(module=found.module, function=function), folder
    folder = asked or found.file.parent
    return EntryPoint(file=relative_to_working_dir(found.file, folder), function=function), folder
