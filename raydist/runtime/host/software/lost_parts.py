"""What raydist cannot do with the installed Ray and TensorFlow: they lack private parts that it uses."""

from __future__ import annotations

from importlib import metadata

from raydist.known_versions import KNOWN, version_of
from raydist.runtime.host.software.fresh_process import FreshProcessError, answer_of

# Whose module tells.
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
    try:
        sentences: list[str] = answer_of(_CODE.format(module=module), environ={"CUDA_VISIBLE_DEVICES": "-1"})
    except FreshProcessError as error:
        return [f"{library} cannot be used: {error}"]
    return sentences
