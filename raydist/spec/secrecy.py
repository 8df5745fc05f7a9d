"""What counts as a secret, and how it is kept out of messages, of records and of what a run stores."""

from __future__ import annotations

import enum
import functools
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

from raydist.spec.job import JobSpec

REDACTED = "***"  # stands for what is not kept

# No plural of token: `special_tokens` and `max_tokens` are common params of a model.
_SECRET_NAME = re.compile(
    r"(^|_)((password|passwd|passphrase|pwd|pw|auth|secret|credential|connection_string|webhook(_ur[il])?"
    r"|(api|access|account|auth|encryption|private|secret|signing|wandb)_?key)s?|token)$"
)
_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# In a model it is a number of a vocabulary.
_COUNTED_NAME = re.compile(r"token$")
# Of a variable's name. A param may have such a word without being a secret, as `key_dim` and `num_tokens` do.
_SECRET_WORDS = frozenset(
    {
        *("PASSWORD", "PASSWD", "PASSPHRASE", "PASS", "SECRET", "SECRETS", "TOKEN", "TOKENS", "KEY", "KEYS"),
        *(
            "APIKEY",
            "CREDENTIAL",
            "CREDENTIALS",
            "PAT",
            "DSN",
            "WEBHOOK",
            "COOKIE",
            "AUTHORIZATION",
            "PWD",
            "PW",
            "OTP",
        ),
    }
)
_SECRET_ENDINGS = (
    *("PASSWORD", "PASSWORT", "PASSWD", "SSHPASS", "APIKEY", "SECRET", "TOKEN", "CONNECTION_STRING"),
    *("DATABASE_URL", "_AUTH", "_PHRASE", "_SAS", "_CREDS", "_LOGIN"),
)
# Each shell sets them to a folder.
_OPEN_VARIABLES = frozenset({"PWD", "OLDPWD"})
# What is a secret wherever it stands, but for a named group in front; by what each has in it, because to look
# for that takes a fraction of the time of a search. Each repetition is bounded or ends a match, so a search
# is linear. detect-secrets knows more services, but no names or headers, and needs requests and PyYAML.
TOKENS: Mapping[tuple[str, ...], str] = {
    ("-----BEGIN ",): (
        r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?:[^-]{0,10000}-----END [A-Z ]{0,40}PRIVATE KEY-----)?"
    ),
    ("AKIA", "ASIA"): r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",  # AWS
    ("FwoGZXIvYXdz", "IQoJb3JpZ2lu"): r"\b(?:FwoGZXIvYXdz|IQoJb3JpZ2lu)[\w+/=]+",
    ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"): r"\bgh[pousr]_[A-Za-z0-9]{20,}",
    ("github_pat_",): r"\bgithub_pat_[A-Za-z0-9_]{20,}",
    ("glpat-",): r"\bglpat-[A-Za-z0-9_-]{16,}",
    ("hf_",): r"\bhf_[A-Za-z0-9]{20,}",
    ("sk-",): r"\bsk-[A-Za-z0-9_-]{20,}",
    ("xox",): r"\bxox[abeprs]-[A-Za-z0-9-]{10,}",
    ("AIza",): r"\bAIza[0-9A-Za-z_-]{30,}",
    ("k_live_", "k_test_"): r"\b[rs]k_(?:live|test)_[A-Za-z0-9]{16,}",
    ("SK",): r"\bSK[0-9a-f]{32}\b",
    ("SG.",): r"\bSG\.[\w-]{16,80}\.[\w-]{16,}",
    ("nvapi-",): r"\bnvapi-[\w-]{20,}",
    ("hvs.",): r"\bhvs\.[\w-]{16,}",
    ("npm_",): r"\bnpm_[A-Za-z0-9]{30,}",
    ("pypi-",): r"\bpypi-[\w-]{20,}",
    ("dapi",): r"\bdapi[0-9a-f]{32}\b",
    ("dop_v1_",): r"\bdop_v1_[0-9a-f]{32,}",
    ("ya29.",): r"\bya29\.[\w-]{20,}",
    ("r8_",): r"\br8_\w{30,}",
    ("gsk_",): r"\bgsk_\w{30,}",
    ("eyJ",): r"\beyJ[A-Za-z0-9_-]{8,600}\.[A-Za-z0-9_-]{8,}",  # a JSON web token
    ("hooks.slack.com/",): r"(?P<hook>\bhooks\.slack\.com/services/)[\w/-]+",
    ("sig=",): r"(?P<signature>\bsig=)[^&\s'\"]+",
}
# The same, of any case.
HEADERS: Mapping[tuple[str, ...], str] = {
    ("authorization", "x-"): (
        r"(?P<header>(?i:\b(?:authorization|x-[a-z-]{0,30}(?:key|token))['\"]?\s{0,9}[:=]\s{0,9}['\"]?"
        r"(?:(?:basic|bearer|token)\s{1,9})?))[^\s'\",;]{3,}"
    ),
    ("bearer",): r"(?P<scheme>(?i:\bbearer\s{1,9}))(?=[A-Za-z+/._~-]{0,200}[0-9=])[A-Za-z0-9+/=._~-]{8,}",
}
_TOKENS = re.compile("|".join([*TOKENS.values(), *HEADERS.values()]))
_MARKS, _HEADER_MARKS = (tuple(mark for marks in table for mark in marks) for table in (TOKENS, HEADERS))
# Of a variable's value, which a text may have for other reasons.
_SECRET_VALUES = re.compile(
    r"(?i:\bbearer\s{1,9}\S{8}|\bbasic\s{1,9}(?=[a-z+/]{0,200}[0-9=])[a-z0-9+/]{10,}={0,2}(?![^\s'\",])"
    r"|(?:password|passwd|pwd|secret|private_key|api_?key|\"auth)['\"]?\s{0,9}[:=]\s{0,9}['\"]?[^\s'\"]"
    r"|\blogin\s{1,9}\S{1,200}\s{1,9}password\s)"  # of a .netrc
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
    has_word = f"_{upper}".endswith(_SECRET_ENDINGS) or not _SECRET_WORDS.isdisjoint(upper.split("_"))
    return has_word or is_secret_name(name)


def _is_secret_value(value: str) -> bool:
    if _TOKENS.search(value) or _SECRET_VALUES.search(value) or redact(value) != value:
        return True
    return bool(_WORD.fullmatch(value)) and _bits(value) > _RANDOM_BITS


def _bits(text: str) -> float:
    """Returns Shannon's entropy per character."""
    shares = [count / len(text) for count in Counter(text).values()]
    return -sum(share * math.log2(share) for share in shares)


# A scheme's length is bounded: these patterns also search texts of megabytes without a URI.
_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]{0,20}://"
# AWS's secrets may hold a `/`, which ought to be %2F in a URI: hide one that is not, up to its `@`,
# but leave `hdfs://host:8020/a@b` alone.
_USER_INFO = re.compile(r"[^/?#@\s'\"]*|[^/?:@\s'\"]+:(?!\d{1,5}/)[^@\s'\"]*")
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
    return _QUERY_PATTERN.sub(_redact_query_value, _without_users(uri))


