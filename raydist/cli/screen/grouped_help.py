"""The help of commands that take the options of a run, under headings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

# What no heading names is listed under the first one.
GROUPS: Mapping[str, Sequence[str]] = {
    "Run": ("param_texts", "config", "name", "working_dir", "storage", "resume", "detach"),
    "Cluster": ("address", "ports"),
    "Strategy and roles": (
        *("strategy", "workers", "ps", "evaluator", "devices", "gpus_per_worker", "cpus_per_worker"),
        *("cpus_per_ps", "cpus_per_chief", "cpus_per_evaluator"),
    ),
    "Model": ("keras", "patch_keras", "check_equality", "sync_batchnorm", "seed", "partitioner"),
    "Data": ("auto_shard", "data_workers", "cpus_per_data_worker"),
    "Checkpoints and export": ("checkpoint_every", "keep", "keep_best", "export"),
    "Failures and time limits (a DURATION is seconds, or 90s, 5m, 2h)": (
        *("max_failures", "timeout", "start_timeout", "stall_timeout"),
    ),
}


class RunCommand(click.Command):
    """A command with the options of a run."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        records = {each.name: record for each in options if (record := each.get_help_record(ctx))}
        grouped = {name for names in GROUPS.values() for name in names}
        others = [record for name, record in records.items() if name not in grouped]
        for title, names in GROUPS.items():
            rows = [records[name] for name in names if name in records] + others
            others = []
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
