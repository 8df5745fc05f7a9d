"""Virtual environments of the versions in sets.toml."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from raydist.known_versions import KNOWN, version_of
from tests.support.installing import has_uv, install

ROOT = Path(__file__).parents[2]
# What a test needs, also in an environment with fewer extras.
PYTEST = ("pytest>=8.2,<10", "pytest-timeout>=2.3,<3", "pytest-xdist>=3.6,<4", "hypothesis>=6.100,<7")
# The oldest Keras that a TensorFlow can be installed with.
KERAS_OF = {"2.21": "3.12"}
# Set inside of an environment: the name of its set.
VARIABLE = "RAYDIST_COMPAT"
SELECTED = os.environ.get(VARIABLE, "")


@dataclass(frozen=True, kw_only=True)
class VersionSet:
    """Versions that are tested together.

    Attributes:
      folder: The name of their environment, which sets that differ little take after one another.
      provides: Distributions that are not installed, since pins of another name have their modules.
    """

    name: str
    python: str
    pins: tuple[str, ...]
    folder: str
    provides: tuple[str, ...] = ()


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
        name: VersionSet(
            name=name,
            python=table["python"],
            pins=tuple(table["pins"]),
            folder=name,
            provides=tuple(table.get("provides", ())),
        )
        for name, table in tables.items()
    }


def minor_sets() -> dict[str, VersionSet]:
    """Returns a set for each minor version of Ray, which takes its turn at those of TensorFlow and Keras.

    They are those that raydist knows, so a new one joins by itself.
    """
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    tensorflows, kerases = itertools.cycle(_minors("tensorflow")), itertools.cycle(_minors("keras"))
    sets = {}
    for ray, tensorflow, keras in zip(_minors("ray"), tensorflows, kerases, strict=False):
        needed = version_of(KERAS_OF.get(tensorflow, "0.0"))
        pins = (
            *(f"ray[data]=={ray}.*", f"tensorflow=={tensorflow}.*", f"tf_keras=={tensorflow}.*"),
            f"keras=={keras}.*" if version_of(keras) >= needed else f"keras=={KERAS_OF[tensorflow]}.*",
        )
        # The bytecode of a TensorFlow takes longer to compile than all else.
        folder = f"tensorflow-{tensorflow}"
        sets[f"ray-{ray}"] = VersionSet(name=f"ray-{ray}", python=python, pins=pins, folder=folder)
    return sets


def _minors(library: str) -> list[str]:
    known = KNOWN[library]
    (major, oldest), (_, newest) = version_of(known.oldest), version_of(known.newest)
    return [f"{major}.{minor}" for minor in range(oldest, newest + 1)]


def is_chosen(name: str, asked: Sequence[str]) -> bool:
    """Whether `--compat` names a set: `oldest`, `ray-2.53`, `minors`, `minors:2/5` (a part), or `all`.

    `all` is all but `next`.
    """
    if name in asked or ("all" in asked and name != "next"):
        return True
    minors = [*minor_sets()]
    for one in asked:
        kind, _, part = one.partition(":")
        number, _, total = (part or "1/1").partition("/")
        if kind == "minors" and name in minors[int(number) - 1 :: int(total)]:
            return True
    return False


def make_environment(versions: VersionSet, folder: Path, *, extra: str = "test") -> Path:
    """Returns the Python of a virtual environment that has a set and raydist; makes it unless it is there.

    Args:
      folder: Where it is, or shall be, or where an environment is that gets this set. Takes 3 GB.
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
    if not python.exists():
        subprocess.run([base, "-m", "venv", *(["--without-pip"] if has_uv() else []), folder], check=True)
    install(
        python,
        *versions.pins,
        *("-e", f"{ROOT}[{extra}]", *PYTEST),
        is_compiled=extra == "test",
        left_out=versions.provides,
    )
    marker.write_text(wanted)
    return python


def environment_variables(versions: VersionSet) -> dict[str, str]:
    """Returns the variables of a process in an environment."""
    left_out = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "RAY_ADDRESS", "TF_CONFIG")
    return {
        **{name: value for name, value in os.environ.items() if name not in left_out},
        VARIABLE: versions.name,
    }
