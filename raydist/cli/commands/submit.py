"""`raydist plan JOB`: what would be launched, and why; starts nothing. `raydist submit JOB`: runs a job."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from raydist.cli import running
from raydist.cli.job_options import AskedJob, RunCommand, json_option, takes_job
from raydist.cli.screen import output
from raydist.planning import describe
from raydist.planning.batch_sizes import batch_sizes_of
from raydist.spec.job import Strategy
from raydist.spec.secrecy import redact_arguments, without_secrets
from raydist.spec.tasks import TaskId
from raydist.spec.text import counted

if TYPE_CHECKING:
    from raydist.planning.plan import Plan

_MAX_ADDRESSES = 4


@click.command("plan", cls=RunCommand, epilog="More: `raydist guide strategies`.")
@takes_job()
@click.option("--tf-config", "task", metavar="TASK", help="Print TF_CONFIG of one task, such as worker/3.")
@json_option
def plan(job: AskedJob, task: str | None, is_json: bool) -> None:
    """Show what submit would launch, and why. Starts nothing.

    JOB is path/to/file.py[:function], package.module[:function], or a script.

    \b
    Example:
      raydist plan jobs/cifar.py --strategy parameter_server --workers 3 --ps 2
    """
    from raydist import api

    asked = None if task is None else TaskId.parse(task)
    plan = api.plan(job.target, **job.given())
    if asked is None:
        show(plan, is_json=is_json)
        return
    tf_config = describe.placeholder_tf_config(plan, asked)
    if is_json:
        output.print_json({"task": str(asked), "tf_config": tf_config})
    else:
        output.show(_tf_config_line(asked, tf_config))


def show(plan: Plan, *, is_json: bool) -> None:
    """Prints a plan."""
    if is_json:
        output.print_json(describe.describe_plan(plan))
        return
    args = f" -- {shlex.join(redact_arguments(plan.job.args))}" if plan.job.args else ""
    output.show(f"job        {plan.job.entry_point}{args}")
    output.show(f"inventory  {_inventory(plan)}")
    output.show(f"strategy   {plan.strategy.value}: {plan.reason}")
    output.show(f"keras      {plan.keras.value}: {plan.keras_reason}")
    if plan.job.env:
        shown = without_secrets(plan.job.env)
        output.show(f"env        {shlex.join(f'{name}={text}' for name, text in shown.items())}")
    if plan.job.runtime_env:
        output.show(f"runtime    Ray's runtime_env with {', '.join(sorted(plan.job.runtime_env))}")
    for role in plan.roles:
        each = " each" if role.num_tasks > 1 else ""
        threads = counted(plan.threads_of(role), "thread")
        output.show(
            f"role       {role.num_tasks} x {role.task_type.value}, {role.resources}{each}, {threads}"
        )
    for extra in plan.job.roles.values():
        each = " each" if extra.num_tasks > 1 else ""
        program = shlex.join(redact_arguments(extra.command))
        may_fail = ", may fail" if extra.may_fail else ""
        output.show(
            f"role       {extra.num_tasks} x {extra.name}, {extra.resources}{each}{may_fail}: {program}"
        )
    output.show(f"placement  {_placement(plan)}")
    for line in _host_lines(plan):
        output.show(line)
    if plan.devices is not None:
        output.show(f"devices    {plan.devices} logical CPU devices per task")
    if (sizes := batch_sizes_of(plan)) is not None:
        output.show(f"batch      {sizes}")
        if sizes.rate is not None:
            output.show(f"rate       {sizes.rate}")
    for note in plan.notes:
        output.show(f"note: {note}")
    output.show("the addresses below stand for those that the tasks will lease:")
    if describe.lists_tasks(plan):
        for task, config in describe.placeholder_tf_configs(plan):
            output.show(_tf_config_line(task, config))
        return
    for task_type, addresses in describe.placeholder_cluster(plan).as_dict().items():
        few = addresses if len(addresses) <= _MAX_ADDRESSES else [*addresses[:2], "…", addresses[-1]]
        output.show(f"cluster    {len(addresses)} x {task_type}: {', '.join(few)}")
    cost = describe.cluster_cost(plan)
    for sentence in [] if cost is None else cost.sentences():
        output.show(f"cost       {sentence}")
    output.show(f"TF_CONFIG  the cluster and the task; --tf-config {plan.tasks[-1]} prints that of one task")


def _tf_config_line(task: TaskId, config: str | None) -> str:
    return f"{task} TF_CONFIG={config}" if config else f"{task} without TF_CONFIG"


def _placement(plan: Plan) -> str:
    if len(plan.tasks) == 1 and not plan.job.roles:
        return "on one host"
    if plan.strategy is Strategy.PARAMETER_SERVER:
        return "ps on as many hosts as there are, all tasks or none"
    return "on as few hosts as they fit on, all or none"


def _host_lines(plan: Plan) -> list[str]:
    """Returns which host of a cluster fits which roles, and why not."""
    hosts = [] if plan.inventory.is_embedded else describe.describe_hosts(plan)
    lines = []
    for host in hosts:
        fitting = [f"{each['fits']} x {role}" for role, each in host["roles"].items() if each["fits"]]
        lacking = [f"no {role} ({each['lacks']})" for role, each in host["roles"].items() if each["lacks"]]
        holds = " or ".join(fitting)
        lines.append(f"host       {host['host']}: {', '.join(([holds] if holds else []) + lacking)}")
    if hosts and len(plan.inventory.hosts) > len(hosts):
        lines.append(f"host       … {len(plan.inventory.hosts) - len(hosts)} more")
    return lines


def _inventory(plan: Plan) -> str:
    inventory = plan.inventory
    hosts = counted(len(inventory.hosts), "host")
    has = f"{inventory.source}: {hosts}, {inventory.num_cpus:g} CPUs, {inventory.num_gpus} GPUs"
    return (
        has
        if plan.embedded_cpus is None
        else f"{has}; Ray is embedded, with {plan.embedded_cpus} logical CPUs"
    )


@click.command(
    "submit", cls=RunCommand, epilog="More: `raydist guide commands`, `raydist guide writing-a-job`."
)
@takes_job()
@json_option
def submit(job: AskedJob, is_json: bool) -> int:
    """Train JOB and wait until it ends.

    JOB is path/to/file.py[:function] or package.module[:function]. Without a job in it, it is a script: each
    task runs it unchanged, with TF_CONFIG set and the arguments that follow `--`. With --detach, return once
    the cluster has accepted the run.

    \b
    Example:
      raydist submit jobs/cifar.py --workers 4 -p epochs=20 --timeout 2h
      raydist submit main.py --workers 2 -- --batch-size 64
    """
    return running.run_job(job.target, is_json=is_json, **job.given())
