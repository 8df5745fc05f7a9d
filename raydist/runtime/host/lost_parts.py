"""What raydist cannot do with the installed Ray and TensorFlow: they lack private parts that it uses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata

from raydist.known_versions import KNOWN, version_of

_TIMEOUT_S = 120.0
# Whose module tells; imported in a process of its own, since TensorFlow takes seconds and stays.
_MODULES = {"ray": "raydist.runtime.cluster.ray_internals", "tensorflow": "raydist.training.tf_private"}
_CODE = "import json; from {module} import missing_parts; print(); print(json.dumps(missing_parts()))"


def lost_parts() -> list[str]:
    """Returns a sentence for each part that is missing. The newest known versions have all, unasked."""
    found = []
    for library, module in _MODULES.items():
        version = _version(library)
        if version is not None and version_of(version) != version_of(KNOWN[library].newest):
            found += _missing_parts(library, module)
    return found


def _version(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None


def _missing_parts(library: str, module: str) -> list[str]:
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    command = [sys.executable, "-c", _CODE.format(module=module)]
    try:
        done = subprocess.run(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return [f"{library} was not imported after {_TIMEOUT_S:g} s"]
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return [f"{library} cannot be used: {last}"]
    sentences: list[str] = json.loads(done.stdout.splitlines()[-1])
    return sentences
