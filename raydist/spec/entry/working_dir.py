"""Which folder travels with a run, so that its job file or module can be imported in every task."""

from __future__ import annotations

import os
from pathlib import Path

from raydist.errors import SpecError

_INSTALLED = {"site-packages", "dist-packages"}


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
    if _INSTALLED & set(file.resolve().parts):
        return asked
    num_levels = module.count(".") + (1 if file.name == "__init__.py" else 0)
    root = file.parents[num_levels]
    if asked is not None and asked.resolve() != root.resolve():
        raise SpecError(
            f"working_dir is {str(asked)!r}, but the module {module} lies in {root}; give that folder"
        )
    return root
