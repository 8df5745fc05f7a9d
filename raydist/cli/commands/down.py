"""`raydist down`: ends the Ray of `raydist up`."""

from __future__ import annotations

import click

from raydist.cli.job_options import json_option
from raydist.cli.screen import output


@click.command("down", epilog="More: `raydist guide on-a-cluster`.")
@json_option
def command(is_json: bool) -> None:
    """End the Ray that `raydist up` started, with all runs on it."""
    from raydist.runtime.detach import standing_ray

    ended = standing_ray.stop()
    if is_json:
        output.print_json({"address": None if ended is None else ended.address})
    else:
        output.show("no Ray of raydist up runs here" if ended is None else f"Ray at {ended.address} is ended")
