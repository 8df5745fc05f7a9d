"""`raydist resume RUN`: continues a run, with what it was started with."""

from __future__ import annotations

from pathlib import Path

import click

from raydist.cli import running
from raydist.cli.job_options import RunCommand, default_storage, given_options, job_options, json_option
from raydist.cli.kept_job import check_args, check_roles, kept_job, kept_settings, lost_secrets
from raydist.cli.run_argument import open_named, run_argument
from raydist.cli.screen import output
from raydist.spec.environment import ENV, variable_names
from raydist.spec.params import ParamTexts
from raydist.spec.settings.options import PARAMS
from raydist.spec.settings.resolution import TypedOptions, typed_values


@click.command("resume", cls=RunCommand, epilog="More: `raydist guide failures`.")
@run_argument
@job_options(without=("name", "resume"))
@json_option
def command(
    run: str, config: Path | None, param_texts: tuple[str, ...], is_json: bool, **options: object
) -> int:
    """Continue a run, with the options and params that it had.

    Options that are given here or in a config file take precedence over those of the run.

    Arguments after `--` replace those that the script had.

    \b
    Example:
      raydist resume cifar-20261121-093012-1f3a --workers 2 --max-failures 10
    """
    from raydist.spec.settings.config_file import read_config
    from raydist.storage.run_record import read_record

    given, params = given_options(options), ParamTexts.parse(param_texts)
    opened = open_named(given.get("storage", default_storage()), run)
    run, record = opened.run, read_record(opened)
    if "args" not in given:
        check_args(run, record.spec)
    working_dir = record.spec.get("working_dir")
    layer = typed_values(kept_settings(record.spec), where=f"the record of run {run}")
    if config is not None:
        layer = _joined(layer, read_config(config))
    check_roles(run, record.spec, settings=layer)
    for sentence in lost_secrets(record.spec, layers=(layer, {**given, PARAMS: params})):
        output.show(f"note: {sentence}", is_error=True)
    return running.run_job(
        kept_job(run, record.spec, working_dir=working_dir),
        config=layer,
        params=params,
        options={"working_dir": working_dir, **given, "name": run, "resume": True},
        is_json=is_json,
    )


def _joined(kept: TypedOptions, in_file: TypedOptions) -> TypedOptions:
    """Returns the options of the run with those of a config above them, single params and variables too."""
    known = variable_names([in_file])
    env = {name: text for name, text in kept.get(ENV, {}).items() if name not in known}
    params = {**kept.get(PARAMS, {}), **in_file.get(PARAMS, {})}
    return TypedOptions({**kept, **in_file, PARAMS: params, ENV: {**env, **in_file.get(ENV, {})}})
