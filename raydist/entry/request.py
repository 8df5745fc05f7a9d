"""From what a caller asks for, in any of the ways there are, to the resolved job."""

from __future__ import annotations

import dataclasses
import os
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from raydist.entry.config_file import read_config
from raydist.entry.definition import define_from_object, read_job
from raydist.entry.environment import environment_of
from raydist.spec.job import JobSpec, SourceFacts
from raydist.spec.settings.decorator import Job
from raydist.spec.settings.options import PARAMS
from raydist.spec.settings.resolution import Origin, TypedOptions, resolve, typed_values

JobLike = str | os.PathLike[str] | Job[Any, Any] | Callable[..., Any]
Config = str | os.PathLike[str] | Mapping[str, Any] | None


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked for.

    Attributes:
      job: With a storage that any folder can open, and with what its files of variables hold.
      origins: Where each option was set.
      source: What the job's source says.
      datasets: `ray.data.Dataset`s for the workers, by name; no part of the job, which is plain data.
    """

    job: JobSpec
    origins: Mapping[str, Origin]
    source: SourceFacts
    datasets: Mapping[str, Any] = field(default_factory=dict)


def read_request(
    job: JobLike,
    *,
    config: Config,
    params: Mapping[str, Any] | None,
    overrides: Mapping[str, Any],
    pickle: Callable[[object], bytes],
    datasets: Mapping[str, Any] | None = None,
) -> Request:
    """Returns the request; raises MistakeError for what cannot be read.

    Args:
      job: `path/to/file.py[:function]`, `package.module:function`, a `Job`, or a function.
      config: A file of cluster_configs/, or what one would hold.
      params: Values above those of `config`; the command line's are ParamTexts.
      overrides: The options that were given, the highest layer.
      pickle: Pickles a function by value if it is in no module.
      datasets: Checked already.
    """
    layer, config_where = _read_config(config)
    asked = typed_values({**overrides, **({} if params is None else {PARAMS: params})})
    folder = asked.get("working_dir") or layer.get("working_dir")
    working_dir = None if folder is None else os.fspath(folder)
    if isinstance(job, str | os.PathLike):
        definition = read_job(os.fspath(job), cwd=Path.cwd(), working_dir=working_dir)
    else:
        definition = define_from_object(job, pickle=pickle, working_dir=working_dir)
    resolved = resolve(
        definition,
        config=layer,
        config_where=config_where,
        overrides=asked,
        now=datetime.now(),
        suffix=secrets.token_hex(2),
    )
    env, runtime_env = environment_of((definition.defaults, layer, asked), os.environ)
    env_file = resolved.job.env_file
    reason = _reason_of_shell(os.environ) or definition.source.legacy_keras_reason
    return Request(
        job=dataclasses.replace(
            resolved.job,
            storage=absolute_storage(resolved.job.storage),
            env=env,
            env_file=None if env_file is None else absolute_storage(env_file),
            runtime_env=runtime_env,
        ),
        origins=resolved.origins,
        source=dataclasses.replace(definition.source, legacy_keras_reason=reason),
        datasets=datasets or {},
    )


def _reason_of_shell(environ: Mapping[str, str]) -> str | None:
    """Returns why `tf.keras` is tf_keras by the variable with which TensorFlow is told so, or None."""
    return "TF_USE_LEGACY_KERAS is 1" if environ.get("TF_USE_LEGACY_KERAS") == "1" else None


def _read_config(config: Config) -> tuple[TypedOptions, str]:
    """Returns the typed values, and where they stand."""
    if isinstance(config, str | os.PathLike):
        return read_config(Path(config)), os.fspath(config)
    return typed_values(config or {}, where="the config"), "the config"


def absolute_storage(storage: str) -> str:
    """Returns a storage as a process in another folder opens it."""
    is_uri = re.match(r"(file|s3|gs|hdfs):|[A-Za-z][A-Za-z0-9+.-]*://", storage)  # mistyped ones are refused
    return storage if is_uri is not None else os.path.abspath(os.path.expanduser(storage))
