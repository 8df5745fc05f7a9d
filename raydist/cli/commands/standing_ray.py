"""`raydist up` and `raydist down`: a Ray of this machine that stays between runs."""

from __future__ import annotations

import click

from raydist.cli.job_options import count_option, json_option
from raydist.cli.screen import output
from raydist.spec.job import KerasFlavour


@click.command("up", epilog="More: `raydist guide on-a-cluster`.")
@count_option("--num-cpus", "Logical CPUs; the cores if omitted.")
@click.option(
    "--keras",
    type=click.Choice(["3", "legacy"]),
    default="3",
    show_default=True,
    help="Which Keras is imported ahead.",
)
@json_option
def up(num_cpus: int | None, keras: str, is_json: bool) -> None:
    """Start a Ray that stays, with TensorFlow imported.

    `raydist submit` finds it on this machine. A run starts there without starting Ray, and without importing
    TensorFlow. It stays until `raydist down`, or until the machine restarts.
    """
    from raydist.runtime.detach import standing_ray

    started = standing_ray.start(num_cpus=num_cpus)
    with output.stdout_kept_for_json(is_json):
        problem = standing_ray.warm(started, KerasFlavour(keras))
    if is_json:
        output.print_json({"address": started.address, "is_warm": problem is None})
        return
    output.show(f"Ray at {started.address}")
    output.show(
        "TensorFlow is imported" if problem is None else f"TensorFlow is not imported ahead: {problem}"
    )
    output.show("next: raydist submit JOB, and raydist down once it is not needed any more")


@click.command("down", epilog="More: `raydist guide on-a-cluster`.")
@json_option
def down(is_json: bool) -> None:
    """End the Ray that `raydist up` started, with all runs on it."""
    from raydist.runtime.detach import standing_ray

    ended = standing_ray.stop()
    if is_json:
        output.print_json({"address": None if ended is None else ended.address})
    else:
        output.show("no Ray of raydist up runs here" if ended is None else f"Ray at {ended.address} is ended")
