"""The `raydist` command: finds the sub-command, and turns how it ended into an exit code."""

from __future__ import annotations

import contextlib
import ctypes
import difflib
import importlib
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import click
from click.shell_completion import get_completion_class

from raydist.cli.removed_commands import line_instead
from raydist.cli.screen import output, standard_streams
from raydist.cli.supervision import run_supervised
from raydist.errors import MistakeError, RaydistError, RunCancelledError
from raydist.outcome.status import RunState
from raydist.runtime.host.ray_session import sweep_host
from raydist.spec.secrecy import redact_arguments
from raydist.spec.text import nearest

# By what one wants to do. Loaded when called, because `raydist plan` ends within a second and `status` needs
# no Ray.
GROUPS: Mapping[str, Mapping[str, str]] = {
    "Run a job": {
        "submit": "raydist.cli.commands.submit:submit",
        "plan": "raydist.cli.commands.submit:plan",
        "search": "raydist.cli.commands.search",
        "compare": "raydist.cli.commands.studies.compare",
        "resume": "raydist.cli.commands.rerun:resume",
        "reproduce": "raydist.cli.commands.rerun:reproduce",
        "wait": "raydist.cli.commands.status:wait",
        "stop": "raydist.cli.commands.live_runs:stop",
    },
    "Look at runs": {
        "list": "raydist.cli.commands.list_runs",
        "status": "raydist.cli.commands.status:status",
        "logs": "raydist.cli.commands.logs",
        "metrics": "raydist.cli.commands.metrics",
        "diff": "raydist.cli.commands.diff",
        "ui": "raydist.cli.commands.pages:ui",
        "tensorboard": "raydist.cli.commands.pages:tensorboard",
        "stacks": "raydist.cli.commands.live_runs:stacks",
        "profile": "raydist.cli.commands.live_runs:profile",
    },
    "Use the result": {
        "predict": "raydist.cli.commands.models:predict",
        "export": "raydist.cli.commands.models:export",
        "download": "raydist.cli.commands.download",
        "delete": "raydist.cli.commands.delete",
    },
    "Clusters": {
        "doctor": "raydist.cli.commands.doctor",
        "up": "raydist.cli.commands.standing_ray:up",
        "down": "raydist.cli.commands.standing_ray:down",
        "chaos": "raydist.cli.commands.live_runs:chaos",
    },
    "Help": {"guide": "raydist.cli.commands.guide:guide"},
}
COMMANDS = {name: place for group in GROUPS.values() for name, place in group.items()}

# Ray ends a process that is connected to it when Ray itself dies.
_SUPERVISED = tuple([name] for name in ("submit", "search", "resume", "reproduce", "compare", "predict"))


class _LazyGroup(click.Group):
    """A group that imports the module of a sub-command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, group in GROUPS.items():
            commands = {name.ljust(width): self.get_command(ctx, name) for name in group}
            # click would cut the summaries off.
            rows = [(name, first_sentence(command.help)) for name, command in commands.items() if command]
            with formatter.section(title):
                formatter.write_dl(rows)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name or "command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not args[0].startswith("-") and args[0] not in COMMANDS:
            if new := line_instead(args[0], redact_arguments(args[1:])):
                told = f"command {args[0]!r} was removed; write raydist {shlex.join(new)}"
                raise click.UsageError(told, ctx=ctx)
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            remedy = f"did you mean {near[0]}?" if near else f"write one of {', '.join(COMMANDS)}"
            raise click.UsageError(f"no command {args[0]!r}; {remedy}", ctx=ctx)
        return super().resolve_command(ctx, args)


def first_sentence(text: str | None) -> str:
    """Returns what a command's help begins with, without the full stop."""
    return (text or "").partition("\n")[0].partition(". ")[0].removesuffix(".")


SHELLS = ("bash", "zsh", "fish")
# What click looks for in the environment when the shell asks.
VARIABLE = "_RAYDIST_COMPLETE"


def _show_completion(ctx: click.Context, param: click.Parameter, shell: str | None) -> None:
    if shell is None or ctx.resilient_parsing:
        return
    found = get_completion_class(shell)
    assert found is not None
    output.show(found(ctx.command, {}, "raydist", VARIABLE).source())
    ctx.exit()


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="`raydist guide` lists the pages of the guide.",
)
@click.version_option(
    package_name="raydist", prog_name="raydist", message="%(prog)s %(version)s", help="Show the version."
)
@click.option(
    "--completion",
    metavar="bash|zsh|fish",
    type=click.Choice(SHELLS),
    is_eager=True,
    expose_value=False,
    callback=_show_completion,
    help="Print the completion script of a shell and exit.",
)
def cli() -> None:
    """Run TensorFlow training that uses tf.distribute on a Ray cluster.

    \b
    Example:
      raydist submit jobs/cifar.py --workers 2
    """
    _check_folder()
    sweep_host()


def _check_folder() -> None:
    try:
        os.getcwd()
    except OSError as error:
        raise MistakeError(
            "the current folder was deleted, or cannot be read; change to another folder with cd"
        ) from error


