"""What the self-check of an environment found, kept for the user's later tasks on this host."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from raydist import private_folders
from raydist.known_versions import installed_version

logger = logging.getLogger(__name__)

_MODULE = "raydist.training.self_check.behaviour"
# Less than an attempt has for its start, unless --start-timeout says otherwise.
TIMEOUT_S = 240.0
_DISTRIBUTIONS = ("raydist", "tensorflow", "keras", "tf_keras", "numpy", "protobuf")
# Of a task, which the check is none of.
_FOREIGN = ("TF_CONFIG", "RAY_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR")


def problem_of(library: ModuleType, reason: str, *, timeout_s: float = TIMEOUT_S) -> str | None:
    """Returns what the patches do not bring about with this library, or None; checks it once.

    The check is a process of some 20 s. Of several tasks on a host one runs it, and the others wait.

    Args:
      library: `keras` or `tf_keras`, imported.
      reason: Why it has to be checked; for the log.
    """
    folder = cache_folder()
    if folder is None:
        return _describe(_run(library.__name__, reason, timeout_s))
    path = folder / f"{library.__name__}-{_environment_key(library)}.json"
    with private_folders.locked(path.with_suffix(".lock")):
        failed = _read(path)
        if failed is None:
            failed = _run(library.__name__, reason, timeout_s)
            if None not in failed.values():
                private_folders.write_text(path, json.dumps(failed))
    return _describe(failed)


def cache_folder() -> Path | None:
    """Returns the folder of verdicts, which this user alone can write; None where there can be none."""
    try:
        return private_folders.cache_folder("self-check")
    except OSError as error:
        logger.warning("the self-check's result is not kept: %s", error)
        return None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(private_folders.read_text(path))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _environment_key(library: ModuleType) -> str:
    versions = [f"{name} {installed_version(name)}" for name in _DISTRIBUTIONS]
    # A home may be shared by hosts, and by environments that differ in more than versions.
    where = [platform.node(), platform.machine(), platform.python_version(), sys.prefix]
    sources = [_stamp(Path(__file__).parents[1]), _stamp(Path(str(library.__file__)).parent)]
    text = "\n".join([*versions, *where, str(library.__version__), *sources])
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _stamp(folder: Path) -> str:
    """Returns what changes when a source below the folder does: somebody may work on either."""
    found = ((path, path.stat()) for path in sorted(folder.rglob("*.py")))
    return "\n".join(f"{path} {status.st_size} {status.st_mtime_ns}" for path, status in found)


def _run(library: str, reason: str, timeout_s: float) -> dict[str, str | None]:
    """Returns what failed, by check; None instead of a sentence where the check itself could not be made."""
    logger.warning("%s; raydist checks with a tiny model whether its patches work, once on this host", reason)
    with tempfile.TemporaryDirectory(prefix="raydist-self-check-") as folder:
        environ = {name: value for name, value in os.environ.items() if name not in _FOREIGN} | {
            "CUDA_VISIBLE_DEVICES": "-1",
            "KERAS_BACKEND": "tensorflow",
            "TF_USE_LEGACY_KERAS": "1" if library == "tf_keras" else "0",
            "TF_CPP_MIN_LOG_LEVEL": "2",
            # The very libraries of this process, however it found them.
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        command = [sys.executable, "-m", _MODULE, library, folder]
        try:
            done = subprocess.run(
                command,
                env=environ,
                cwd=folder,
                timeout=timeout_s,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {f"the check was not done after {timeout_s:g} s": None}
        failed = _read(Path(folder, "failed.json"))
    if failed is None:
        last = (done.stdout.strip().splitlines() or [""])[-1]
        return {f"the check's process ended with code {done.returncode}: {last}": None}
    return failed


def _describe(failed: dict[str, str | None]) -> str | None:
    sentences = [name if problem is None else f"{name} ({problem})" for name, problem in failed.items()]
    return "; ".join(sentences) or None
