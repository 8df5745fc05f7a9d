"""The options of a run, made from the one list in raydist.spec.settings.options, and their help in groups."""

from __future__ import annotations

import functools
import logging
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from raydist.errors import MistakeError, SpecError
from raydist.spec.job import MODULE_FLAG
from raydist.spec.params import ParamTexts
from raydist.spec.quantities import parse_duration
from raydist.spec.secrecy import redact_arguments
from raydist.spec.settings.option import Option, OptionKind
from raydist.spec.settings.options import GROUPS, OPTIONS, find_option
from raydist.spec.settings.removed import removed_option, words_of_roles
from raydist.spec.settings.roles import RESOURCES, settings_of
from raydist.spec.text import suggest

logger = logging.getLogger(__name__)

ARGS = find_option("args")  # see RunCommand
_STORAGE, _ADDRESS = find_option("storage"), find_option("address")
_Function = TypeVar("_Function", bound=Callable[..., Any])
_Result = TypeVar("_Result")

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


def address_option(text: str = _ADDRESS.help) -> Callable[[_Function], _Function]:
    """Adds `--address` to a command of its own: what Ray it is, and which one when omitted."""
    return click.option("--address", metavar=_ADDRESS.metavar, help=text)


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


def reading_options(function: _Function) -> _Function:
    """Adds `--storage` and `--json` to a command that reads runs."""
    metavar, default = _STORAGE.metavar, default_storage()
    stored = click.option("--storage", metavar=metavar, default=default, help=_STORAGE.help)
    return stored(json_option(function))


def job_options(*, without: Iterable[str] = ()) -> Callable[[_Function], _Function]:
    """Adds `-p`, `-c` and every option of a run except those named; all are None, or empty, when not given.

    None is what tells "not given" from "given as its default": a config file stands in between.
    """
    left_out = set(without)

    def add(function: _Function) -> _Function:
        # What follows `--` is RunCommand's.
        written = [each for each in OPTIONS if each.kind not in (OptionKind.REST, OptionKind.MAPPING)]
        for option in reversed([option for option in written if option.name not in left_out]):
            for one in _click_options(option):
                function = one(function)
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


@dataclass(frozen=True, kw_only=True)
class AskedJob:
    """A job as a command line names it, and what is given for its run.

    Attributes:
      target: As `raydist.run` takes it.
      options: Those that were given, as they were written.
    """

    target: str
    config: Path | None
    params: ParamTexts
    options: Mapping[str, Any]

    def given(self, **own: Any) -> dict[str, Any]:
        """Returns what `raydist.run` takes beside the job, with options of its own above those given."""
        return {"config": self.config, "params": self.params, **self.options, **own}


_module_option = click.option(
    "-m", "is_module", is_flag=True, help="JOB is a module to run as a script, as `python -m` runs it."
)


def takes_job(*, without: Iterable[str] = ()) -> Callable[[Callable[..., _Result]], Callable[..., _Result]]:
    """Gives a command an `AskedJob`, made of JOB, `-m` and what `job_options` adds."""
    of_runs = {"config", "param_texts", *AMOUNTS, *(option.name for option in OPTIONS)}

    def add(command: Callable[..., _Result]) -> Callable[..., _Result]:
        @functools.wraps(command)
        def function(job: str, is_module: bool, **given: Any) -> _Result:
            asked = AskedJob(
                target=f"{MODULE_FLAG}{job}" if is_module else job,
                config=given["config"],
                params=ParamTexts.parse(given["param_texts"]),
                options=given_options(given),
            )
            return command(asked, **{name: given[name] for name in given.keys() - of_runs})

        options = _module_option(job_options(without=without)(function))
        return click.argument("job", metavar="JOB")(options)

    return add


