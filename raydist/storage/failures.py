"""What fails on storage: errors with a remedy, and retries of those that are transient."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from raydist.errors import StorageError, add_note
from raydist.spec.secrecy import redact_text

logger = logging.getLogger(__name__)


_MAX_CAUSE_LENGTH = 300

_REMEDY_BY_ERRNO = {
    errno.ENOSPC: "free some space there, or choose another place",
    errno.EDQUOT: "free some space there, or choose another place",
    errno.EACCES: "give this user access to it, or choose another place",
    errno.EPERM: "give this user access to it, or choose another place",
    errno.EROFS: "give this user access to it, or choose another place",
    errno.ENOTDIR: "a file stands where a folder is needed; choose another folder",
    errno.EEXIST: "a file stands where a folder is needed; choose another folder",
}
# Object stores have no errno: these are the words of pyarrow's messages.
_REMEDY_BY_WORD = {
    "NO_SUCH_BUCKET": "create the bucket first",
    "ACCESS_DENIED": "check the credentials (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) and their rights",
    "INVALID_ACCESS_KEY": "check AWS_ACCESS_KEY_ID",
    "SIGNATURE_DOES_NOT_MATCH": "check AWS_SECRET_ACCESS_KEY",
    "NETWORK_CONNECTION": "check that this host reaches the store (AWS_ENDPOINT_URL, proxies)",
    "SLOW_DOWN": "the store is overloaded; try later, and continue with --resume",
    "HTTP status 5": "the store has a failure of its own; try later, and continue with --resume",
    "INTERNAL_FAILURE": "the store has a failure of its own; try later, and continue with --resume",
    "OAuth2 access token": "check the credentials (GOOGLE_APPLICATION_CREDENTIALS) and their rights",
    "google::cloud::Status(UNAVAILABLE": "check that this host reaches the store",
    "libjvm": "install Java and Hadoop's client, and set JAVA_HOME, HADOOP_HOME and CLASSPATH",
    "libhdfs": "install Hadoop's client, and set HADOOP_HOME and CLASSPATH",
    "Unrecognized filesystem": "use a path, file://, s3://, gs:// or hdfs://",
}
# What passes by itself: a network file system that comes back, a store that is busy or cut off for a moment.
_TRANSIENT_ERRNOS = frozenset(
    {
        *(errno.EAGAIN, errno.EINTR, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH),
        *(errno.ENETDOWN, errno.ENETUNREACH, errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED),
    }
)
# As AWS's SDK names them. A read that is answered with 500 or 503 shows as INTERNAL_FAILURE and is not
# tried again by the SDK; NO_SUCH_UPLOAD is the second try of a commit whose answer was lost.
_TRANSIENT_AWS_ERRORS = re.compile(
    r"AWS Error (?:NETWORK_CONNECTION|SLOW_DOWN|INTERNAL_FAILURE|SERVICE_UNAVAILABLE|THROTTLING"
    r"|REQUEST_TIMEOUT|REQUEST_EXPIRED|NO_SUCH_UPLOAD|UNKNOWN \(HTTP status (?:5\d\d|429)\))"
)
_TRANSIENT_GOOGLE_ERRORS = re.compile(r"google::cloud::Status\((?:UNAVAILABLE|DEADLINE_EXCEEDED|INTERNAL)\b")
# curl's 60 and 77: certificates, which are as wrong the next time.
_WRONG_CERTIFICATE = re.compile(r"curlCode: (?:60|77),")
_GENERAL_REMEDY = "check the name, and that this host can reach it"


@contextlib.contextmanager
def storage_errors(doing: str, uri: str) -> Iterator[None]:
    """Raises a StorageError for any error of the block, as in `cannot {doing} {uri}: …`."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise storage_error(doing, uri, error) from error


def storage_error(doing: str, uri: str, error: BaseException) -> StorageError:
    """Returns the StorageError to raise for `error`: what failed, where, why, and what to do."""
    return StorageError(f"cannot {doing} {uri}: {_cause(error)}; {_remedy(error)}")


def is_transient(error: BaseException) -> bool:
    """Whether the same call may succeed in a moment; a full disk or a missing right never does."""
    if isinstance(error, OSError) and error.errno:
        return error.errno in _TRANSIENT_ERRNOS
    text = str(error)
    if _WRONG_CERTIFICATE.search(text):
        return False
    return bool(_TRANSIENT_AWS_ERRORS.search(text) or _TRANSIENT_GOOGLE_ERRORS.search(text))


def is_full_disk(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _cause(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno:
        text = os.strerror(error.errno)
    else:
        text = redact_text(str(error).strip().partition("\n")[0])
    text = text if len(text) <= _MAX_CAUSE_LENGTH else f"{text[:_MAX_CAUSE_LENGTH]}…"
    return ", ".join([text, *getattr(error, "__notes__", ())])


def _remedy(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno in _REMEDY_BY_ERRNO:
        return _REMEDY_BY_ERRNO[error.errno]
    text = str(error)
    return next((remedy for word, remedy in _REMEDY_BY_WORD.items() if word in text), _GENERAL_REMEDY)


# No try of a call begins later than this after the first failure; raydist/guide/storage.md says it too.
PATIENCE_S = 60.0
# For a person who waits: a mistyped endpoint should not take a minute to be told.
SHORT_PATIENCE_S = 10.0
_FIRST_PAUSE_S = 0.5
_MAX_PAUSE_S = 8.0
# Of its own: the global generator is the user's, who seeds it.
_random = random.Random()

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Retry:
    """How a call continues after errors that may pass.

    Attributes:
      patience_s: No try begins later than this after the first failure; 0 tries once.
      jitter: Returns a number from 0 to 1, by which hosts that failed together come back apart.
    """

    patience_s: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    jitter: Callable[[], float] = _random.random

    def call(self, do: Callable[[], Result]) -> Result:
        """Returns what `do` returns, which may be called several times; raises its last error."""
        failed_s, longest_pause_s = None, _FIRST_PAUSE_S
        while True:
            try:
                return do()
            except (OSError, pa.ArrowException) as error:
                if not is_transient(error):
                    raise
                pause_s = longest_pause_s * (1 + self.jitter()) / 2
                failed_s = self.clock() if failed_s is None else failed_s
                tried_s = self.clock() - failed_s
                if tried_s + pause_s > self.patience_s:
                    if tried_s:
                        add_note(error, f"and so for {tried_s:.0f} s")
                    raise
                logger.info("storage failed, next try in %.1f s: %s", pause_s, error)
            self.sleep(pause_s)
            longest_pause_s = min(2 * longest_pause_s, _MAX_PAUSE_S)
