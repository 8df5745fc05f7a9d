"""Keeps credentials out of messages and out of what a run leaves on storage."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

from raydist.spec.settings.secrecy import REDACTED, holds_secret, is_secret_name, is_secret_variable

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
# `api_key=…`, `-papi_key=…` and `--env=API_KEY=…`, as a command line and Hydra's overrides have them.
_ASSIGNMENT_PATTERN = re.compile(r"(?P<name>(?P<option>-p|--env=|--?)?(?P<key>[A-Za-z_][\w.-]*))=")
# Options of environment variables, of which other names are secrets than of params.
_WITH_VARIABLES = ("--env", "--runtime-env")
_KEY_PATTERN = re.compile(r"([\w.-]+)[\"']?\s*:")
# What `redact` leaves of a URI.
_REDACTED_PATTERN = re.compile(rf"{_SCHEME}\S*(?:\*\*\*@|=\*\*\*)")
# Shorter ones stand in too many texts by chance.
_MIN_SECRET_LENGTH = 4
# A shorter user part without a password is a user's name.
_MIN_TOKEN_LENGTH = 16


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


def redact_arguments(args: Sequence[str]) -> list[str]:
    """Returns a command line's arguments without their secrets.

    These are the values of `--api-key VALUE`, `--api-key=VALUE`, `api_key=VALUE` and `--env API_KEY=VALUE`, a
    mapping such as `{api_key: VALUE}`, and what `redact` hides.
    """
    redacted: list[str] = []
    is_secret, before = False, ""
    for each in map(str, args):
        if is_secret and not each.startswith("-"):
            redacted.append(REDACTED)
        else:
            redacted.append(_redact_argument(each, has_variables=before in _WITH_VARIABLES))
        is_secret = each.startswith("-") and "=" not in each and is_secret_name(each.lstrip("-"))
        before = each
    return redacted


def _redact_argument(argument: str, *, has_variables: bool) -> str:
    named = _ASSIGNMENT_PATTERN.match(argument)
    if named is None:
        return REDACTED if _names_secret(argument, has_variables=has_variables) else redact_text(argument)
    key, value = named["key"], argument[named.end() :]
    has_variables = has_variables or named["option"] == "--env=" or named["name"] in _WITH_VARIABLES
    is_secret = is_secret_name(key) or (has_variables and is_secret_variable(key, value))
    if is_secret or _names_secret(value, has_variables=has_variables):
        return f"{named['name']}={REDACTED}"
    return redact_text(argument)


def _names_secret(text: str, *, has_variables: bool) -> bool:
    """Whether a text is a mapping in YAML or JSON with a key that says that its value is a secret."""
    if not text.lstrip().startswith(("{", "[")):
        return False
    keys = _KEY_PATTERN.findall(text)
    return any(is_secret_name(key) or (has_variables and is_secret_variable(key, text)) for key in keys)


def holds_redacted(value: object) -> bool:
    """Whether something in a value that was read back was taken out when it was stored."""
    if isinstance(value, Mapping):
        return any(map(holds_redacted, value.values()))
    if isinstance(value, list | tuple):
        return any(map(holds_redacted, value))
    return isinstance(value, str) and (value == REDACTED or _REDACTED_PATTERN.search(value) is not None)


@dataclass(frozen=True)
class Secrets:
    """Texts that were given to a run and are shown nowhere, such as in what an exception says."""

    texts: frozenset[str] = field(default=frozenset(), repr=False)

    @classmethod
    def of(cls, settings: object) -> Secrets:
        """Returns the secrets among settings: values of names that say so, and credentials in URIs."""
        texts = set(_secret_texts("", settings))
        texts |= {unquote(text) for text in texts}
        # As a URI and as an exception's arguments have them.
        encoded = {quote(text, safe="") for text in texts} | {repr(text)[1:-1] for text in texts}
        return cls(frozenset(text for text in texts | encoded if len(text) >= _MIN_SECRET_LENGTH))

    def hide(self, text: str) -> str:
        """Returns `text` without them, and without the credentials of any URI."""
        text = redact_text(text)
        for secret in sorted(self.texts, key=len, reverse=True):  # one may hold another
            text = text.replace(secret, REDACTED)
        return text


def _secret_texts(name: str, value: object) -> Iterator[str]:
    is_secret = holds_secret(name, value)
    match value:
        case Mapping():
            for key, item in value.items():
                yield from _secret_texts(name if is_secret else str(key), item)
        case list() | tuple():
            if all(isinstance(each, str) for each in value):
                yield from _secret_arguments(value)
            for item in value:
                yield from _secret_texts(name if is_secret else "", item)
        case str():
            if is_secret:
                yield value
            for found in _URI_PATTERN.finditer(value):
                yield from _secrets_in(found[0])
        case int() | float() if is_secret:
            yield str(value)


def _secret_arguments(args: Sequence[str]) -> Iterator[str]:
    for given, shown in zip(args, redact_arguments(args), strict=True):
        if shown == REDACTED:
            yield given
        elif shown.endswith(f"={REDACTED}") and "://" not in given:
            yield given[len(shown) - len(REDACTED) :]


def _secrets_in(uri: str) -> Iterator[str]:
    user = _AUTHORITY_PATTERN.match(uri)
    if user is not None:
        name, colon, password = user[0].partition("://")[2].rpartition("@")[0].partition(":")
        if colon:
            yield password
        elif len(name) >= _MIN_TOKEN_LENGTH:  # as https://TOKEN@host
            yield name
    for query in _QUERY_PATTERN.finditer(uri):
        if _redact_query_value(query) != query[0]:
            yield query["value"]


def _redact_query_value(match: re.Match[str]) -> str:
    name, value = match["name"], match["value"]
    is_open = name[1:] in _OPEN_QUERY_NAMES and "@" not in value
    return match[0] if is_open else f"{name}={REDACTED}"