def given_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options that were given, as they were written."""
    given = {option.name: values[option.name] for option in OPTIONS if _is_given(option, values)}
    texts = {amount: values[amount] for amount in AMOUNTS if values.get(amount)}
    return {**given, RESOURCES: settings_of(texts)} if texts else given


def _is_given(option: Option, values: Mapping[str, Any]) -> bool:
    value = values.get(option.name)
    if option.kind is OptionKind.AMOUNTS:  # the texts of a flag that has its name
        return False
    return bool(value) if option.kind is OptionKind.REPEATED else value is not None


def with_words(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments with a value for each option that may be written without one.

    click would take the next word for the value, the job in `submit --resume JOB`.
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


# The flags of what each role's tasks ask for, with their help.
AMOUNTS: Mapping[str, tuple[str, str]] = {
    "cpus": (
        "[ROLE=]N",
        "Logical CPUs of each task of a role, such as worker=4. A number alone is for chief, workers, ps and "
        "evaluator. Can be repeated. [default: 1]",
    ),
    "gpus": (
        "[ROLE=]N",
        "GPUs of each worker, chosen by what the hosts have when omitted or auto; evaluator=1 gives the "
        "evaluator one. Can be repeated.",
    ),
    "memory": (
        "[ROLE=]SIZE",
        "Memory that each task of a role reserves, such as worker=8GiB; none when omitted. Can be repeated.",
    ),
    RESOURCES: (
        "[ROLE=]KEY:N",
        "Custom Ray resource that each task of a role reserves, such as worker=ssd:1. Can be repeated.",
    ),
}


def _click_options(option: Option) -> list[Callable[[_Function], _Function]]:
    if option.kind is not OptionKind.AMOUNTS:
        return [_click_option(option)]
    return [
        click.option(f"--{name}", name, metavar=metavar, multiple=True, default=None, help=text)
        for name, (metavar, text) in reversed([*AMOUNTS.items()])
    ]


def _click_option(option: Option) -> Callable[[_Function], _Function]:
    kinds: dict[OptionKind, dict[str, Any]] = {
        OptionKind.VALUE: {"metavar": option.metavar},
        OptionKind.REPEATED: {"metavar": option.metavar, "multiple": True},
        OptionKind.WORD: {"metavar": f"[{option.metavar}]"},
    }
    how = kinds.get(option.kind, {"is_flag": True})
    return click.option(option.flag, option.name, default=None, help=option.help, **how)


REST = ARGS.flag


def _names(option: Option) -> Iterable[str]:
    if option.kind is OptionKind.AMOUNTS:
        return AMOUNTS
    return () if option.kind is OptionKind.MAPPING else (option.name,)


# All options of a run below their headings, for --help-all. The first ones are the command line's alone.
HEADINGS: Mapping[str, Sequence[str]] = {
    title: (
        *(("param_texts", "is_module", "config") if title == "Run" else ()),
        *(name for option in options for name in _names(option)),
    )
    for title, options in GROUPS.items()
}
# Those that --help shows, each with what the example of its group says of it.
USUAL: Mapping[str, Mapping[str, str]] = {
    "Job": {"param_texts": "-p epochs=20", "config": "", "args": "", "env": "--env DATA=/data"},
    "Run": {
        "name": "--name first",
        "storage": "--storage s3://bucket/runs",
        "resume": "--resume auto",
        "detach": "--detach",
    },
    "Tasks": {
        "address": "",
        "strategy": "",
        "workers": "--workers 4",
        "ps": "--ps 2",
        "cpus": "--cpus worker=2",
        "gpus": "",
        "memory": "--memory ps=8GiB",
    },
    "Checkpoints and limits": {
        "checkpoint_every": "--checkpoint-every 5m",
        "keep_best": "--keep-best val_accuracy",
        "max_failures": "",
        "timeout": "--timeout 2h",
    },
}
_OUTPUT = ("csv_path", "plot_path", "is_csv", "is_json", "task", "help", "help_all")
_IS_ALL = "raydist.help_all"


def _show_all(ctx: click.Context, param: click.Parameter, is_asked: bool) -> None:
    if is_asked and not ctx.resilient_parsing:
        ctx.meta[_IS_ALL] = True
        usual = ctx.command.get_help_option(ctx)
        assert usual is not None
        assert usual.callback is not None
        usual.callback(ctx, param, is_asked)


class RunCommand(click.Command):
    """A command with the options of a run; its help has the usual ones. What follows `--` is a script's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(
            click.Option(
                ["--help-all"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_show_all,
                help="Show all options and exit.",
            )
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index(REST) if REST in args else len(args)
        words, renamed = words_of_roles(args[:end])
        if renamed:
            logger.warning("%s", renamed)
        try:
            rest = super().parse_args(ctx, with_words(words))
        except click.NoSuchOption as error:
            name = error.option_name.lstrip("-").replace("-", "_")
            told = removed_option(name)
            if name == "dry_run" and self.name == "submit":
                words = redact_arguments([word for word in args if word != "--dry-run"])
                told = f"option 'dry_run' was removed; write raydist plan {shlex.join(words)}"
            if told:
                raise click.UsageError(told, ctx) from None
            message = f"{error.message.removesuffix('.')}; options of a script come after {REST}"
            raise click.NoSuchOption(error.option_name, message, error.possibilities, ctx) from None
        ctx.params["args"] = tuple(args[end + 1 :]) if end < len(args) else None
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), f"[{REST} {ARGS.metavar}]"]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        names_of = {each: "help" if "--help" in each.opts else str(each.name) for each in options}
        records = {name: record for each, name in names_of.items() if (record := each.get_help_record(ctx))}
        records["args"] = (f"{REST} {ARGS.metavar}", ARGS.help)
        of_runs = {name for names in HEADINGS.values() for name in names}
        own = [name for name in records if name not in of_runs]
        groups: dict[str, Iterable[str]] = {
            str(self.name).capitalize(): [name for name in own if name not in _OUTPUT],
            **(HEADINGS if ctx.meta.get(_IS_ALL) else USUAL),
            "Output and help": [name for name in _OUTPUT if name in own],
        }
        for title, names in groups.items():
            shown = [name for name in names if name in records]
            if shown:
                with formatter.section(title):
                    formatter.write_dl([records[name] for name in shown])
                    if isinstance(names, Mapping):
                        formatter.write_paragraph()
                        formatter.write_text(
                            f"Example: {' '.join(names[name] for name in shown if names[name])}"
                        )


def names_in(text: str) -> list[str]:
    """Returns the names that `a, b` has."""
    return [name.strip() for name in text.split(",") if name.strip()]


def chosen_names(text: str, known: Sequence[str], *, option: str) -> list[str]:
    """Returns the names that an option's text has, each once; raises MistakeError for unknown ones."""
    names = list(dict.fromkeys(names_in(text))) or [text]
    if unknown := [name for name in names if name not in known]:
        raise MistakeError(f"{option} names {unknown[0]!r}; {suggest(unknown[0], known)}")
    return names
