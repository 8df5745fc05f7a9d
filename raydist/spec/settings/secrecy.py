"""What counts as a secret, so that no record of a run and nothing that is printed has it."""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Mapping

REDACTED = "***"  # stands for what is not kept

# No plural of token: `special_tokens` and `max_tokens` are common params of a model.
_SECRET_NAME = re.compile(
    r"(^|_)((password|passwd|passphrase|pwd|secret|credential|connection_string|webhook(_ur[il])?"
    r"|(api|access|account|auth|encryption|private|secret|signing|wandb)_?key)s?|token)$"
)
_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# In a model it is a number of a vocabulary.
_COUNTED_NAME = re.compile(r"token$")
# Of a variable's name. A param may have such a word without being a secret, as `key_dim` and `num_tokens` do.
_SECRET_WORDS = frozenset(
    {
        *("PASSWORD", "PASSWD", "PASSPHRASE", "PASS", "SECRET", "SECRETS", "TOKEN", "TOKENS", "KEY", "KEYS"),
        *("APIKEY", "CREDENTIAL", "CREDENTIALS", "PAT", "DSN", "WEBHOOK", "COOKIE", "AUTHORIZATION", "PWD"),
    }
)
_SECRET_ENDINGS = ("PASSWORD", "PASSWD", "APIKEY", "SECRET", "TOKEN", "CONNECTION_STRING")
# Each shell sets them to a folder.
_OPEN_VARIABLES = frozenset({"PWD", "OLDPWD"})
_SECRET_VALUES = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"  # AWS
    r"|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_[A-Za-z0-9_]{20,}|\bglpat-[A-Za-z0-9_-]{16,}"
    r"|\bhf_[A-Za-z0-9]{20,}|\bsk-[A-Za-z0-9_-]{20,}|\bxox[abeprs]-[A-Za-z0-9-]{10,}|\bAIza[0-9A-Za-z_-]{30,}"
    r"|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"  # a JSON web token
    r"|(?i:\bbearer\s+\S{8,})"
    r"|[A-Za-z][A-Za-z0-9+.-]*://[^/\s]*@"  # a URI with a user's name or password
    r"|[A-Za-z][A-Za-z0-9+.-]*://\S*\?\S"  # or with a query, which may hold a signature
)
# One word of random letters and digits, such as 32 hexadecimal ones. `resnet50-imagenet-2026-baseline-run-3`
# is none, as its parts are short. A path has `/` too, but begins with it.
_WORD = re.compile(r"(?!/)(?=\S*[A-Za-z0-9+/=]{20})(?=\S*[0-9])(?=\S*[A-Za-z])[A-Za-z0-9+/=_-]{32,}")
_RANDOM_BITS = 3.3  # of hexadecimal digits about 3.6


@functools.lru_cache(maxsize=4096)
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


def is_secret_variable(name: str, value: str) -> bool:
    """Whether the name or the value of an environment variable says that it is a secret.

    Its name need only have a word such as KEY, which a param's may have for other reasons.
    """
    return bool(value) and (_is_secret_variable_name(name) or _is_secret_value(value))


def without_secrets(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables with `***` for the values of those that are secrets."""
    return {name: REDACTED if is_secret_variable(name, value) else value for name, value in variables.items()}


def _in_snake_case(name: str) -> str:
    return re.sub(r"[-.\s]", "_", _CAPITAL.sub("_", name)).lower()


def _has_text(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_text, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(_has_text, value))
    return bool(value) and isinstance(value, str)


def _is_secret_variable_name(name: str) -> bool:
    upper = name.upper()
    if upper in _OPEN_VARIABLES:
        return False
    has_word = upper.endswith(_SECRET_ENDINGS) or not _SECRET_WORDS.isdisjoint(upper.split("_"))
    return has_word or is_secret_name(name)


def _is_secret_value(value: str) -> bool:
    if _SECRET_VALUES.search(value):
        return True
    return bool(_WORD.fullmatch(value)) and _bits(value) > _RANDOM_BITS


def _bits(text: str) -> float:
    """Returns Shannon's entropy per character."""
    shares = [count / len(text) for count in Counter(text).values()]
    return -sum(share * math.log2(share) for share in shares)
