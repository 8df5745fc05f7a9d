"""`raydist resume RUN` continues a run as it was started; `raydist reproduce RUN` repeats it."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from raydist.cli import running
from raydist.cli.commands.download import check_is_empty
from raydist.cli.commands.verify import verify as verify_steps
from raydist.cli.job_options import (
    RunCommand,
    address_option,
    count_option,
    default_storage,
    given_options,
    job_options,
    json_option,
    reading_options,
)
from raydist.cli.kept_job import (
    ambiguous_texts,
    check_args,
    check_roles,
    kept_code,
    kept_job,
    kept_settings,
    lost_secrets,
    submit_line,
)
from raydist.cli.run_argument import open_named, run_argument
from raydist.cli.screen import output
from raydist.entry.definition import literal_defaults
from raydist.entry.environment import ENV, variable_names
from raydist.outcome.result import command_for
from raydist.runtime.host.software import package_versions
from raydist.runtime.task.code_archive import unpack
from raydist.spec.params import ParamTexts
from raydist.spec.secrecy import redact
from raydist.spec.settings.options import PARAMS
from raydist.spec.settings.removed import removed_settings
from raydist.spec.settings.resolution import TypedOptions, typed_values
from raydist.spec.settings.roles import RESOURCES, merged

if TYPE_CHECKING:
    from raydist.storage.run_record import RunRecord


@click.command("resume", cls=RunCommand, epilog="More: `raydist guide failures`.")
@run_argument
@job_options(without=("name", "resume"))
@json_option
def resume(
    run: str, config: Path | None, param_texts: tuple[str, ...], is_json: bool, **options: object
) -> int:
    """Continue a run, with the options and params that it had.

    Options that are given here or in a config file take precedence over those of the run.

    Arguments after `--` replace those that the script had.

    \b
    Example:
      raydist resume cifar-20261121-093012-1f3a --workers 2 --max-failures 10
    """
    from raydist.entry.config_file import read_config
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
    lost = lost_secrets(record.spec, layers=(layer, {**given, PARAMS: params}))
    for sentence in (*lost, *removed_settings(record.spec)):
        output.show(f"note: {sentence}", is_error=True)
    return running.run_job(
        kept_job(run, record.spec, working_dir=working_dir),
        config=layer,
        params=params,
        is_json=is_json,
        **{"working_dir": working_dir, **given, "name": run, "resume": True},
    )


def _joined(kept: TypedOptions, in_file: TypedOptions) -> TypedOptions:
    """Returns the options of the run with those of a config above them, single params and variables too."""
    known = variable_names([in_file])
    env = {name: text for name, text in kept.get(ENV, {}).items() if name not in known}
    params = {**kept.get(PARAMS, {}), **in_file.get(PARAMS, {})}
    joined = {
        PARAMS: params,
        ENV: {**env, **in_file.get(ENV, {})},
        RESOURCES: merged(kept.get(RESOURCES, {}), in_file.get(RESOURCES, {})),
    }
    return TypedOptions({**kept, **in_file, **joined})


# The others differ on most machines, and seldom matter.
_TOLD_VERSIONS = ("python", "tensorflow", "keras", "tf-keras", "ray", "raydist", "numpy")


@click.command("reproduce", epilog="More: `raydist guide storage`.")
@run_argument
@click.option("--run", "is_run", is_flag=True, help="Run it now, and wait for its end.")
@click.option("--name", metavar="NAME", help="The new run's name; made from the job and the time if omitted.")
@click.option(
    "--to",
    "folder",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Folder for the code; RUN-code if omitted. It must not exist, or be empty.",
)
@count_option(
    "--verify",
    "Repeat steps of a run with --virtual-replicas twice, with its own number of workers and with N, and "
    "compare all variables after each step. The exit code is 1 if a bit differs.",
)
@count_option("--steps", "With --verify: steps to repeat; 50 when omitted.", metavar="STEPS")
@count_option(
    "--from-step",
    "With --verify: begin after the run's checkpoint of this step; at its beginning when omitted.",
    metavar="STEP",
)
@address_option("With --verify: the Ray to use.")
@reading_options
def reproduce(
    run: str,
    is_run: bool,
    name: str | None,
    folder: Path | None,
    verify: int | None,
    steps: int | None,
    from_step: int | None,
    address: str | None,
    storage: str,
    is_json: bool,
) -> int:
    """Print the commands that repeat a run.

    They use the copy of the code that the run kept, and its options, params and seed. With --run they are
    carried out. What cannot be repeated here, such as other versions of packages, is told in notes.

    \b
    Example:
      raydist reproduce cifar-20261121-093012-1f3a --run
      raydist reproduce cifar-20261121-093012-1f3a --verify 4 --steps 20
    """
    from raydist.storage.run_record import read_record

    of_repeats = {"--run": is_run or None, "--name": name, "--to": folder}
    of_verify = {"--steps": steps, "--from-step": from_step, "--address": address}
    given = [flag for flag, value in (of_repeats if verify else of_verify).items() if value is not None]
    if given:
        raise click.UsageError(
            f"{given[0]} {'does not go' if verify else 'goes only'} together with --verify"
        )
    if verify is not None:
        return verify_steps(
            run,
            workers=verify,
            steps=steps or 50,
            from_step=from_step,
            address=address,
            storage=storage,
            is_json=is_json,
        )

    opened = open_named(storage, run)
    record = read_record(opened)
    notes = _notes(record)
    target = folder or Path(f"{opened.run}-code")
    code = kept_code(opened, record)
    if is_run:
        return _run_again(record, code, target, notes, storage=storage, name=name, is_json=is_json)
    with tempfile.TemporaryDirectory(prefix="raydist-") as scratch:
        defaults: Mapping[str, Any] | None = {}
        if code is not None:
            unpack(code, Path(scratch))
            job = kept_job(opened.run, record.spec, working_dir=scratch)
            defaults = literal_defaults(job, cwd=Path(scratch))  # who wrote the copy is not known
    shown = redact(storage)
    if shown != storage:
        notes.append("the credentials in --storage are not shown; give them again")
    place = ["--storage", shown]
    lines = []
    working_dir = None if code is None else str(target)
    if code is not None:
        lines.append(shlex.join(["raydist", "download", opened.run, "code", str(target), *place]))
    again = kept_job(opened.run, record.spec, working_dir=working_dir)
    if record.spec.get("roles"):
        names = ", ".join(record.spec["roles"])
        notes.append(
            f"the command lacks the roles {names}, which it has no option for: write them into a config file "
            "and add -c FILE, or use --run"
        )
    own = {"working_dir": working_dir, "storage": shown, "name": name}
    lines.append(submit_line(again, {**kept_settings(record.spec), **own}, defaults=defaults))
    texts = [] if defaults is not None else ambiguous_texts(record.spec)
    if texts:
        notes.append(f"-p {', '.join(texts)} may be read as a number, not as the text that it was")
    if is_json:
        output.print_json({"run": opened.run, "commands": lines, "notes": notes})
        return 0
    for note in notes:
        output.show(f"# {' '.join(note.split())}")
    for line in lines:
        output.show(line)
    return 0


def _run_again(
    record: RunRecord,
    code: bytes | None,
    target: Path,
    notes: list[str],
    *,
    storage: str,
    name: str | None,
    is_json: bool,
) -> int:
    check_roles(record.run, record.spec, settings=kept_settings(record.spec))
    own: dict[str, Any] = {"storage": storage} | ({"name": name} if name else {})
    if code is not None:
        check_is_empty(target)
        unpack(code, target)
        own["working_dir"] = str(target)
    for note in notes:
        output.show(f"note: {note}", is_error=is_json)
    return running.run_job(
        kept_job(record.run, record.spec, working_dir=own.get("working_dir")),
        config=kept_settings(record.spec),
        params=ParamTexts(),
        is_json=is_json,
        **own,
    )


def _notes(record: RunRecord) -> list[str]:
    """Returns what differs from the run that is repeated, as sentences."""
    notes = lost_secrets(record.spec, layers=(kept_settings(record.spec),))
    notes += removed_settings(record.spec)
    if record.code is not None and record.code.omitted:
        names = ", ".join(record.code.omitted[:5]) + (", …" if len(record.code.omitted) > 5 else "")
        notes.append(f"the copy of the code is without what .gitignore or --env-file names: {names}")
    here = package_versions()
    kept = record.versions
    if not kept:
        return [*notes, "the run does not say which versions it had; it is of an older raydist"]
    differing = [name for name in kept if here.get(name) != kept[name]]
    told = [name for name in _TOLD_VERSIONS if name in differing]
    if told:
        pairs = ", ".join(f"{name} {kept[name]} (here {here.get(name, 'none')})" for name in told)
        notes.append(f"the run had {pairs}")
    if len(differing) > len(told):
        notes.append(
            f"{len(differing) - len(told)} other packages have another version here, or are missing; "
            f"`{command_for(record.storage, 'status')} --all` lists those of the run"
        )
    return notes
