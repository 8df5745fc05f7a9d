"""Turns what operating systems and object stores say into a StorageError with a remedy."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

import pyarrow as pa

from raydist.errors import StorageError
from raydist.storage.redaction import redact_text

_MAX_CAUSE_LENGTH = 300

_REMEDY_BY_ERRNO = {
    errno.ENOSPC: "free some space there, or choose another --storage",
    errno.EDQUOT: "free some space there, or choose another --storage",
    errno.EACCES: "give this user access to it, or choose another --storage",
    errno.EPERM: "give this user access to it, or choose another --storage",
    errno.EROFS: "give this user access to it, or choose another --storage",
    errno.ENOTDIR: "a file stands where a folder is needed; choose another --storage",
    errno.EEXIST: "a file stands where a folder is needed; choose another --storage",
}
# Object stores have no errno: these are the words of pyarrow's messages.
_REMEDY_BY_WORD = {
    "NO_SUCH_BUCKET": "create the bucket first",
    "ACCESS_DENIED": "check the credentials (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) and their rights",
    "INVALID_ACCESS_KEY": "check AWS_ACCESS_KEY_ID",
    "SIGNATURE_DOES_NOT_MATCH": "check AWS_SECRET_ACCESS_KEY",
    "NETWORK_CONNECTION": "check that this host reaches the store (AWS_ENDPOINT_URL, proxies)",
    "libjvm": "install Java and Hadoop's client, and set JAVA_HOME, HADOOP_HOME and CLASSPATH",
    "libhdfs": "install Hadoop's client, and set HADOOP_HOME and CLASSPATH",
    "Unrecognized filesystem": "use a path, file://, s3://, gs:// or hdfs://",
}
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


def _cause(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    text = redact_text(str(error).strip().partition("\n")[0])
    return text if len(text) <= _MAX_CAUSE_LENGTH else f"{text[:_MAX_CAUSE_LENGTH]}…"


def _remedy(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno in _REMEDY_BY_ERRNO:
        return _REMEDY_BY_ERRNO[error.errno]
    text = str(error)
    return next((remedy for word, remedy in _REMEDY_BY_WORD.items() if word in text), _GENERAL_REMEDY)
