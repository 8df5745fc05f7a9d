"""How often and how long AWS's client tries one request, which no URI can say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

# Pyarrow opens as many connections to S3 as it has threads for input, which are 8, or 25 if these are more.
# A small picture takes two requests: with 128 at a time, a latency of 50 ms halved the rate, with 256 it took
# a fifth (tests/benchmarks/remote.py).
MAX_REQUESTS = 256


@dataclass(frozen=True, kw_only=True)
class RequestLimits:
    """Limits of one HTTP request to S3.

    Attributes:
      max_attempts: Tries of a request that is answered with 500 or 503, or not at all, with pauses of up to
        1, 2, 4, … s between them. They make up for a part of a large object; for whole calls there is Retry.
      connect_timeout_s: Until the connection stands.
      request_timeout_s: How long nothing may arrive. Pyarrow's own 3 s are too few for a busy store.
    """

    max_attempts: int
    connect_timeout_s: float
    request_timeout_s: float


# A store that takes connections and never answers holds up one read for 4 * 10 s and the pauses, and a write
# twice as long: pyarrow tries once more when it lets go of the stream. With Retry, a call was given up
# after 130 to 180 s.
PATIENT = RequestLimits(max_attempts=4, connect_timeout_s=5.0, request_timeout_s=10.0)
# For what is done again in a moment, and for a first look.
HASTY = RequestLimits(max_attempts=2, connect_timeout_s=2.0, request_timeout_s=3.0)


def allow_requests() -> None:
    """Lets a filesystem that is made after this have so many requests answered at once."""
    if pa.io_thread_count() < MAX_REQUESTS:
        pa.set_io_thread_count(MAX_REQUESTS)  # which start when they are needed


def with_limits(filesystem: Any, limits: RequestLimits) -> Any:
    """Returns a filesystem of the same options with other limits; what is not S3 is returned as it is."""
    if filesystem.type_name != "s3":
        return filesystem
    # What it is pickled by: the only way to its options, which come from the URI and the environment.
    _, (options,) = filesystem.__reduce__()
    retry = pafs.AwsStandardS3RetryStrategy(max_attempts=limits.max_attempts)
    timeouts = {"connect_timeout": limits.connect_timeout_s, "request_timeout": limits.request_timeout_s}
    return pafs.S3FileSystem(**{**options, **timeouts, "retry_strategy": retry})
