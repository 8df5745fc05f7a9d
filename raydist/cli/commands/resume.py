"""`raydist resume RUN`: goes on from a run, with what it was started with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from raydist.cli import running
from raydist.cli.job_options import default_storage, given_options, job_options, json_option
from raydist.cli.run_argument import open_named, run_argument
from raydist.cli.screen.grouped_help import RunCommand
from raydist.errors import MistakeError
from raydist.spec.job import MODULE_FLAG
from raydist.spec.settings.options import OPTIONS, PARAMS
from raydist.storage.files.redaction import REDACTED

# Where and what the run is; what each resume decides anew.
# What records of an older raydist call an option.
_RENAMED = {"mend_keras": "patch_keras"}
_NOT_TAKEN_OVER = {"name", "working_dir", "resume", "detach", "storage"}


@click.command("resume", cls=RunCommand, epilog="More: `raydist guide failures`.")
@run_argument
@job_options(without=("name", "resume"))
@json_option
def command(
    run: str, config: Path | None, param_texts: tuple[str, ...], is_json: bool, **options: object
) -> int:
    """Go on from a run, with the options and params that it had.

    Options that are given here or in a config file take precedence over those of the run.

    Arguments after `--` replace those that the script had.

    \b
    Example:
      raydist resume cifar-20261121-093012-1f3a --workers 2 --max-failures 10
    """
    from raydist.spec.settings.config_file import read_config
    from raydist.storage.run_record import read_record

    given = given_options(options)
    opened = open_named(given.get("storage", default_storage()), run)
    run, record = opened.run, read_record(opened)
    if "args" not in given and any(REDACTED in each for each in record.spec.get("args", ())):
        raise MistakeError(f"the arguments of run {run} have a secret, which is not kept; give them after --")
    layer = _settings(record.spec)
    if config is not None:
        in_file = read_config(config)
        layer = {**layer, **in_file, PARAMS: {**layer[PARAMS], **in_file.get(PARAMS, {})}}
    return running.run_job(
        _job_of(run, record.spec),
        config=layer,
        param_texts=param_texts,
        options={"working_dir": record.spec.get("working_dir"), **given, "name": run, "resume": True},
        is_json=is_json,
    )


def _settings(spec: Mapping[str, Any]) -> dict[str, Any]:
    spec = {_RENAMED.get(name, name): value for name, value in spec.items()}
    taken_over = {option.name for option in OPTIONS} - _NOT_TAKEN_OVER
    # A secret is not kept: the job's own default, or -p, has to give it again.
    params = {name: value for name, value in spec.get(PARAMS, {}).items() if value != REDACTED}
    return {**{name: value for name, value in spec.items() if name in taken_over}, PARAMS: params}


def _job_of(run: str, spec: Mapping[str, Any]) -> str:
    entry_point = spec.get("entry_point", {})
    file, module, function = (entry_point.get(name) for name in ("file", "module", "function"))
    if file:
        path = Path(spec.get("working_dir") or ".") / file
        return f"{path}:{function}" if function else str(path)
    if module:
        return f"{module}:{function}" if function else f"{MODULE_FLAG}{module}"
    raise MistakeError(
        f"run {run} was started from Python with a function that is kept nowhere; "
        f'go on from it with raydist.run(function, name="{run}", resume=True)'
    )
