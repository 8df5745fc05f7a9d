"""JobDefinition: a train function with its defaults, before anyone asked for a run of it.

And TypedOptions, of which its defaults are one: what one place, such as a config, says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raydist.spec.job import EntryPoint


class TypedOptions(dict[str, Any]):
    """Options and `params` of one place, typed. `typed_values` makes them, and returns them as they are.

    To type them twice would be wrong: `keep_runs="30d"` becomes a number of seconds, which is no `keep_runs`.

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
      legacy_keras_reason: Why the job's source needs tf_keras as `tf.keras`; None where it does not.
      where: Where the defaults are written, for messages: `jobs/cifar.py, line 12`.
    """

    name: str
    entry_point: EntryPoint
    working_dir: Path | None = None
    defaults: TypedOptions = field(default_factory=lambda: TypedOptions({}))
    legacy_keras_reason: str | None = None
    where: str = "the job"
