"""From `path/to/file.py[:function]`, `package.module[:function]` or `-m package.module` to a definition."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from raydist.errors import JobFileError
from raydist.spec.definition import JobDefinition, TypedOptions
from raydist.spec.entry.job_probe import probe_defaults
from raydist.spec.entry.job_source import FoundJob, JobSource, read_notebook, read_source
from raydist.spec.entry.keras2_source import legacy_reason
from raydist.spec.entry.notebook import SUFFIX
from raydist.spec.entry.working_dir import (
    absolute,
    existing_folder,
    module_working_dir,
    relative_to_working_dir,
)
from raydist.spec.job import MODULE_FLAG, EntryPoint
from raydist.spec.near import suggest
from raydist.spec.settings.options import check_names
from raydist.spec.settings.typed import typed_values

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
    try:
        content = found.file.read_bytes()
    except OSError as error:
        raise JobFileError(
            f"{found.location} cannot be read: {error.strerror}; give a readable .py file"
        ) from error
    source = (read_notebook if found.is_notebook else read_source)(content, shown=found.location)
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
        legacy_keras_reason=_legacy_reason(found, source, folder),
        where=where,
    )


def _define_script(found: _Target, source: JobSource, *, asked: Path | None) -> JobDefinition:
    entry_point, folder = _entry_point(found, "", asked=asked)
    name = found.file.parent.name if found.file.name == _MAIN else found.file.stem
    return JobDefinition(
        name=name,
        entry_point=entry_point,
        working_dir=folder,
        legacy_keras_reason=_legacy_reason(found, source, folder),
        where=found.location,
    )


def _legacy_reason(found: _Target, source: JobSource, folder: Path | None) -> str | None:
    """Returns why the job needs Keras 2. A script finds modules beside it, too."""
    roots = [] if folder is None else list(dict.fromkeys((found.file.parent, folder)))
    return legacy_reason(source.parts, file=found.file, roots=roots)


def _locate(target: str, *, cwd: Path, first: Path) -> _Target:
    if target.startswith(MODULE_FLAG):
        return _locate_main(target.removeprefix(MODULE_FLAG).strip(), first=first)
    location, colon, function = target.rpartition(":")
    if not colon or "/" in function or function.endswith(".py"):
        location, function = target, ""
    elif not function.isidentifier():
        raise JobFileError(f"{target!r} names no function after ':'; write FILE.py:FUNCTION")
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
        raise JobFileError(f"{location} is no Python file; give a file that ends in .py or {SUFFIX}")
    if not os.path.isfile(file):  # to read a pipe would wait for whoever writes to it
        raise JobFileError(f"{location} is no regular file; give a file that ends in .py or {SUFFIX}")
    if file.suffix == SUFFIX and function:
        raise JobFileError(f"{location} is a notebook, which runs as a whole; drop :{function}")
    return _Target(location=location, function=function or None, file=file)


def _locate_main(module: str, *, first: Path) -> _Target:
    """Finds what `python -m MODULE` runs."""
    if not _MODULE_PATTERN.fullmatch(module) or module.endswith(".py"):
        raise JobFileError(f"-m is given {module!r}, which is no module's name; write -m package.module")
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
    name = top
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            break
        name = f"{name}.{part}"
        spec = PathFinder.find_spec(name, list(spec.submodule_search_locations))
    if spec is None or name != module:
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
        remedy += f", or name one: {location}:{sorted(source.functions)[0]}"
    return f"{location} has no job; {remedy}"


def _check_exists(function: str, source: JobSource, location: str) -> None:
    names = source.functions | source.other_names
    if function not in names and "*" not in names:
        choices = sorted(source.jobs) or sorted(source.functions)
        remedy = suggest(function, choices) if choices else "define it at the top level of the file"
        raise JobFileError(f"{location} has no function {function!r}; {remedy}")


def _literal_defaults(job: FoundJob | None, location: str) -> TypedOptions | None:
    """Returns the typed arguments, {} for an undecorated function, None where they are no literals."""
    if job is None:
        return TypedOptions({})
    lines: Mapping[str, str] = {name: f"{location}, line {line}" for name, line in job.lines.items()}
    for name, where in lines.items():
        check_names([name], where=where)  # a wrong name needs no run of the file
    if job.defaults is None:
        return None
    return typed_values(job.defaults, where=f"{location}, line {job.line}", lines=lines)


def _entry_point(found: _Target, function: str, *, asked: Path | None) -> tuple[EntryPoint, Path | None]:
    if found.module is not None:
        module = f"{found.module}.__main__" if found.file.name == _MAIN else found.module
        folder = module_working_dir(module, found.file, asked=asked)
        return EntryPoint(module=found.module, function=function), folder
    folder = asked or found.file.parent
    return EntryPoint(file=relative_to_working_dir(found.file, folder), function=function), folder
