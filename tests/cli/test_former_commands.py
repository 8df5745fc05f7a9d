"""Former commands do what they did, and tell the line of today; so do former options, see test_removed.py."""

from __future__ import annotations

import shlex

import click
import pytest

from raydist.cli import main
from raydist.cli.former_commands import line_instead
from raydist.spec.settings.options import OPTIONS
from raydist.spec.settings.removed import OF_ROLES, REMOVED
from tests.cli.conftest import Run
from tests.support.guide import parsed


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("describe RUN --storage s", "status RUN --storage s --all"),
        ("checkpoints RUN --verify --json", "status RUN --verify --json --checkpoints"),
        ("scale job.py --workers 1,2 --plot a.svg", "compare job.py --workers 1,2 --plot a.svg"),
        ("verify RUN --workers 4 --steps 20", "reproduce RUN --verify 4 --steps 20"),
        ("verify RUN --workers=4", "reproduce RUN --verify=4"),
        ("report RUN", "download RUN page"),
        ("report --storage s RUN -o a.html", "download --storage s RUN page a.html"),
        ("report RUN --output a.html", "download RUN page a.html"),
        ("report RUN --output=a.html", "download RUN page a.html"),
        ("report -oa.html RUN --json", "download RUN --json page a.html"),
        ("completion bash", "--completion bash"),
    ],
    ids=lambda text: text.split()[0],
)
def test_former_command_is_taken_as_the_line_of_today(raydist: Run, old: str, new: str) -> None:
    assert old.split()[0] not in main.COMMANDS
    code, out, err = raydist(*shlex.split(old))
    told = f"note: raydist {old.split()[0]} is now written raydist {new}\n"
    assert err.startswith(told)
    assert (code, out, err.removeprefix(told)) == raydist(*shlex.split(new))
    if not new.startswith("--"):
        assert isinstance(parsed(shlex.split(new)), click.Context)


def test_verify_without_workers_is_no_reproduce(raydist: Run) -> None:
    code, out, err = raydist("verify", "RUN")
    assert (code, out) == (2, "")
    assert "'--verify' requires an argument" in err


def test_dry_run_is_refused_with_the_plan_that_does_the_same(raydist: Run) -> None:
    code, out, err = raydist("submit", "job.py", "--dry-run", "--workers", "2", "--", "--epochs", "3")
    assert (code, out) == (2, "")
    assert "was removed; write raydist plan job.py --workers 2 -- --epochs 3 (see" in err


def test_line_of_today_is_told_without_secrets(raydist: Run) -> None:
    _, _, err = raydist("describe", "RUN", "--storage", "s3://key:hush@bucket/runs")
    assert "hush" not in err
    assert "is now written raydist status RUN --storage " in err


# What raydist had before roles got one syntax, 2026-11.
OLD_OPTIONS = (
    "accelerator_type address allow_public_ports args auto_shard bytes_per_pack check_equality "
    "checkpoint_every collective collective_timeout compress_gradients cpus_per_chief "
    "cpus_per_data_worker cpus_per_evaluator cpus_per_ps cpus_per_worker cross_device_ops data_workers "
    "detach devices dump_xla env env_file evaluator export fence gpus_per_evaluator gpus_per_worker "
    "keep keep_best keep_runs keep_warm keras label_selector log_device_placement max_failures "
    "memory_per_chief memory_per_data_worker memory_per_evaluator memory_per_ps memory_per_worker "
    "memory_retry mlflow name on_end partitioner patch_keras ports ps ps_staleness reduce_order "
    "resources_per_chief resources_per_data_worker resources_per_evaluator resources_per_ps "
    "resources_per_worker resume roles run_on runtime_env seed stall_timeout standby start_timeout "
    "stop_on_nan storage strategy study sum_embedding_rows survivor_memory sync_batchnorm "
    "tensorboard_graph tensorboard_histograms threads_per_replica timeout virtual_replicas workers "
    "working_dir "
).split()
OLD_COMMANDS = (
    "chaos checkpoints compare completion delete describe diff doctor down download export guide list "
    "logs metrics plan predict profile report reproduce resume scale search stacks status stop submit "
    "tensorboard ui up verify wait "
).split()


def test_each_older_name_is_taken_or_answered() -> None:
    assert {*OLD_OPTIONS} <= {option.name for option in OPTIONS} | OF_ROLES.keys() | REMOVED.keys()
    assert all(name in main.COMMANDS or line_instead(name, ["RUN"]) for name in OLD_COMMANDS)
