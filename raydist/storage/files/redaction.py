"""Keeps credentials out of messages and out of what a run leaves on storage."""

from __future__ import annotations

import re
from collections.abc import Sequence

REDACTED = "***"

# A scheme's length is bounded: these patterns also search texts of megabytes without a URI.
_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]{0,20}://"
# AWS's secrets may hold a `/`, which ought to be %2F in a URI: hide one that is not, up to its `@`,
# but leave `hdfs://host:8020/a@b` alone.
_USER_INFO = r"(?:[^/?#@\s'\"]*|[^/?:@\s'\"]+:(?!\d{1,5}/)[^@\s'\"]*)@"
_AUTHORITY_PATTERN = re.compile(rf"(?P<scheme>{_SCHEME}){_USER_INFO}")
_QUERY_PATTERN = re.compile(r"(?P<name>[?&][A-Za-z0-9_.-]+)=(?P<value>[^&#\s'\"]*)")
# What a storage URI's query may say openly; any other value could be a key or a signature.
_OPEN_QUERY_NAMES = frozenset(
    {"allow_bucket_creation", "allow_delayed_open", "endpoint_override", "region", "replication", "scheme"}
)
_URI_PATTERN = re.compile(rf"{_SCHEME}\S*")
_SECRET_KEY_PATTERN = re.compile(
    r"(?i)(^|_)(password|passwd|secret|credentials?|(api|access|secret|private|wandb)_?key|token)$"
)


def redact(uri: str) -> str:
    """Returns `uri` with its user part, and every query value not known to be harmless, as `***`.

    A plain path is returned as it is.
    """
    if "://" not in uri:
        return uri
    without_user = _AUTHORITY_PATTERN.sub(rf"\g<scheme>{REDACTED}@", uri)
    return _QUERY_PATTERN.sub(_redact_query_value, without_user)


def redact_text(text: str) -> str:
    """Returns `text` with each URI in it redacted."""
    return _URI_PATTERN.sub(lambda match: redact(match[0]), text)


def is_secret_key(key: str) -> bool:
    """Whether a mapping's key, such as the param `api_key`, says that its text is a secret."""
    return _SECRET_KEY_PATTERN.search(key) is not None


def redact_arguments(args: Sequence[str]) -> list[str]:
    """Returns a command line's arguments without the values of `--api-key VALUE` and `--api-key=VALUE`."""
    redacted: list[str] = []
    is_secret = False
    for each in map(str, args):
        name, equals, _ = each.partition("=")
        is_option = each.startswith("-")
        names_secret = is_option and is_secret_key(name.lstrip("-").replace("-", "_"))
        if is_secret and not is_option:
            redacted.append(REDACTED)
        else:
            redacted.append(f"{name}={REDACTED}" if names_secret and equals else each)
        is_secret = names_secret and not equals
    return redacted


def _redact_query_value(match: re.Match[str]) -> str:
    name, value = match["name"], match["value"]
    is_open = name[1:] in _OPEN_QUERY_NAMES and "@" not in value
    return match[0] if is_open else f"{name}={REDACTED}"
