"""What may pass by itself is tried again for a while, and what does not pass never."""

from __future__ import annotations

import errno

import pyarrow as pa
import pytest

from raydist.storage.failures import Retry, is_transient, storage_error
from tests.storage.conftest import FakeClock

BUSY = OSError("When reading: AWS Error SLOW_DOWN during GetObject operation: reduce your rate")


class Failing:
    """Raises `error` the first `times` calls, and counts all."""

    def __init__(self, error: Exception, times: int) -> None:
        self.error, self.times, self.calls = error, times, 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.times:
            raise self.error
        return "done"


def retry(clock: FakeClock, *, patience_s: float = 60.0, jitter: float = 1.0) -> Retry:
    return Retry(patience_s=patience_s, clock=clock, sleep=clock.advance, jitter=lambda: jitter)


def test_call_that_fails_for_a_moment_is_done_in_the_end(clock: FakeClock) -> None:
    failing = Failing(BUSY, times=5)
    assert retry(clock).call(failing) == "done"
    assert (failing.calls, clock.now_s) == (6, 1000.0 + 0.5 + 1 + 2 + 4 + 8)


def test_jitter_halves_the_pauses_at_most(clock: FakeClock) -> None:
    retry(clock, jitter=0.0).call(Failing(BUSY, times=3))
    assert clock.now_s == 1000.0 + 0.25 + 0.5 + 1.0


@pytest.mark.parametrize("jitter", [0.0, 0.3, 1.0])
def test_outage_that_lasts_is_given_up_within_the_patience(clock: FakeClock, jitter: float) -> None:
    failing = Failing(BUSY, times=1000)
    with pytest.raises(OSError, match="SLOW_DOWN") as caught:
        retry(clock, jitter=jitter).call(failing)
    assert 1052.0 <= clock.now_s <= 1060.0
    assert f"and so for {clock.now_s - 1000.0:.0f} s" in str(storage_error("read", "s3://b/k", caught.value))


def test_failure_of_a_long_upload_is_tried_again(clock: FakeClock) -> None:
    failing = Failing(BUSY, times=1)

    def upload() -> str:
        clock.advance(300.0)
        return failing()

    assert retry(clock).call(upload) == "done"


def test_without_patience_a_call_is_tried_once(clock: FakeClock) -> None:
    failing = Failing(BUSY, times=1000)
    with pytest.raises(OSError, match="SLOW_DOWN"):
        retry(clock, patience_s=0.0).call(failing)
    assert (failing.calls, clock.now_s) == (1, 1000.0)


AWS = "When writing key 'k' in bucket 'b': AWS Error {} during HeadObject operation: {}"


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(OSError(errno.ENOSPC, "x"), id="disk_full"),
        pytest.param(OSError(errno.EDQUOT, "x"), id="quota"),
        pytest.param(PermissionError(errno.EACCES, "x"), id="no_access"),
        pytest.param(FileNotFoundError(errno.ENOENT, "x"), id="missing"),
        pytest.param(OSError(errno.EROFS, "x"), id="read_only"),
        pytest.param(OSError(AWS.format("NO_SUCH_BUCKET", "")), id="no_bucket"),
        pytest.param(OSError(AWS.format("ACCESS_DENIED", "No response body.")), id="access_denied"),
        pytest.param(OSError(AWS.format("UNKNOWN (HTTP status 403)", "")), id="403_of_a_head"),
        pytest.param(OSError(AWS.format("UNKNOWN (HTTP status 400)", "")), id="400_of_a_head"),
        pytest.param(OSError(AWS.format("NETWORK_CONNECTION", "curlCode: 60, SSL peer")), id="certificate"),
        pytest.param(pa.ArrowInvalid("Unrecognized filesystem type"), id="no_such_scheme"),
    ],
)
def test_what_does_not_pass_is_tried_once(clock: FakeClock, error: Exception) -> None:
    failing = Failing(error, times=1000)
    assert not is_transient(error)
    with pytest.raises(type(error)):
        retry(clock).call(failing)
    assert (failing.calls, clock.now_s) == (1, 1000.0)


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(OSError(errno.ESTALE, "x"), id="nfs_came_back"),
        pytest.param(OSError(errno.ETIMEDOUT, "x"), id="timed_out"),
        pytest.param(
            OSError(AWS.format("UNKNOWN (HTTP status 503)", "No response body.")), id="503_of_a_head"
        ),
        pytest.param(OSError(AWS.format("INTERNAL_FAILURE", "try again")), id="500"),
        pytest.param(OSError(AWS.format("NETWORK_CONNECTION", "curlCode: 28, Timeout")), id="timeout"),
        pytest.param(OSError(AWS.format("NO_SUCH_UPLOAD", "")), id="answer_to_a_commit_lost"),
        pytest.param(OSError("google::cloud::Status(UNAVAILABLE: Retry policy)"), id="google"),
    ],
)
def test_what_may_pass_is_tried_again(clock: FakeClock, error: Exception) -> None:
    assert retry(clock).call(Failing(error, times=2)) == "done"
