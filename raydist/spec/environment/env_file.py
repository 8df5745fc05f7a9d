"""Files of `KEY=VALUE` lines, as Docker and python-dotenv read them."""

from __future__ import annotations

import re
from pathlib import Path

from raydist.errors import SpecError
from raydist.spec.environment.variables import Variables, check_variable

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
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise SpecError(
            f"cannot read the env_file {path}: {error.strerror}; give a file of KEY=VALUE lines"
        ) from error
    except UnicodeDecodeError as error:
        raise SpecError(f"the env_file {path} is not UTF-8 text; give a file of KEY=VALUE lines") from error
    variables: Variables = {}
    for number, line in enumerate(lines, start=1):
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
