"""The options of a run, made from the one list in raydist.spec.settings.options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from raydist.errors import SpecError
from raydist.spec.duration import parse_duration
from raydist.spec.job import MODULE_FLAG
from raydist.spec.settings.option import Option, OptionKind
from raydist.spec.settings.options import OPTIONS, find_option

ARGS = find_option("args")  # see grouped_help.RunCommand
_STORAGE = find_option("storage")
_Function = TypeVar("_Function", bound=Callable[..., Any])

json_option = click.option(
    "--json", "is_json", is_flag=True, help="Print one JSON object to stdout, nothing else."
)


class DurationType(click.ParamType[float]):
    """A time that a command's own option takes, as the options of a run take it."""

    name = "duration"

    def __init__(self, parse: Callable[[str, object], float] = parse_duration) -> None:
        self._parse = parse

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        name = param.opts[0] if param else self.name
        seconds = self._parse(name, value)
        if seconds < 0:
            raise SpecError(f"{name} is {value}; need at least 0 seconds")
        return seconds


def count_option(
    flag: str,
    help: str,
    *,
    metavar: str = "N",
    minimum: int = 1,
    maximum: int | None = None,
    default: int | None = None,
    is_required: bool = False,
) -> Callable[[_Function], _Function]:
    """Adds a number to a command; None when it is not given and has no default."""
    shown: dict[str, Any] = {} if default is None else {"default": default, "show_default": True}
    return click.option(
        flag,
        metavar=metavar,
        type=click.IntRange(min=minimum, max=maximum),
        required=is_required,
        help=help,
        **shown,
    )


def timeout_option(default: str | None = None) -> Callable[[_Function], _Function]:
    """Adds `--timeout` to a command that waits: without limit when omitted where there is no default."""
    return click.option(
        "--timeout",
        "timeout_s",
        metavar="DURATION",
        type=DurationType(),
        default=default,
        show_default=default is not None,
        help="How long to wait: seconds, or 90s, 5m, 2h"
        + ("." if default is not None else "; without limit when omitted."),
    )


def storage_option(function: _Function) -> _Function:
    """Adds `--storage` to a command that reads runs."""
    metavar, default = _STORAGE.metavar, default_storage()
    return click.option("--storage", metavar=metavar, default=default, help=_STORAGE.help)(function)


def job_options(*, without: Iterable[str] = ()) -> Callable[[_Function], _Function]:
    """Adds `-p`, `-c` and every option of a run except those named; all are None, or empty, when not given.

    None is what tells "not given" from "given as its default": a config file stands in between.
    """
    left_out = set(without)

    def add(function: _Function) -> _Function:
        # What follows `--` is RunCommand's.
        written = [each for each in OPTIONS if each.kind not in (OptionKind.REST, OptionKind.MAPPING)]
        for option in reversed([option for option in written if option.name not in left_out]):
            function = _click_option(option)(function)
        function = click.option(
            "-c",
            "--config",
            metavar="FILE",
            type=click.Path(path_type=Path),
            help="YAML file with options and `params:`, such as those in cluster_configs/.",
        )(function)
        return click.option(
            "-p", "param_texts", metavar="KEY=VALUE", multiple=True, help="Param of the job; can be repeated."
        )(function)

    return add


module_option = click.option(
    "-m", "is_module", is_flag=True, help="JOB is a module to run as a script, as `python -m` runs it."
)


def target_of(job: str, *, is_module: bool) -> str:
    """Returns what was named, as `raydist.run` takes it."""
    return f"{MODULE_FLAG}{job}" if is_module else job


def given_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options that were given, as they were written."""
    return {option.name: values[option.name] for option in OPTIONS if _is_given(option, values)}


def _is_given(option: Option, values: Mapping[str, Any]) -> bool:
    value = values.get(option.name)
    return bool(value) if option.kind is OptionKind.REPEATED else value is not None


def with_words(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments with a value for each option that may be written without one.

    click would take whatever comes next for the value, the job in `submit --resume JOB`.
    """
    words = {option.flag: option.metavar for option in OPTIONS if option.kind is OptionKind.WORD}
    found: list[str] = []
    ahead = list(reversed(arguments))
    while ahead:
        argument = ahead.pop()
        if argument in words:
            is_followed = bool(ahead) and ahead[-1] == words[argument]
            argument = f"{argument}={ahead.pop() if is_followed else 'true'}"
        found.append(argument)
    return found


def default_storage() -> str:
    """Returns where runs are kept when nothing says otherwise."""
    return str(_STORAGE.default)


def _click_option(option: Option) -> Callable[[_Function], _Function]:
    if option.kind in (OptionKind.VALUE, OptionKind.REPEATED):
        is_repeated = option.kind is OptionKind.REPEATED
        return click.option(
            option.flag,
            option.name,
            metavar=option.metavar,
            multiple=is_repeated,
            default=None,
            help=option.help,
        )
    if option.kind is OptionKind.WORD:
        return click.option(
            option.flag, option.name, metavar=f"[{option.metavar}]", default=None, help=option.help
        )
    return click.option(option.flag, option.name, is_flag=True, default=None, help=option.help)
