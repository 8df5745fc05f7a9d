"""Which variables look like secrets, so that no record of a run has their values."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping

HIDDEN = "***"  # stands for a value that is not kept

_SECRET_WORDS = frozenset(
    {
        *("PASSWORD", "PASSWD", "PASSPHRASE", "PASS", "SECRET", "SECRETS", "TOKEN", "TOKENS", "KEY", "KEYS"),
        *("APIKEY", "CREDENTIAL", "CREDENTIALS", "PAT", "DSN", "WEBHOOK", "COOKIE", "AUTHORIZATION", "PWD"),
    }
)
_SECRET_ENDINGS = ("PASSWORD", "PASSWD", "APIKEY", "SECRET", "TOKEN", "CONNECTION_STRING")
# Each shell sets them to a folder.
_OPEN_NAMES = frozenset({"PWD", "OLDPWD"})
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


def looks_secret(name: str, value: str) -> bool:
    """Whether a variable's name or value says that it is a secret."""
    return bool(value) and (_is_secret_name(name) or _is_secret_value(value))


def without_secrets(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables with `***` for the values of those that look secret."""
    return {name: HIDDEN if looks_secret(name, value) else value for name, value in variables.items()}


def _is_secret_name(name: str) -> bool:
    upper = name.upper()
    if upper in _OPEN_NAMES:
        return False
    return upper.endswith(_SECRET_ENDINGS) or not _SECRET_WORDS.isdisjoint(upper.split("_"))


def _is_secret_value(value: str) -> bool:
    if _SECRET_VALUES.search(value):
        return True
    return bool(_WORD.fullmatch(value)) and _bits(value) > _RANDOM_BITS


def _bits(text: str) -> float:
    """Returns Shannon's entropy per character."""
    shares = [count / len(text) for count in Counter(text).values()]
    return -sum(share * math.log2(share) for share in shares)
