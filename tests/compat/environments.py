"""Virtual environments of the versions in sets.toml."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from tests.support.installing import install

ROOT = Path(__file__).parents[2]
# Set inside of an environment: the name of its set.
VARIABLE = "RAYDIST_COMPAT"
SELECTED = os.environ.get(VARIABLE, "")


@dataclass(frozen=True, kw_only=True)
class VersionSet:
    """Versions that are tested together."""

    name: str
    python: str
    pins: tuple[str, ...]


def find_python(version: str) -> str | None:
    """Returns the interpreter of PATH, pyenv or uv for a version such as 3.13; None where there is none."""
    managed = Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or Path.home() / ".local/share/uv/python")
    candidates = [
        *filter(Path.is_file, (Path(folder, f"python{version}") for folder in os.get_exec_path())),
        *sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"), reverse=True),
        *sorted(managed.glob(f"cpython-{version}.*/bin/python{version}"), reverse=True),
    ]
    return next((str(path) for path in candidates if _is_right(path, version)), None)


def _is_right(python: str | Path, version: str) -> bool:
    # A shim of pyenv is there for each version, and fails for those that are not chosen.
    command = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() == version


def version_sets() -> dict[str, VersionSet]:
    """Returns the sets of sets.toml by name, the oldest first."""
    tables = tomllib.loads((ROOT / "tests" / "compat" / "sets.toml").read_text())
    return {
        name: VersionSet(name=name, python=table["python"], pins=tuple(table["pins"]))
        for name, table in tables.items()
    }


def make_environment(versions: VersionSet, folder: Path) -> Path:
    """Returns the Python of a virtual environment that has a set and raydist; makes it unless it is there.

    Args:
      folder: Where it is, or shall be. Takes 3 GB.
    """
    python, marker = folder / "bin" / "python", folder / "raydist-compat.txt"
    wanted = "\n".join([str(ROOT), *versions.pins])
    if marker.exists() and marker.read_text() == wanted:
        return python
    base = find_python(versions.python)
    assert base is not None, (
        f"no Python {versions.python} for the set {versions.name}: it is neither on PATH nor in pyenv or uv; "
        f"install it, for example with `uv python install {versions.python}`"
    )
    subprocess.run([base, "-m", "venv", folder], check=True)
    install(python, *versions.pins, "-e", f"{ROOT}[test]")
    marker.write_text(wanted)
    return python


def environment_variables(versions: VersionSet) -> dict[str, str]:
    """Returns the variables of a process in an environment."""
    left_out = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "RAY_ADDRESS", "TF_CONFIG")
    return {
        **{name: value for name, value in os.environ.items() if name not in left_out},
        VARIABLE: versions.name,
    }