def run(arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit code; every error that is not a bug ends up as one sentence."""
    code = 0
    try:
        standard_streams.check_open()
        code = _run_command(arguments, is_json=output.wants_json(arguments))
        standard_streams.check_written()
    except standard_streams.OutputError as error:
        if not error.is_unread:  # else its reader has what it wants, as `| head` has
            return code or output.print_raydist_error(error, is_json=False)
    return code


def _run_command(arguments: Sequence[str], *, is_json: bool) -> int:
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # see console.start
        code = cli.main(args=list(arguments), prog_name="raydist", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        output.show(error.ctx.get_help() if error.ctx else error.format_message())
        return 2
    except click.ClickException as error:
        standard_streams.tolerate_failures()  # the mistake is what is to be told
        return output.print_error(
            _usage_sentence(error, arguments), type_name="UsageError", code=2, is_json=is_json
        )
    except standard_streams.OutputError:
        raise
    except RaydistError as error:
        standard_streams.tolerate_failures()
        return output.print_raydist_error(error, is_json=is_json)
    except (KeyboardInterrupt, click.Abort):
        return output.print_error(
            "stopped by Ctrl-C",
            type_name="KeyboardInterrupt",
            code=RunCancelledError.exit_code,
            is_json=is_json,
            state=RunState.CANCELLED,
        )
    return code if isinstance(code, int) else 0


def _usage_sentence(error: click.ClickException, arguments: Sequence[str]) -> str:
    context = getattr(error, "ctx", None)
    # An option without its value is found before click has a context for it.
    named = [each for each in arguments[:1] if each in COMMANDS]
    command = context.command_path if context else " ".join(["raydist", *named])
    text = error.format_message()
    if isinstance(error, click.NoSuchOption):
        text = "; ".join([error.message.rstrip("."), *_near_options(error)])  # click's may be far
    if extra := re.fullmatch(r"Got unexpected extra argument \((.+)\)", text):
        text = "; ".join([f"Got unexpected extra argument {extra[1]!r}", *_meant_options(extra[1], context)])
    sentence = re.sub(r"\s*\n\s*", " ", text).rstrip(".")
    return f"{sentence} (see `{command} --help`)"


def _near_options(error: click.NoSuchOption) -> Iterator[str]:
    """Yields `did you mean --keep?`, if an option is near."""
    options = error.ctx.command.get_params(error.ctx) if error.ctx else []
    spelled: dict[str, str] = {}
    for option in options:
        flags = [*option.opts, *option.secondary_opts]
        if isinstance(option, click.Option):
            long = {flag.lstrip("-"): flag for flag in flags if flag.startswith("--")}
            spelled |= long or {str(option.name).partition("_")[0]: flags[0]}  # -p has none
    if near := [spelled[name] for name in nearest(error.option_name.lstrip("-"), spelled)]:
        yield f"did you mean {' or '.join(near)}?"


def _meant_options(argument: str, context: click.Context | None) -> Iterator[str]:
    """Yields `did you mean --task worker/1?`, if an argument looks like the value of an option."""
    options = {name for one in context.command.params for name in one.opts} if context else set()
    if "--task" in options and re.fullmatch(r"(chief|worker|ps|evaluator)/\d+", argument):
        yield f"did you mean --task {argument}?"
    elif "-p" in options:
        yield "a param is -p NAME=VALUE"


# The numbers of arg_start and arg_end in /proc/PID/stat, counted from 1 (proc(5)).
_ARG_START, _ARG_END = 48, 49


def hide_secrets() -> None:
    """Replaces the secrets in /proc/self/cmdline; what the program itself was given stays as it is.

    Ray copies that line into what it shows of a job, too. Where Linux does not tell the line's place in
    memory, nothing happens.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        shown = Path("/proc/self/cmdline").read_bytes()
        start, end = _place(Path("/proc/self/stat").read_text())
        hidden = redacted_line(shown)
        if hidden != shown and 0 < start and end - start == len(shown):
            ctypes.memmove(start, hidden, len(hidden))


def redacted_line(line: bytes) -> bytes:
    """Returns a command line of the same length, in the format of /proc: a zero byte ends each argument."""
    arguments = line.removesuffix(b"\0").split(b"\0")
    texts = [each.decode(errors="surrogateescape") for each in arguments]
    shown = redact_arguments(texts)
    if shown == texts:
        return line
    hidden = b"\0".join(each.encode(errors="surrogateescape") for each in shown)
    # The last byte has to stay zero, or Linux takes the environment for a part of the line.
    return hidden[: len(line) - 1].ljust(len(line), b"\0")


def _place(stat: str) -> Sequence[int]:
    # The name, in parentheses, may hold spaces.
    fields = stat.rpartition(")")[2].split()
    return [int(fields[number - 3]) for number in (_ARG_START, _ARG_END)]


def main() -> NoReturn:
    """Runs the command that the process was started with, and ends the process."""
    standard_streams.prepare()
    hide_secrets()
    arguments = sys.argv[1:]
    # A signal that waits would be lost in the supervisor.
    if arguments[:1] not in _SUPERVISED or signal.SIGINT in signal.sigpending():
        sys.exit(run(arguments))
    sys.exit(run_supervised(arguments, run))


if __name__ == "__main__":
    main()
