"""From what one place says, a decorator, a config or a command line, to typed values: parsed there, once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raydist.spec.definition import TypedOptions
from raydist.spec.settings.options import PARAMS, find_option
from raydist.spec.settings.params import check_params


def typed_values(
    written: Mapping[str, Any], *, where: str = "", lines: Mapping[str, str] | None = None
) -> TypedOptions:
    """Returns options and `params` typed.

    Args:
      written: What a person or a program gives, or TypedOptions. ParamTexts are left to `merge_params`,
        which knows their types.
      where: Where they are written, for messages; `lines` tells it for single names.

    Raises:
      SpecError: An unknown name, or a value that cannot be read.
    """
    if isinstance(written, TypedOptions):
        return written
    typed: dict[str, Any] = {}
    for name, value in written.items():
        at = (lines or {}).get(name, where)
        typed[name] = (
            check_params(value, where=at)
            if name == PARAMS
            else find_option(name, where=at).parse(value, where=at)
        )
    return TypedOptions(typed, written=written)
