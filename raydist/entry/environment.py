"""The environment of tasks: their variables, files of them, and Ray's runtime environment."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from raydist.errors import SpecError
from raydist.spec.text import suggest
from raydist.spec.variables import Variables, check_variable, parse_variables, with_own_values

_LINE = re.compile(
    r"""\s*(?:export\s+)?(?P<key>[^\s=]+)\s*
    (?:=\s*(?:'(?P<single>[^']*)'|"(?P<double>(?:[^"\\]|\\.)*)"|(?P<bare>.*?))\s*(?:(?<=\s)\#.*)?)?""",
    re.VERBOSE,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


def read_env_file(path: Path) -> Variables:
    """Returns the variables of a file.

    Empty lines and those that begin with `#` are passed over, `export` before a name too. Text in single
    quotes is taken as it is; in double quotes `\\n`, `\\t` and `\\"` are read. A name alone has None.

    Raises:
      SpecError: Names the file and the line, and never repeats a value.
    """
    text = read_text(path, what=f"env_file {path}", remedy="give a file of KEY=VALUE lines")
    variables: Variables = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        where = f"{path}, line {number}: env_file"
        match = _LINE.fullmatch(line)
        if match is None:
            raise SpecError(f"{where} has a line that is not KEY=VALUE; fix it there")
        variables[match["key"]] = _value(match)
        check_variable(where, match["key"], variables[match["key"]])
    return variables


def _value(match: re.Match[str]) -> str | None:
    if match["double"] is not None:
        return re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[1]), match["double"])
    return match["single"] if match["single"] is not None else match["bare"]


ENV, ENV_FILE, RUNTIME_ENV = "env", "env_file", "runtime_env"
_ENV_VARS = "env_vars"
_TAKEN = (
    *("pip", "uv", "conda", "image_uri", "container", "py_executable", "worker_process_setup_hook"),
    *("nsight", "rocprof_sys", "mpi", "config", _ENV_VARS),
)
_CODE = ("working_dir", "py_modules", "excludes")


def environment_of(
    layers: Sequence[Mapping[str, Any]], environ: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, Any] | None]:
    """Returns the variables and the runtime environment of the tasks; reads the files that are named.

    The highest layer that has a variable decides. Within a layer `env` comes before the file, and the file
    before the `env_vars` of the runtime environment.

    Args:
      layers: Typed options, the lowest first.
      environ: Where the run is started.

    Raises:
      SpecError: A file cannot be read, a variable that is to be passed on is not set, or raydist cannot have
        what is asked for.
    """
    file, runtime = _highest(layers, ENV_FILE), _highest(layers, RUNTIME_ENV)
    runtime_env = None if runtime is None or runtime[RUNTIME_ENV] is None else _read(runtime[RUNTIME_ENV])
    variables: Variables = {}
    for layer in layers:
        if layer is runtime and runtime_env is not None:
            variables.update(parse_variables(f"{RUNTIME_ENV}.{_ENV_VARS}", runtime_env.pop(_ENV_VARS, {})))
        if layer is file and file[ENV_FILE] is not None:
            variables.update(read_env_file(Path(file[ENV_FILE]).expanduser()))
        variables.update(layer.get(ENV, {}))
    return with_own_values(ENV, variables, environ), runtime_env or None


def variable_names(layers: Iterable[Mapping[str, Any]]) -> set[str]:
    """Returns the names of the variables that options, typed or as they are written, give.

    Reads an `env_file`.
    """
    names: set[str] = set()
    for layer in layers:
        names.update(parse_variables(ENV, layer.get(ENV, {})))
        if layer.get(ENV_FILE) not in (None, "none"):
            names.update(read_env_file(Path(layer[ENV_FILE]).expanduser()))
    return names


def _highest(layers: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any] | None:
    return next((layer for layer in reversed(layers) if name in layer), None)


def _read(written: str | Mapping[str, Any]) -> dict[str, Any]:
    """Returns Ray's runtime environment, with the content of the files that it names."""
    found = _parse(written) if isinstance(written, str) else written
    for key in found:
        if key in _CODE:
            raise SpecError(
                f"{RUNTIME_ENV} has {key}, but raydist itself brings the code to the tasks; "
                "drop it and use --working-dir"
            )
        if key not in _TAKEN:
            raise SpecError(f"{RUNTIME_ENV} has the key {key!r}; {suggest(str(key), _TAKEN)}")
    # Ray would look for these files on the host of a detached run's controller.
    return {key: _READERS[key](key, value) if key in _READERS else value for key, value in found.items()}


def _parse(written: str) -> Mapping[str, Any]:
    import yaml  # here, because `import raydist` must stay quick

    from raydist.spec.yaml12 import parse_yaml

    is_inline = written.lstrip().startswith("{")
    shown = RUNTIME_ENV if is_inline else f"the {RUNTIME_ENV} {written}"
    try:
        found = parse_yaml(written if is_inline else _text_of(RUNTIME_ENV, written))
    except (yaml.YAMLError, RecursionError) as error:
        raise SpecError(f"{shown} is not YAML; write lines such as `pip: [einops]`") from error
    if not isinstance(found, Mapping):
        raise SpecError(f"{shown} holds no mapping; write lines such as `pip: [einops]`")
    return found


def _packages(key: str, value: Any) -> Any:
    """Takes a list, the name of a requirements file, or a mapping with either as `packages`."""
    if isinstance(value, str):
        lines = (line.strip() for line in _text_of(f"{RUNTIME_ENV}.{key}", value).splitlines())
        return [line for line in lines if line and not line.startswith("#")]
    if isinstance(value, Mapping) and isinstance(value.get("packages"), str):
        return {**value, "packages": _packages(key, value["packages"])}
    return value


def _conda(key: str, value: Any) -> Any:
    """Takes the name of an environment, what its file would hold, or the name of that file."""
    is_file = isinstance(value, str) and value.endswith((".yaml", ".yml"))
    return _parse(value) if is_file else value


_READERS = {"pip": _packages, "uv": _packages, "conda": _conda}


def _text_of(name: str, file: str) -> str:
    remedy = "give a text file that is there"
    return read_text(Path(file).expanduser(), what=f"file {file} of {name}", remedy=remedy)


def read_text(path: Path, *, what: str, remedy: str) -> str:
    """Returns the text of a file that the user names; raises SpecError where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError(f"cannot read the {what}: {error.strerror}; {remedy}") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"the {what} is not UTF-8 text; {remedy}") from error
