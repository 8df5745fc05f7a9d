"""Environment variables of tasks: how they are written, and which ones raydist sets itself."""

from __future__ import annotations

import re
from collections.abc import Mapping

from raydist.errors import SpecError

Variables = dict[str, str | None]
"""Variable to value; None is the value that the variable has where the run is started."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# What each task gets by its place in the run, the value that does no harm, and the option that decides.
_OWN: Mapping[str, tuple[str | None, str]] = {
    "TF_CONFIG": (None, "raydist makes it from the tasks' addresses; drop it"),
    "TF_USE_LEGACY_KERAS": (None, "use --keras legacy or --keras 3 instead"),
    "KERAS_BACKEND": ("tensorflow", "raydist trains with TensorFlow only; drop it"),
    "CUDA_VISIBLE_DEVICES": (None, "Ray gives each task its GPUs; use --gpus instead"),
    "TF_GRPC_REUSE_PORT": ("true", "TensorFlow's servers cannot start without it; drop it"),
    "GRPC_FAIL_FAST": (None, "calls to a dead task would wait for ever; drop it"),
}
# Read when a process starts, or when a library is loaded that Ray's workers have loaded already.
_AT_START = re.compile(r"LD_.*|PYTHON.*|MALLOC_.*|GLIBC_TUNABLES|TZ|LANG|LC_.*|[A-Z]+_NUM_THREADS")


def parse_variables(name: str, value: object) -> Variables:
    """Returns variables that were written as a mapping, or as a list of `KEY=VALUE` and `KEY`.

    Args:
      name: The option, for messages. They never repeat a value, which may be a secret.

    Raises:
      SpecError: It is neither, or a name or value that cannot be set.
    """
    if isinstance(value, Mapping):
        pairs = list(value.items())
    elif isinstance(value, list | tuple):
        pairs = [_pair(name, item) for item in value]
    else:
        raise SpecError(
            f"{name} is not a mapping; write KEY=VALUE, in a config file `{name}: {{KEY: VALUE}}`"
        )
    return {key: _checked(name, key, text) for key, text in pairs}


def check_variable(name: str, key: object, text: str | None) -> None:
    """Raises SpecError for what cannot be set, or only by raydist."""
    if not isinstance(key, str) or not _NAME.fullmatch(key):
        raise SpecError(f"{name} has the variable {key!r}; use letters, digits and '_', no digit first")
    harmless, remedy = _OWN.get(key, (text, ""))
    if text != harmless:
        raise SpecError(f"{name} sets {key}; {remedy}")
    if text is not None and "\0" in text:
        raise SpecError(f"{name} sets {key} to text with a NUL character, which no variable can hold")


def at_start(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns those that a process has to have when it starts; a later change has no effect on it."""
    return {name: value for name, value in variables.items() if _AT_START.fullmatch(name)}


def with_own_values(
    name: str, variables: Mapping[str, str | None], environ: Mapping[str, str]
) -> dict[str, str]:
    """Returns the variables, those that are None with their value in `environ`.

    Raises:
      SpecError: `environ` has no such variable.
    """
    missing = [key for key, text in variables.items() if text is None and key not in environ]
    if missing:
        raise SpecError(
            f"{name} names {', '.join(missing)} without a value, and it is not set here; "
            f"write --env {missing[0]}=VALUE, or export it first"
        )
    return {key: environ[key] if text is None else text for key, text in variables.items()}


def _pair(name: str, item: object) -> tuple[str, str | None]:
    if not isinstance(item, str):
        raise SpecError(f"{name} has a {type(item).__name__} in its list; write text such as 'KEY=VALUE'")
    key, equals, text = item.partition("=")
    return key, text if equals else None


def _checked(name: str, key: object, value: object) -> str | None:
    # YAML makes numbers of `3`; of `true` nobody knows how the program wants it written.
    if value is not None and (isinstance(value, bool) or not isinstance(value, str | int | float)):
        raise SpecError(f"{name}.{key} is of type {type(value).__name__}; write text, in quotes")
    text = None if value is None else str(value)
    check_variable(name, key, text)
    return text
