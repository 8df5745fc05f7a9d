"""The job of a kept run: as `raydist.run` takes it, and as the `raydist submit` command that asks for it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raydist.entry.environment import variable_names
from raydist.errors import MistakeError
from raydist.spec.job import MODULE_FLAG
from raydist.spec.params import kept_params, number_text, reads_as_text
from raydist.spec.secrecy import REDACTED, holds_redacted
from raydist.spec.settings.option import Option, OptionKind
from raydist.spec.settings.options import OPTIONS, PARAMS
from raydist.spec.settings.removed import with_new_names
from raydist.spec.settings.roles import words_of
from raydist.storage.provenance import read_kept_code

if TYPE_CHECKING:
    from raydist.storage.run_record import RunRecord
    from raydist.storage.run_storage import RunStorage


def submit_line(job: str, settings: Mapping[str, Any], *, defaults: Mapping[str, Any] | None) -> str:
    """Returns the command, in which what the job or raydist has by default is left out.

    Args:
      settings: Options as run.json keeps them, and `params`.
      defaults: The job's own, typed, `params` included; None where they are not known, so all are written.
    """
    target = ["-m", job.removeprefix(MODULE_FLAG)] if job.startswith(MODULE_FLAG) else [job]
    words = ["raydist", "submit", *target]
    for option in OPTIONS:
        value = settings.get(option.name)
        if option.kind is OptionKind.AMOUNTS:
            amounts = None if defaults is None else defaults.get(option.name, option.default)
            words += words_of(option.parse(value or {}), defaults=amounts)
        elif (
            option.name in settings
            and option.kind not in (OptionKind.REST, OptionKind.MAPPING)
            and (defaults is None or _plain(value) != _plain(defaults.get(option.name, option.default)))
        ):
            words += _written(option, value)
    own = {} if defaults is None else defaults.get(PARAMS, {})
    for name, value in settings.get(PARAMS, {}).items():
        if name not in own or own[name] != value:
            # A text's default is text too, mostly.
            words += [
                "-p",
                f"{name}={_param_text(value, own.get(name, value if defaults is None else None))}",
            ]
    arguments = settings.get("args") or ()
    return shlex.join([*words, *(["--", *arguments] if arguments else [])])


def _plain(value: Any) -> str | None:
    return None if value is None else str(getattr(value, "value", value))


def _written(option: Option, value: Any) -> list[str]:
    on, _, off = option.flag.partition("/")
    if option.kind is OptionKind.WORD and value == option.metavar:
        return [on, value]
    none = [] if option.parser.none is None else [on, option.parser.none]
    if option.kind is OptionKind.REPEATED:
        return [word for key, text in value.items() for word in (on, f"{key}={text}")] or none
    if option.kind is not OptionKind.VALUE:
        return [on] if value else [off] if off else []
    return none if value is None else [on, option.parser.write(value)]


def _param_text(value: Any, default: Any) -> str:
    """Returns what `-p` reads as `value`: text as it is where the default is text, else YAML."""
    return value if isinstance(value, str) and isinstance(default, str) else _yaml(value)


def ambiguous_texts(spec: Mapping[str, Any]) -> list[str]:
    """Returns the params whose text `-p` reads as something else if the job's default is no text."""
    texts = {name: value for name, value in kept_params(spec).items() if isinstance(value, str)}
    return [name for name, text in texts.items() if not reads_as_text(text)]


def _yaml(value: Any) -> str:
    """Returns `value` on one line of YAML 1.2: as JSON, and with `.inf` and `.nan`."""
    match value:
        case float():
            return number_text(value) or json.dumps(value)
        case Mapping():
            pairs = (f"{_yaml(key)}: {_yaml(item)}" for key, item in value.items())
            return "{" + ", ".join(pairs) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(_yaml, value)) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False)


# Where and what the run is; what each resume decides again. What a file of variables held is in `env`.
_NOT_TAKEN_OVER = {"name", "working_dir", "resume", "detach", "storage", "env_file"}


# What is told of an option that had a secret.
_LOST = {
    "on_end": "the command of --on-end is not kept; give it again",
    "mlflow": "the credentials in --mlflow are not kept; give it again",
    "runtime_env": "the credentials in --runtime-env are not kept; give it again",
    "roles": "the secrets in the commands of roles are not kept; write roles again",
}


