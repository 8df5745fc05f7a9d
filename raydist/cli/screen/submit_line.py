"""The `raydist submit` command that asks for given options and params."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from raydist.errors import SpecError
from raydist.spec.job import MODULE_FLAG
from raydist.spec.params import number_text
from raydist.spec.quantities import write_age
from raydist.spec.settings.option import Option, OptionKind
from raydist.spec.settings.options import OPTIONS, PARAMS

# Kept as seconds, and read with a unit only.
_AGES = ("keep_runs",)
# The command line's words for None.
_NONE_WORDS = ("none", "auto", "any", "all")


def submit_line(job: str, settings: Mapping[str, Any], *, defaults: Mapping[str, Any]) -> str:
    """Returns the command, in which what the job or raydist has by default is left out.

    Args:
      settings: Options as run.json keeps them, and `params`.
      defaults: The job's own, typed, `params` included.
    """
    target = ["-m", job.removeprefix(MODULE_FLAG)] if job.startswith(MODULE_FLAG) else [job]
    words = ["raydist", "submit", *target]
    for option in OPTIONS:
        value = settings.get(option.name)
        default = defaults.get(option.name, option.default)
        if (
            option.name in settings
            and option.kind not in (OptionKind.REST, OptionKind.MAPPING)
            and _plain(value) != _plain(default)
        ):
            words += _written(option, value)
    own = defaults.get(PARAMS, {})
    for name, value in settings.get(PARAMS, {}).items():
        if name not in own or own[name] != value:
            words += ["-p", f"{name}={_param_text(value, own.get(name))}"]
    arguments = settings.get("args") or ()
    return shlex.join([*words, *(["--", *arguments] if arguments else [])])


def _plain(value: Any) -> str | None:
    return None if value is None else str(getattr(value, "value", value))


def _written(option: Option, value: Any) -> list[str]:
    on, _, off = option.flag.partition("/")
    if option.kind is OptionKind.WORD and value == option.metavar:
        return [on, value]
    if option.kind is OptionKind.REPEATED:
        if not value:
            return [on, "none"] if option.parse(("none",)) == {} else []
        return [word for key, text in value.items() for word in (on, f"{key}={text}")]
    if option.kind is not OptionKind.VALUE:
        return [on] if value else [off]
    if value is None:  # each option that a job may set, and a person may unset, has a word for it
        word = next((word for word in _NONE_WORDS if _reads_as_none(option, word)), None)
        return [] if word is None else [on, word]
    return [on, _option_text(option, value)]


def _option_text(option: Option, value: Any) -> str:
    if option.name in _AGES:
        return write_age(value)
    return json.dumps(value) if isinstance(value, Mapping) else str(value)


def _reads_as_none(option: Option, word: str) -> bool:
    try:
        return option.parse(word) is None
    except SpecError:
        return False


def _param_text(value: Any, default: Any) -> str:
    """Returns what `-p` reads as `value`: text as it is where the default is text, else YAML."""
    return value if isinstance(value, str) and isinstance(default, str) else _yaml(value)


def _yaml(value: Any) -> str:
    """Returns `value` on one line of YAML 1.2: as JSON, and with `.inf` and `.nan`."""
    match value:
        case float():
            return number_text(value) or json.dumps(value)
        case Mapping():
            pairs = (f"{_yaml(key)}: {_yaml(item)}" for key, item in value.items())
            return "{" + ", ".join(pairs) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(_yaml, value)) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False)
