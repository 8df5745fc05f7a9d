"""Installs packages into the virtual environments that tests make."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path


def install(python: str | os.PathLike[str], *what: str) -> None:
    """Installs into the environment of `python`, with uv where there is one, as it is faster."""
    if (uv := shutil.which("uv")) is not None:
        command = [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", python]
    else:
        command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, *what], check=True, timeout=1200)


def install_beside(folder: Path, requirements: Path) -> None:
    """Installs the packages of a file, and nothing that they depend on, into a folder for sys.path."""
    install(sys.executable, "--no-deps", "--target", str(folder), "-r", str(requirements))
