"""A host that does not see the driver's storage says so, and names itself and the storage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from raydist.errors import StorageError
from raydist.storage.filesystem import Storage
from raydist.storage.proof import StorageProof
from tests.support.faulty_http import Fault, FaultyProxy

ELSEWHERE = "choose a --storage that every host reaches under the same name: s3://"


def test_host_that_sees_the_storage_passes(storage_uri: str) -> None:
    proof = StorageProof.leave(storage_uri=storage_uri, run="first")
    proof.check(host="10.0.0.2")
    assert Storage.open(storage_uri).list_names("first") == ["token"]


def test_earlier_attempts_token_does_not_pass(storage_uri: str) -> None:
    before = StorageProof.leave(storage_uri=storage_uri, run="first")
    StorageProof.leave(storage_uri=storage_uri, run="first").check(host="10.0.0.2")
    with pytest.raises(StorageError, match=r"first/token has another token there: it is another folder; "):
        before.check(host="10.0.0.2")


def test_folder_that_is_missing_on_the_host_is_named(tmp_path: Path) -> None:
    proof = StorageProof.leave(storage_uri=str(tmp_path / "runs"), run="first")
    shutil.rmtree(tmp_path / "runs")
    with pytest.raises(StorageError) as caught:
        proof.check(host="10.0.0.2")
    assert str(caught.value).startswith(
        "host 10.0.0.2 does not see the storage that the driver writes to: "
        f"{tmp_path}/runs/first/token is missing there; {ELSEWHERE}"
    )
    assert not (tmp_path / "runs").exists()


def test_storage_that_is_there_until_the_end_passes(storage_uri: str) -> None:
    StorageProof.leave(storage_uri=storage_uri, run="first").check_unchanged(host="10.0.0.2")


@pytest.mark.parametrize(
    ("is_replaced", "what"),
    [(False, "is missing on host 10.0.0.2"), (True, "has another token on host 10.0.0.2")],
)
def test_storage_that_was_lost_or_replaced_during_the_run_is_named(
    tmp_path: Path, is_replaced: bool, what: str
) -> None:
    proof = StorageProof.leave(storage_uri=str(tmp_path / "runs"), run="first")
    shutil.rmtree(tmp_path / "runs")
    if is_replaced:
        StorageProof.leave(storage_uri=str(tmp_path / "runs"), run="first")
    with pytest.raises(StorageError) as caught:
        proof.check_unchanged(host="10.0.0.2")
    assert str(caught.value).startswith(
        f"the run's storage was lost or replaced during the run: {tmp_path}/runs/first/token {what}; "
    )


def test_host_without_rights_is_named(proxy: FaultyProxy, s3_uri: str) -> None:
    proof = StorageProof.leave(storage_uri=s3_uri, run="first")
    proxy.choose = lambda request: Fault.FORBIDDEN
    with pytest.raises(
        StorageError, match=r"host 10\.0\.0\.2 cannot use the run's storage: .*check the credentials"
    ):
        proof.check(host="10.0.0.2")


@pytest.mark.slow
def test_outage_at_the_start_of_a_later_attempt_is_waited_for(proxy: FaultyProxy, s3_uri: str) -> None:
    # More tries than a first look has: 2 of each request, in about 5 calls.
    proxy.choose = lambda request: Fault.DROPPED if request.number < 16 else None
    proof = StorageProof.leave(storage_uri=s3_uri, run="first", is_first=False)
    proof.check(host="10.0.0.2")
    assert proxy.faults[Fault.DROPPED] == 16


def test_host_that_cannot_reach_the_store_is_named(s3_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    proof = StorageProof.leave(storage_uri=s3_uri, run="first")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(
        StorageError,
        match=r"host 10\.0\.0\.2 cannot use the run's storage: .*s3://.*and so for \d+ s; check that this",
    ):
        proof.check(host="10.0.0.2")
