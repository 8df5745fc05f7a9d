"""Installs packages into the virtual environments that tests make."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path


def has_uv() -> bool:
    return shutil.which("uv") is not None


def install(
    python: str | os.PathLike[str], *what: str, is_compiled: bool = True, left_out: Sequence[str] = ()
) -> None:
    """Installs into the environment of `python`, with uv where there is one, as it is faster.

    Args:
      is_compiled: Whether all bytecode is written now, and not that of what is imported, when it is.
      left_out: Distributions that are not installed, although others require them; needs uv.
    """
    if (uv := shutil.which("uv")) is not None:
        command = [uv, "pip", "install", "--quiet", "--python", python]
        command += ["--compile-bytecode"] if is_compiled else []
    else:
        assert not left_out, "pip cannot leave out what is required; install uv"
        command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        command += [] if is_compiled else ["--no-compile"]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as overrides:
        overrides.writelines(f"{one}; sys_platform == 'none'\n" for one in left_out)
        overrides.flush()
        command += ["--override", overrides.name] if left_out else []
        subprocess.run([*command, *what], check=True, timeout=1200)


def install_beside(folder: Path, requirements: Path) -> None:
    """Installs the packages of a file, and nothing that they depend on, into a folder for sys.path."""
    install(sys.executable, "--no-deps", "--target", str(folder), "-r", str(requirements))
