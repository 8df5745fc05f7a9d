"""What a search tries: a range or several values for each param, as `-p` writes them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from raydist.errors import SpecError
from raydist.spec.params import ParamTexts, merge_params, parse_number

_LOG = "log:"
_TO = ".."


@dataclass(frozen=True, kw_only=True)
class Range:
    """Any number between two, both of them included where they are whole numbers.

    Attributes:
      is_log: Whether each power of ten is as likely as another.
      is_integer: Whether it is a whole number.
    """

    low: float
    high: float
    is_log: bool = False
    is_integer: bool = False


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One of some values."""

    values: tuple[Any, ...]


Dimension: TypeAlias = Range | Choice


@dataclass(frozen=True, kw_only=True)
class Space:
    """What the params of a search may be.

    Attributes:
      dimensions: By name of the param.
      fixed: Params that all trials have; typed.
    """

    dimensions: Mapping[str, Dimension]
    fixed: Mapping[str, Any]

    def params_of_job(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what is given to a job with these `params`, whose trials choose values for the dimensions.

        To a job without any the fixed ones alone would be all that it has.
        """
        return {**{name: params.get(name) for name in self.dimensions}, **self.fixed}

    @property
    def num_points(self) -> int | None:
        """How many different trials there are; None where a range makes them endless."""
        choices = [one for one in self.dimensions.values() if isinstance(one, Choice)]
        if len(choices) < len(self.dimensions):
            return None
        return math.prod(len(choice.values) for choice in choices)


def parse_space(written: ParamTexts, params: Mapping[str, Any]) -> Space:
    """Reads `KEY=1e-4..1e-1`, `KEY=log:1e-4..1e-1`, `KEY=32,64,128` and, for all trials, `KEY=VALUE`.

    Args:
      params: The job's own, by whose types the values are read. A job without any takes all.

    Raises:
      SpecError: The job lacks the param, or what is written is not a range or value of its kind.
    """
    dimensions: dict[str, Dimension] = {}
    fixed: dict[str, Any] = {}
    for key, text in written.items():
        default = params.get(key)
        known = params or {key: None}
        found = _dimension(key, text, known, default)
        if found is None:
            fixed[key] = _value(key, text, known)
        else:
            dimensions[key] = found
    return Space(dimensions=dimensions, fixed=fixed)


def _dimension(key: str, text: str, params: Mapping[str, Any], default: Any) -> Dimension | None:
    if text.startswith(_LOG) or _is_range(text, default):
        return _range(key, text, params, default)
    # A list or a mapping has commas of its own.
    if "," in text and not isinstance(default, list | tuple | Mapping) and text[:1] not in "[{":
        parts = [part.strip() for part in text.split(",")]
        if "" in parts:
            raise SpecError(f"-p {key}={text} has an empty value; write values such as {key}=32,64,128")
        values = tuple(_value(key, part, params) for part in parts)
        if len(set(map(repr, values))) < len(values):
            raise SpecError(f"-p {key}={text} has a value twice; write each one once")
        return Choice(values=values)
    return None


def _is_range(text: str, default: Any) -> bool:
    """Whether a text with two dots is a range: a path may have them, too."""
    if _TO not in text or isinstance(default, str):
        return False
    is_number = isinstance(default, int | float) and not isinstance(default, bool)
    return is_number or any(map(_is_number, text.split(_TO)))


def _is_number(text: str) -> bool:
    try:
        parse_number(text)
    except ValueError:
        return False
    return True


def _value(key: str, text: str, params: Mapping[str, Any]) -> Any:
    return merge_params(params, [(ParamTexts({key: text}), "")])[key]


def _range(key: str, text: str, params: Mapping[str, Any], default: Any) -> Range:
    if key not in params:
        merge_params(params, [({key: None}, "")])  # raises, and names the near ones
    if default is not None and (isinstance(default, bool) or not isinstance(default, int | float)):
        raise SpecError(
            f"-p {key}={text} is a range of numbers, and the param's default is {default!r}; list the "
            f"values, such as {key}=A,B"
        )
    is_log = text.startswith(_LOG)
    parts = text.removeprefix(_LOG).split(_TO)
    try:
        low, high = map(parse_number, parts)
    except ValueError:
        raise SpecError(
            f"-p {key}={text} is not a range; write LOW..HIGH or log:LOW..HIGH, such as {key}=log:1e-4..1e-1"
        ) from None
    if not low < high or not math.isfinite(high - low):
        raise SpecError(f"-p {key}={text} has no numbers between its ends; write the lower one first")
    if is_log and low <= 0:
        raise SpecError(f"-p {key}={text} begins at {low:g}, and the range of a logarithm is above 0")
    is_integer = isinstance(default, int) or (
        default is None and all(part.strip().isdigit() for part in parts)
    )
    if is_integer and not (low.is_integer() and high.is_integer()):
        raise SpecError(
            f"-p {key}={text} has fractions, and the param is a whole number, as its default {default!r} is"
        )
    return Range(low=low, high=high, is_log=is_log, is_integer=is_integer)
