"""Runs a command under a supervisor, which has the last word where the command's own process cannot."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from raydist.cli.screen import output, run_view
from raydist.errors import ClusterError, RaydistError
from raydist.watch.supervisor import DriverEnd, fork_driver
from raydist.watch.watcher import DriverFacts

Command = Callable[[Sequence[str]], int]


def run_supervised(arguments: Sequence[str], command: Command) -> int:
    """Returns the exit code of `command`, or of its death, which is told and cleared up after."""
    watcher = fork_driver()
    if isinstance(watcher, DriverEnd):
        return _exit_code(watcher, is_json=output.wants_json(arguments))
    code = 1  # of a bug, whose traceback Python prints
    try:
        code = command(arguments)
    finally:
        watcher.exit(code)
    return code


def _exit_code(end: DriverEnd, *, is_json: bool) -> int:
    if end.facts.exit_code is not None:
        return end.facts.exit_code
    try:
        return _settle(end.facts, end.code, is_json=is_json)
    except RaydistError as error:
        return output.print_raydist_error(error, is_json=is_json)


def _settle(facts: DriverFacts, code: int, *, is_json: bool) -> int:
    """Clears up after a driver that died, tells how its run ended, and returns the exit code."""
    from raydist.watch.aftermath import describe_death, settle

    how = describe_death(code)
    if facts.is_over:
        raise ClusterError(f"{how} once the run was over; `raydist list` shows how that ended")
    result = None if facts.run is None else settle(facts.run, how=how)
    if facts.run is not None and facts.run.is_study:
        raise ClusterError(f"{how}; its trials have ended, and the same command with --resume continues")
    if result is None:
        raise ClusterError(f"{how}; it has recorded no run: give the command again")
    if is_json:
        output.print_json(result.as_dict())
    run_view.print_end(result, said=result.notes, stream=sys.stderr if is_json else sys.stdout)
    return result.exit_code
