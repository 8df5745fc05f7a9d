"""Option: a field of JobSpec that a user may set, and how it is written, read and described."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raydist.errors import SpecError
from raydist.spec.job import JobSpec, check_field
from raydist.spec.quantities import write_duration
from raydist.spec.settings import values


class OptionKind(enum.Enum):
    """How an option is written on the command line."""

    VALUE = "value"  # --name METAVAR
    SWITCH = "switch"  # --name / --no-name
    FLAG = "flag"  # --name
    WORD = "word"  # --name, or --name METAVAR
    REPEATED = "repeated"  # --name METAVAR, any number of times
    REST = "rest"  # all that follows `--`
    AMOUNTS = "amounts"  # --cpus, --memory, --gpus and --resources [ROLE=]VALUE, any number of times
    MAPPING = "mapping"  # not at all: only a config file and Python code have it


@dataclass(frozen=True)
class Option:
    """One field of JobSpec that a user may set.

    Attributes:
      name: The field of JobSpec; also the key in a config file and the keyword of `raydist.run`.
      parser: Checks and types what was written, and writes it again.
      summary: What it sets, with its unit, and what happens when it is omitted if that is not a value.
      metavar: What stands for the value in the help, the parser's when omitted. The one word of a WORD.
    """

    name: str
    parser: values.Parser
    summary: str
    metavar: str = ""
    kind: OptionKind = OptionKind.VALUE

    def __post_init__(self) -> None:
        object.__setattr__(self, "metavar", self.metavar or self.parser.metavar)

    @property
    def flag(self) -> str:
        """The command line's spelling, as click takes it: `--ps`, `--evaluator/--no-evaluator`."""
        word = self.name.replace("_", "-")
        if self.kind is OptionKind.REST:
            return "--"
        return f"--{word}/--no-{word}" if self.kind is OptionKind.SWITCH else f"--{word}"

    @property
    def default(self) -> Any:
        """The built-in default; None for `name`, which is made from the job and the time."""
        return _DEFAULTS[self.name]

    @property
    def help(self) -> str:
        if self.default is None or self.kind not in _WITH_DEFAULT:
            return self.summary
        is_duration = self.parser is values.duration
        default = write_duration(self.default) if is_duration else _written(self.default)
        return f"{self.summary} [default: {default}]"

    def parse(self, value: object, *, where: str = "") -> Any:
        """Returns the typed value; raises SpecError, which begins with `where` (file and line) if given."""
        try:
            parsed = self.parser(self.name, value)
            check_field(self.name, parsed)
        except SpecError as error:
            raise SpecError(f"{where}: {error}") if where else error from None
        return parsed


# The others have nothing by default, which their help need not say.
_WITH_DEFAULT = (OptionKind.VALUE, OptionKind.SWITCH)


def _default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return None if field.default_factory is dataclasses.MISSING else field.default_factory()


_DEFAULTS: Mapping[str, Any] = {field.name: _default_of(field) for field in dataclasses.fields(JobSpec)}


def _written(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case enum.Enum():
            return str(value.value)
        case float():
            return f"{value:g}"
        case _:
            return str(value)
