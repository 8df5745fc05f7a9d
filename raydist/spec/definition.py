"""JobDefinition: a train function with its defaults, before anyone asked for a run of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raydist.spec.job import EntryPoint


@dataclass(frozen=True, kw_only=True)
class JobDefinition:
    """What a job file, or a function, says about itself.

    Attributes:
      name: Short name, from which the default run name is made.
      entry_point: The train function.
      working_dir: Folder that travels with the run; None ships nothing.
      defaults: The decorator's arguments, typed, `params` included.
      wants_legacy_keras: Whether the job's source imports tf_keras.
      where: Where the defaults are written, for messages: `jobs/cifar.py, line 12`.
    """

    name: str
    entry_point: EntryPoint
    working_dir: Path | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    wants_legacy_keras: bool = False
    where: str = "the job"
