"""`raydist describe RUN`: everything that is known of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from raydist.cli.commands.runs.status import is_driven, read_incidents
from raydist.cli.job_options import json_option, storage_option
from raydist.cli.run_argument import open_named, run_argument
from raydist.cli.screen import output, run_view
from raydist.spec.params import PARAM_TYPES, PARAMS
from raydist.spec.plain import as_plain
from raydist.spec.quantities import size_text

# They have lines of their own.
_NOT_OPTIONS = (PARAMS, PARAM_TYPES, "entry_point")
_ROLE = ("task_type", "num_tasks", "cpus", "gpus")
_HOST = ("hosts", "cpu", "num_cpus", "memory", "gpus", "system")
_CHECKPOINT = ("step", "attempt", "epoch", "bytes", "uri")


@click.command("describe", epilog="More: `raydist guide commands`.")
@run_argument
@storage_option
@json_option
def command(run: str, storage: str, is_json: bool) -> None:
    """Show all that is known of a run.

    That is its status, options, plan, timings, code, hosts, versions, checkpoints, and the sizes of what is
    stored.
    """
    from raydist.storage.checkpoints import CheckpointStore
    from raydist.storage.run_record import read_record
    from raydist.storage.run_removal import usage_of

    opened = open_named(storage, run)
    record = read_record(opened)
    incidents, problem = read_incidents(opened)
    told = {
        **as_plain(record),
        "job": run_view.job_text(record),
        "duration_s": run_view.duration_s(record),
        "is_driven": is_driven(opened, record),
        "restarts": as_plain(incidents),
        "checkpoints": [
            {
                "step": one.step,
                "attempt": one.attempt,
                "epoch": one.info.get("epoch"),
                "bytes": sum(file.size_bytes for file in one.files),
                "uri": one.uri,
            }
            for one in CheckpointStore(opened).committed()
        ],
        "stored": {
            name: {"num_files": usage.num_files, "bytes": usage.num_bytes}
            for name, usage in sorted(usage_of(opened).items())
        },
    }
    if is_json:
        output.print_json(told)
        return
    for line in run_view.record_lines(record, incidents):
        output.show(line, is_alarming=run_view.is_alarming(line))
    if problem is not None:
        output.show(f"restarts are unknown: {problem}")
    _print_sections(told)


def _print_sections(told: Mapping[str, Any]) -> None:
    options = {name: value for name, value in told["spec"].items() if name not in _NOT_OPTIONS}
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
    if facts:
        output.show(f"\n{title}")
        texts = {
            name: value if isinstance(value, str) else json.dumps(value) for name, value in facts.items()
        }
        for line in run_view.fact_lines(texts):
            output.show(f"  {line}")


def _print_table(title: str, columns: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    if rows:
        output.show(f"\n{title}")
        for line in output.table_lines(columns, [[row.get(name) for name in columns] for row in rows]):
            output.show(f"  {line}")
