"""Layers of settings, each above the one before: typed where they are read, then resolved to a JobSpec.

A layer is the decorator of a job, a cluster config, the command line, or the keywords of Python code.
"""

from __future__ import annotations

import enum
import logging
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from raydist.errors import SpecError
from raydist.spec.job import NO_FACTS, EntryPoint, JobSpec, RunOn, SourceFacts
from raydist.spec.params import check_params, merge_params
from raydist.spec.settings.options import OPTIONS, PARAMS, find_option
from raydist.spec.settings.removed import line_of_roles, with_roles
from raydist.spec.settings.roles import RESOURCES, by_name, merged

logger = logging.getLogger(__name__)


class TypedOptions(dict[str, Any]):
    """Options and `params` of one place, typed. `typed_values` makes them, and returns them as they are.

    To type them twice would be wrong: the text of a role becomes an ExtraRole, which is not read as `roles`.

    Attributes:
      written: What they were typed from.
    """

    def __init__(self, typed: Mapping[str, Any], *, written: Mapping[str, Any] | None = None) -> None:
        super().__init__(typed)
        self.written = dict(typed if written is None else written)


@dataclass(frozen=True, kw_only=True)
class JobDefinition:
    """What a job file, or a function, says about itself.

    Attributes:
      name: Short name, from which the default run name is made.
      entry_point: The train function.
      working_dir: Folder that travels with the run; None ships nothing.
      defaults: The decorator's arguments, typed, `params` included.
      source: What its source says.
      where: Where the defaults are written, for messages: `jobs/cifar.py, line 12`.
    """

    name: str
    entry_point: EntryPoint
    working_dir: Path | None = None
    defaults: TypedOptions = field(default_factory=lambda: TypedOptions({}))
    source: SourceFacts = NO_FACTS
    where: str = "the job"


def typed_values(
    written: Mapping[str, Any],
    *,
    where: str = "",
    lines: Mapping[str, str] | None = None,
    is_yaml: bool = False,
) -> TypedOptions:
    """Returns options and `params` typed.

    Args:
      written: What a person or a program gives, or TypedOptions. ParamTexts are left to `merge_params`,
        which knows their types.
      where: Where they are written, for messages; `lines` tells it for single names.
      is_yaml: Whether they are written as YAML, not as Python.

    Raises:
      SpecError: An unknown name, or a value that cannot be read.
    """
    if isinstance(written, TypedOptions):
        return written
    if renamed := line_of_roles(written, is_yaml=is_yaml):
        logger.warning(f"{where}: {renamed}" if where else renamed)
        written = with_roles(written)
    typed: dict[str, Any] = {}
    for name, value in written.items():
        at = (lines or {}).get(name, where)
        typed[name] = (
            check_params(value, where=at)
            if name == PARAMS
            else find_option(name, where=at).parse(value, where=at)
        )
    return TypedOptions(typed, written=written)


_MAX_JOB_NAME_LENGTH = 60  # leaves room for time and suffix in a run's name


class Origin(enum.IntEnum):
    """Where a value was set; the higher one wins."""

    BUILT_IN = 0
    JOB = 1
    CONFIG = 2
    ASKED = 3  # command line or keyword

    @property
    def words(self) -> str:
        return ("by default", "by the job", "by the config", "as asked")[self.value]


@dataclass(frozen=True, kw_only=True)
class ResolvedJob:
    """A JobSpec and, for each option's name, where its value was set; for `worker.cpus` too if it was."""

    job: JobSpec
    origins: Mapping[str, Origin]


def resolve(
    definition: JobDefinition,
    *,
    config: TypedOptions | None = None,
    config_where: str = "the config",
    overrides: TypedOptions | None = None,
    now: datetime,
    suffix: str = "",
) -> ResolvedJob:
    """Returns what the layers say together.

    Args:
      definition: The job with its own defaults. Its working directory is final: the entry point hangs on it.
      config: A config, and `config_where` its file, for messages.
      overrides: The command line's options or `raydist.run`'s keywords, `params` included.
      now: Time for the default run name; `suffix` (a few random letters) parts runs of one second.

    Raises:
      SpecError: An unknown param, or a value that its option or param cannot have.
    """
    layers: tuple[tuple[Origin, Mapping[str, Any], str], ...] = (
        (Origin.JOB, definition.defaults, definition.where),
        (Origin.CONFIG, config or {}, config_where),
        (Origin.ASKED, overrides or {}, ""),
    )
    fields: dict[str, Any] = {}
    origins = {option.name: Origin.BUILT_IN for option in OPTIONS}
    for source, layer, _ in layers:
        for name in layer.keys() - {PARAMS}:
            fields[name] = layer[name]
            origins[name] = source
        origins.update(dict.fromkeys(by_name(layer.get(RESOURCES, {})), source))
    fields[RESOURCES] = merged(*(layer.get(RESOURCES, {}) for _, layer, _ in layers))
    if fields.get("resume") and "name" not in fields:
        raise SpecError("resume is asked without a name; add the name of the run to continue: --name RUN")
    fields.setdefault("name", default_run_name(definition.name, now=now, suffix=suffix))
    fields["working_dir"] = None if definition.working_dir is None else str(definition.working_dir)
    fields[PARAMS] = merge_params(
        definition.defaults.get(PARAMS, {}),
        [(layer[PARAMS], where) for source, layer, where in layers[1:] if PARAMS in layer],
    )
    _check_script_options(definition, fields)
    return ResolvedJob(job=JobSpec(entry_point=definition.entry_point, **fields), origins=origins)


def _check_script_options(definition: JobDefinition, fields: Mapping[str, Any]) -> None:
    """Raises SpecError for what only a script can have."""
    if definition.entry_point.is_script:
        return
    if fields.get("args"):
        params = ", ".join(definition.defaults.get(PARAMS, {})) or "any"
        raise SpecError(
            f"args are {shlex.join(fields['args'])!r}, but {definition.entry_point} is a job, which takes "
            f"params ({params}); write -p KEY=VALUE in place of --, or submit a script"
        )
    if fields.get("run_on") is RunOn.ALL:
        raise SpecError(
            f"run_on is all, but {definition.entry_point} is a job, whose workers and ps serve its chief; "
            "drop --run-on, or submit a script"
        )


def default_run_name(job_name: str, *, now: datetime, suffix: str = "") -> str:
    """Returns `cifar-20261121-093012-1f3a`: what a run's name may hold of the job's, the time, the suffix."""
    stem = re.sub(r"[^A-Za-z0-9_]+", "-", job_name).strip("-_")[:_MAX_JOB_NAME_LENGTH] or "run"
    return "-".join(part for part in (stem, f"{now:%Y%m%d-%H%M%S}", suffix) if part)