def _without_users(text: str) -> str:
    """Returns a text with `***` in the place of each user part; linear, as the text may be anybody's."""
    kept, end = [], 0
    for found in re.finditer("@", text):
        at = found.start()
        for mark in dict.fromkeys((text.find("://", end, at), text.rfind("://", end, at))):
            if mark > 0 and text[mark - 1].isalnum() and _USER_INFO.fullmatch(text, mark + 3, at):
                kept += [text[end : mark + 3], REDACTED]
                end = at
                break
        else:
            kept.append(text[end:at])
            end = at
    return "".join([*kept, text[end:]])


def redact_text(text: str) -> str:
    """Returns `text` with each URI in it redacted, and without tokens and credentials in headers."""
    if "://" in text:
        text = _URI_PATTERN.sub(lambda match: redact(match[0]), text)
    return _TOKENS.sub(_redact_token, text) if _may_hold_token(text) else text


def _may_hold_token(text: str) -> bool:
    lower = text.lower()
    return any(mark in text for mark in _MARKS) or any(mark in lower for mark in _HEADER_MARKS)


def _redact_token(match: re.Match[str]) -> str:
    return f"{match[match.lastgroup] if match.lastgroup else ''}{REDACTED}"


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
    return isinstance(value, str) and REDACTED in value


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
    scheme, _, rest = uri.partition("://")
    shown = _without_users(uri)
    if shown.startswith(f"{scheme}://{REDACTED}@"):
        after = shown[len(f"{scheme}://{REDACTED}") :]
        name, colon, password = rest[: len(rest) - len(after)].partition(":")
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


def secrets_of(job: JobSpec) -> Secrets:
    """Returns what `Secrets.hide` takes out of the texts of this job's run."""
    commands = [list(role.command) for role in job.roles.values()]
    given = {"commands": commands, "params": job.params, "args": job.args, "storage": job.storage}
    hidden = [value for name, value in job.env.items() if is_secret_variable(name, value)]
    places = {"mlflow": job.mlflow, "on_end": job.on_end, "runtime_env": job.runtime_env}
    return Secrets.of({**given, **places, "secrets": hidden})


ARGS = ("args", "command")  # the keys of a command line's arguments


def dump_plain_json(value: Any, *, indent: int | None = None) -> str:
    """Returns `value` as strict JSON: NaN and infinities as null, enums by value, secrets as `***`.

    Secrets are credentials inside URIs, and texts under keys such as `api_key`. What JSON cannot hold
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
