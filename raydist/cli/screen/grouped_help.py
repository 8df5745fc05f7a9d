"""The help of commands that take the options of a run, under headings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import click

from raydist.cli.job_options import ARGS, with_words

REST = ARGS.flag

# What no heading names is listed under the first one.
GROUPS: Mapping[str, Sequence[str]] = {
    "Run": (
        "param_texts",
        "args",
        "is_module",
        "config",
        "name",
        "study",
        "working_dir",
        "storage",
        "resume",
        "on_end",
        "mlflow",
        "keep_runs",
        "detach",
    ),
    "Cluster": ("address", "ports", "allow_public_ports", "fence", "keep_warm"),
    "Environment of the tasks": ("env", "env_file", "runtime_env"),
    "Strategy and roles": (
        *("strategy", "workers", "ps", "evaluator", "devices", "gpus_per_worker"),
        *("virtual_replicas", "threads_per_replica", "reduce_order"),
        *(
            "gpus_per_evaluator",
            "cpus_per_worker",
            "cpus_per_ps",
            "cpus_per_chief",
            "cpus_per_evaluator",
            "run_on",
        ),
    ),
    "Memory, custom resources and labels": (
        *("memory_per_worker", "memory_per_ps", "memory_per_chief", "memory_per_evaluator"),
        *("memory_per_data_worker", "memory_retry", "resources_per_worker", "resources_per_ps"),
        *("resources_per_chief", "resources_per_evaluator", "resources_per_data_worker"),
        *("accelerator_type", "label_selector"),
    ),
    "Model": (
        *("keras", "patch_keras", "check_equality", "sync_batchnorm", "sum_embedding_rows", "seed"),
        *("partitioner", "ps_staleness"),
    ),
    "Data": ("auto_shard", "data_workers", "cpus_per_data_worker"),
    "Communication": (
        *("collective", "collective_timeout", "bytes_per_pack", "cross_device_ops", "compress_gradients"),
    ),
    "Checkpoints and export": ("checkpoint_every", "survivor_memory", "keep", "keep_best", "export"),
    "What is recorded": (
        *("tensorboard_histograms", "tensorboard_graph", "log_device_placement", "dump_xla"),
    ),
    "Failures and time limits (a DURATION is seconds, or 90s, 5m, 2h)": (
        *("max_failures", "standby", "timeout", "start_timeout", "stall_timeout", "stop_on_nan"),
    ),
}


class RunCommand(click.Command):
    """A command with the options of a run; what follows `--` is a script's.

    Attributes:
      groups: The names of the options below each heading.
    """

    groups: ClassVar[Mapping[str, Sequence[str]]] = GROUPS

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index(REST) if REST in args else len(args)
        try:
            rest = super().parse_args(ctx, with_words(args[:end]))
        except click.NoSuchOption as error:
            message = f"{error.message.removesuffix('.')}; options of a script come after {REST}"
            raise click.NoSuchOption(error.option_name, message, error.possibilities, ctx) from None
        ctx.params["args"] = tuple(args[end + 1 :]) if end < len(args) else None
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), f"[{REST} {ARGS.metavar}]"]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        records = {each.name: record for each in options if (record := each.get_help_record(ctx))}
        records["args"] = (f"{REST} {ARGS.metavar}", ARGS.help)
        grouped = {name for names in self.groups.values() for name in names}
        others = [record for name, record in records.items() if name not in grouped]
        for title, names in self.groups.items():
            rows = [records[name] for name in names if name in records] + others
            others = []
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
