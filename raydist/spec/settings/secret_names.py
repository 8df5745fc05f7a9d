"""Which names say that their value is a secret."""

from __future__ import annotations

import re
from collections.abc import Mapping

# No plural of token: `special_tokens` and `max_tokens` are common params of a model.
_SECRET_NAME = re.compile(
    r"(^|_)((password|passwd|passphrase|pwd|secret|credential|connection_string|webhook(_ur[il])?"
    r"|(api|access|account|auth|encryption|private|secret|signing|wandb)_?key)s?|token)$"
)
_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# In a model it is a number of a vocabulary.
_COUNTED_NAME = re.compile(r"token$")


def is_secret_name(name: str) -> bool:
    """Whether a name, such as that of the param `api_key`, says that its text is a secret."""
    return _SECRET_NAME.search(_in_snake_case(name)) is not None


def holds_secret(name: str, value: object) -> bool:
    """Whether `value` is a secret because of its name: a text, or one in a list or mapping; a number too.

    A number under `token` is none: `pad_token` is a common param of a model.
    """
    if not is_secret_name(name):
        return False
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _COUNTED_NAME.search(_in_snake_case(name)) is None
    return _has_text(value)


def _in_snake_case(name: str) -> str:
    return re.sub(r"[-.\s]", "_", _CAPITAL.sub("_", name)).lower()


def _has_text(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_text, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(_has_text, value))
    return bool(value) and isinstance(value, str)