def _has_lost(spec: Mapping[str, Any], name: str) -> bool:
    return REDACTED in str(spec.get(name))


def check_args(run: str, spec: Mapping[str, Any]) -> None:
    """Raises MistakeError if the arguments of the script cannot be repeated."""
    if any(REDACTED in each for each in spec.get("args", ())):
        raise MistakeError(f"the arguments of run {run} have a secret, which is not kept; give them after --")


def check_roles(run: str, spec: Mapping[str, Any], *, settings: Mapping[str, Any]) -> None:
    """Raises MistakeError if the commands of roles cannot be repeated: without them the job would fail."""
    if _has_lost(spec, "roles") and "roles" not in settings:
        raise MistakeError(
            f"the commands of the roles of run {run} have a secret, which is not kept; write roles again "
            "into a config file, for resume or submit with -c FILE"
        )


def lost_secrets(spec: Mapping[str, Any], *, layers: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a sentence for each setting of the run that neither its record nor one of `layers` has.

    Args:
      layers: The options and params of the next run. Only their names are looked at.
    """
    settings = set().union(*layers)
    sentences = [told for name, told in _LOST.items() if _has_lost(spec, name) and name not in settings]
    given = variable_names(layers)
    variables = [name for name in _lost_variables(spec) if name not in given]
    if variables:
        file = spec.get("env_file")
        again = "--env" if file is None else f"--env, or with --env-file {file}"
        sentences.append(f"secret variables are not kept; give {', '.join(variables)} with {again}")
    params = spec.get(PARAMS, {})
    given = set().union(*(layer.get(PARAMS, {}) for layer in layers))
    names = [name for name in params if holds_redacted(params[name]) and name not in given]
    if names:
        sentences.append(f"secrets are not kept; give {', '.join(names)} with -p")
    return sentences


def kept_settings(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options and params of a run, as a config has them, without secrets and the run's place."""
    spec = with_new_names(spec)
    taken_over = {option.name for option in OPTIONS} - _NOT_TAKEN_OVER
    # A secret is not kept: the job's own default, or -p, has to give it again.
    params = {name: value for name, value in kept_params(spec).items() if not holds_redacted(value)}
    lost = {name for name in _LOST if _has_lost(spec, name)}
    options = {name: value for name, value in spec.items() if name in taken_over - lost}
    if "env" in options:
        variables = _lost_variables(spec)
        options["env"] = {name: text for name, text in options["env"].items() if name not in variables}
    return {**options, PARAMS: params}


def _lost_variables(spec: Mapping[str, Any]) -> list[str]:
    return [name for name, text in spec.get("env", {}).items() if REDACTED in text]


def kept_job(run: str, spec: Mapping[str, Any], *, working_dir: str | None) -> str:
    """Returns what was run, with its file in `working_dir`; raises MistakeError for a pickled function."""
    entry_point = spec.get("entry_point", {})
    file, module, function = (entry_point.get(name) for name in ("file", "module", "function"))
    if file:
        path = Path(working_dir or ".") / file
        return f"{path}:{function}" if function else str(path)
    if module:
        return f"{module}:{function}" if function else f"{MODULE_FLAG}{module}"
    raise MistakeError(
        f"run {run} was started from Python with a function that is kept nowhere; "
        f'continue it with raydist.run(function, name="{run}", resume=True)'
    )


def kept_code(storage: RunStorage, record: RunRecord) -> bytes | None:
    """Returns the packed code; None for an installed module, which had none.

    Raises:
      MistakeError: The run cannot be repeated from what is kept.
      StorageError: The copy is damaged.
    """
    kept_job(record.run, record.spec, working_dir=None)  # refuses a function that is kept nowhere
    check_args(record.run, record.spec)
    if record.datasets:
        raise MistakeError(
            f"run {record.run} was given the datasets {', '.join(record.datasets)}, which are not kept; "
            "repeat it from Python with raydist.run(..., datasets=...)"
        )
    if record.code is None and not record.spec.get("working_dir"):
        return None
    return read_kept_code(storage, record.code)
