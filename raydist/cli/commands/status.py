"""What storage tells of a run: `raydist status` and `wait`."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from raydist.cli.job_options import address_option, reading_options, timeout_option
from raydist.cli.run_argument import note_damage, open_named, run_argument, wait_option
from raydist.cli.screen import output, run_view
from raydist.cli.screen.progress import PlainView
from raydist.cli.screen.run_view import Incident, incidents_of
from raydist.errors import CheckpointError, ClusterError, StorageError
from raydist.outcome.codec import as_plain
from raydist.spec.params import PARAM_TYPES, PARAMS
from raydist.spec.quantities import size_text
from raydist.spec.settings.removed import with_new_names
from raydist.spec.settings.roles import RESOURCES, by_name, set_amounts
from raydist.spec.text import escaped

if TYPE_CHECKING:
    from raydist.storage.checkpoint_marker import Checkpoint
    from raydist.storage.checkpoints import CheckpointStore
    from raydist.storage.run_record import RunRecord
    from raydist.storage.run_storage import RunStorage

_DAMAGED = "damaged"
_COLUMNS = ("step", "attempt", "epoch", "bytes", "digest", "state", "uri")


def _show_checkpoints(opened: RunStorage, *, verify: bool, is_json: bool) -> int:
    from raydist.storage.checkpoints import CheckpointStore

    note_damage(opened)
    store = CheckpointStore(opened)
    rows = [_row(store, checkpoint, verify=verify) for checkpoint in store.committed()]
    if is_json:
        output.print_json({"run": opened.run, "checkpoints": rows})
    elif rows:
        output.print_table(_COLUMNS, [[row[name] for name in _COLUMNS] for row in rows])
    else:
        output.show(f"no committed checkpoints in {opened.uri(opened.checkpoints)}")
    return CheckpointError.exit_code if any(row["state"].startswith(_DAMAGED) for row in rows) else 0


def _row(store: CheckpointStore, checkpoint: Checkpoint, *, verify: bool) -> dict[str, Any]:
    return {
        **checkpoint.facts(),
        "digest": checkpoint.info.get("digest"),
        "state": _verified(store, checkpoint) if verify else "committed",
        "metrics": checkpoint.info.get("metrics"),
    }


def _verified(store: CheckpointStore, checkpoint: Checkpoint) -> str:
    try:
        store.verify(checkpoint)
    except CheckpointError as error:
        return f"{_DAMAGED}: {error}"
    return "whole"


@click.command("wait", epilog="More: `raydist guide commands`.")
@run_argument
@timeout_option()
@address_option("Ray that a detached run is in; the one it was submitted to when omitted.")
@wait_option
@reading_options
def wait(
    run: str, timeout_s: float | None, address: str | None, wait_s: float, storage: str, is_json: bool
) -> int:
    """Wait until a run ends, and exit with its exit code.

    Works from any shell. A run whose driver has died is exit code 3.
    """
    from raydist.runs.attached import AttachedRun

    opened = open_named(storage, run, wait_s=min(wait_s, math.inf if timeout_s is None else timeout_s))
    attached = AttachedRun(opened, address=address)
    with output.stdout_kept_for_json(is_json):
        has_ended = attached.wait(timeout_s)
    result = attached.status()
    if not has_ended:
        raise ClusterError(f"run {opened.run} did not end within {timeout_s:g} s; {attached.where()}")
    if is_json:
        output.print_json(result.as_dict())
    else:
        output.show(f"run {opened.run}: {run_view.how_far(result.state, result.steps)}")
        if result.error is not None:
            run_view.print_error(result.error)
    return result.exit_code


# Of run.json, what `submit --json` does not print either.
_NOT_SHOWN = ("failures", "spec", "plan", "updated_at_s")
_POLL_S = 1.0


@click.command("status", epilog="More: `raydist guide commands`.")
@run_argument
@click.option("-w", "--watch", is_flag=True, help="Update the view until the run has ended.")
@click.option(
    "-a", "--all", "is_all", is_flag=True, help="Also show options, plan, timings, code, hosts and versions."
)
@click.option("--checkpoints", is_flag=True, help="List the committed checkpoints, the newest first.")
@click.option(
    "--verify",
    is_flag=True,
    help="Also compare each file of a checkpoint with its checksum. The exit code is 4 if one is damaged.",
)
@wait_option
@reading_options
def status(
    run: str,
    watch: bool,
    is_all: bool,
    checkpoints: bool,
    verify: bool,
    wait_s: float,
    storage: str,
    is_json: bool,
) -> int:
    """Show the progress of a run, or all that is known of it.

    Works from any shell, during the run and after Ray is gone.

    \b
    Example:
      raydist status @latest -w
      raydist status @latest --checkpoints --verify
    """
    from raydist.storage.run_record import read_record

    if watch and is_json:
        raise click.UsageError("--watch and --json do not go together: JSON is one object, printed at once")
    if (checkpoints or verify) and (watch or is_all):
        raise click.UsageError("--checkpoints is a view of its own, without --watch and --all")
    opened = open_named(storage, run, wait_s=wait_s if watch else 0.0)
    if checkpoints or verify:
        return _show_checkpoints(opened, verify=verify, is_json=is_json)
    record = read_record(opened)
    if watch and not record.state.is_terminal:
        record = _watch(opened)
    if is_all:
        _show_all(opened, record, is_json=is_json)
        return 0
    incidents, problem = read_incidents(opened)
    if is_json:
        told = {key: value for key, value in as_plain(record).items() if key not in _NOT_SHOWN}
        facts = {"job": run_view.job_text(record), "params": record.spec.get("params", {})}
        times = {"duration_s": run_view.duration_s(record), "is_driven": is_driven(opened, record)}
        output.print_json({**told, **facts, **times, "restarts": as_plain(incidents)})
        return 0
    _print_lines(_lines(opened, record, incidents), problem)
    return 0


def _print_lines(lines: Iterable[str], problem: str | None) -> None:
    """Prints what is known of a run, and why its restarts are not known."""
    for line in lines:
        output.show(line, is_alarming=run_view.is_alarming(line))
    if problem is not None:
        output.show(f"restarts are unknown: {problem}")


def read_incidents(storage: RunStorage) -> tuple[Sequence[Incident], str | None]:
    """Returns what interrupted a run, and why that cannot be read; None where it can."""
    from raydist.storage.segments import read_events

    try:
        return incidents_of(read_events(storage)), None
    except StorageError as error:
        return (), str(error)


def is_driven(storage: RunStorage, record: RunRecord) -> bool | None:
    """Returns whether some process drives the run; None where its claim cannot be read."""
    from raydist.storage.claims import ClaimStore

    if record.state.is_terminal:
        return False
    try:
        return ClaimStore(storage).is_driven(record, now_s=time.time())
    except StorageError:
        return None


def _lines(storage: RunStorage, record: RunRecord, incidents: Sequence[Incident]) -> list[str]:
    lines = run_view.record_lines(record, incidents)
    if (age := run_view.age_line(record)) is not None:
        lines += ["", age]
        if is_driven(storage, record) is False:
            lines.append(f"no process drives it any more; `{storage.command('resume')}` continues it")
    return lines


def _watch(storage: RunStorage) -> RunRecord:
    """Shows the run until it has ended, or nobody drives it any more, and returns its last record."""
    from raydist.storage.run_record import read_record

    if not sys.stdout.isatty():
        view = PlainView(sys.stdout)
        while not _is_over(storage, record := read_record(storage)):
            view.show(run_view.progress_of(record))
            time.sleep(_POLL_S)
        return record
    import rich.console
    import rich.live
    import rich.text

    with rich.live.Live(console=rich.console.Console(), auto_refresh=False, transient=True) as live:
        while not _is_over(storage, record := read_record(storage)):
            lines = _lines(storage, record, read_incidents(storage)[0])
            shown = [
                rich.text.Text(escaped(line), style="red" if run_view.is_alarming(line) else "")
                for line in lines
            ]
            live.update(rich.text.Text("\n").join(shown), refresh=True)
            time.sleep(_POLL_S)
    return record


def _is_over(storage: RunStorage, record: RunRecord) -> bool:
    return record.state.is_terminal or is_driven(storage, record) is False


# They have lines of their own.
_NOT_OPTIONS = (PARAMS, PARAM_TYPES, "entry_point", RESOURCES)
_ROLE = ("task_type", "num_tasks", "cpus", "gpus")
_HOST = ("hosts", "cpu", "num_cpus", "memory", "gpus", "system")
_CHECKPOINT = ("step", "attempt", "epoch", "bytes", "uri")


def _show_all(opened: RunStorage, record: RunRecord, *, is_json: bool) -> None:
    """Prints the status, options, plan, timings, code, hosts, versions, checkpoints, and what is stored."""
    from raydist.storage.checkpoints import CheckpointStore
    from raydist.storage.run_removal import usage_of

    incidents, problem = read_incidents(opened)
    told = {
        **as_plain(record),
        "job": run_view.job_text(record),
        "duration_s": run_view.duration_s(record),
        "is_driven": is_driven(opened, record),
        "restarts": as_plain(incidents),
        "checkpoints": [one.facts() for one in CheckpointStore(opened).committed()],
        "stored": {
            name: {"num_files": usage.num_files, "bytes": usage.num_bytes}
            for name, usage in sorted(usage_of(opened).items())
        },
    }
    if is_json:
        output.print_json(told)
        return
    _print_lines(run_view.record_lines(record, incidents, has_details=True), problem)
    _print_sections(told)


def _print_sections(told: Mapping[str, Any]) -> None:
    spec = with_new_names(told["spec"])
    options = {name: value for name, value in spec.items() if name not in _NOT_OPTIONS}
    options |= by_name(set_amounts(spec.get(RESOURCES, {})))
    _print_facts("options", {name: value for name, value in options.items() if value not in (None, [], "")})
    plan = told["plan"]
    _print_facts(
        "plan", {name: plan[name] for name in ("inventory", "reason", "keras_reason") if name in plan}
    )
    roles = [role for role in plan.get("roles", ()) if isinstance(role, dict)]
    _print_table("roles", _ROLE, roles)
    seconds = {name: value for name, value in told["timings"].items() if value is not None}
    _print_facts("timings", {name: f"{value:.1f} s" for name, value in seconds.items()})
    code = told["code"] or {}
    _print_facts("code", {name: value for name, value in code.items() if value not in (None, [])})
    _print_table("hosts", _HOST, [_host_row(group) for group in told["environment"]["hosts"]])
    _print_facts("versions", told["versions"])
    _print_table("checkpoints", _CHECKPOINT, told["checkpoints"])
    stored = [
        {"part": name, **usage, "size": size_text(usage["bytes"])} for name, usage in told["stored"].items()
    ]
    _print_table("stored", ("part", "num_files", "size"), stored)


def _host_row(group: Mapping[str, Any]) -> dict[str, Any]:
    machine, size = group["machine"], group["machine"]["memory_bytes"]
    return {
        **machine,
        "hosts": ", ".join(f"{name} ({address})" for address, name in group["hosts"].items()),
        "memory": None if size is None else size_text(size),
        "gpus": ", ".join(machine["gpus"]) or "none",
    }


def _print_facts(title: str, facts: Mapping[str, Any]) -> None:
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in facts.items()}
    _print_section(title, run_view.fact_lines(texts))


def _print_table(title: str, columns: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    if rows:
        cells = [[row.get(name) for name in columns] for row in rows]
        _print_section(title, [*output.table_lines(columns, cells)])


def _print_section(title: str, lines: Sequence[str]) -> None:
    if lines:
        output.show(f"\n{title}")
    for line in lines:
        output.show(f"  {line}")
