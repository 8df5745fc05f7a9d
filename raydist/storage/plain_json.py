"""Strict JSON for what people and other programs read from storage."""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Mapping
from typing import Any

from raydist.spec.settings.secrecy import REDACTED, holds_secret
from raydist.storage.files.redaction import redact_arguments, redact_text

ARGS = ("args", "command")  # the keys of a command line's arguments


def dump_plain_json(value: Any, *, indent: int | None = None) -> str:
    """Returns `value` as strict JSON: NaN and infinities as null, enums by value, secrets as `***`.

    Secrets are credentials inside URIs, and texts under keys such as `api_key`. What is no JSON
    type (a path, a TaskId) is written as its `str`, a NumPy scalar as its number.
    """
    return json.dumps(_plain(value), indent=indent, ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    match value:
        case None | bool():
            return value
        case enum.Enum():
            return _plain(value.value)
        case str():
            return redact_text(value)
        case int():
            return int(value)
        case float():
            return float(value) if math.isfinite(value) else None
        case Mapping():
            return {str(key): _plain_entry(str(key), item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(item) for item in value]
        case _ if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
            return _plain(value.item())
        case _:
            return redact_text(str(value))


def _plain_entry(key: str, value: Any) -> Any:
    if key in ARGS and isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        return _plain(redact_arguments(value))
    return REDACTED if holds_secret(key, value) else _plain(value)
