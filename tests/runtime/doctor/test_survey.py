"""`raydist doctor --address` on a real Ray of one host; tests/e2e/test_hosts.py has one of two."""

from __future__ import annotations

import dataclasses
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from raydist.runtime.cluster.connection import Connection
from raydist.runtime.cluster.inventory import probe_inventory
from raydist.runtime.doctor import survey as survey_module
from raydist.runtime.doctor.findings import Finding, QuickFacts
from raydist.runtime.doctor.probe import versions_here
from raydist.runtime.doctor.survey import HostProbe, problems_of, survey
from raydist.storage.proof import StorageProof


def by_name(found: list[Finding]) -> dict[str, Finding]:
    return {one.what: one for one in found}


@pytest.mark.slow
def test_host_of_a_ray_is_looked_at_and_nothing_stays_on_the_storage(
    ray_cluster: object, no_leaks: None, tmp_path: Path
) -> None:
    found = by_name(survey(None, storage_uri=str(tmp_path / "runs")))
    assert {
        "Ray",
        "versions",
        "devices",
        "GPUs",
        "TPUs",
        "disk",
        "clock",
        "storage",
        "exposure",
        "proxies",
    } == {*found}
    assert "CPU:0" in found["devices"].text
    assert "GFLOP/s" in found["devices"].text
    assert "tensorflow 2." in found["versions"].text
    assert found["clock"].is_ok
    assert found["storage"].is_ok
    assert "seen; writes " in found["storage"].text
    assert list((tmp_path / "runs").iterdir()) == []


def test_storage_that_the_driver_cannot_write_is_told(ray_cluster: object, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = by_name(survey(None, storage_uri=str(tmp_path / "file")))
    assert (found["storage"].is_ok, found["storage"].exit_code) == (False, 4)
    assert "file" in found["storage"].text


def test_host_that_dies_meanwhile_is_told(
    ray_cluster: object, no_leaks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class DyingProbe(HostProbe):
        calls = 0

        def now(self) -> float:
            self.calls += 1
            if self.calls == 3:
                os._exit(1)
            return super().now()

    monkeypatch.setattr(survey_module, "HostProbe", DyingProbe)
    found = by_name(survey(None, storage_uri=str(tmp_path)))
    assert {*found} == {"Ray", "host"}
    assert not found["host"].is_ok
    assert "was lost: " in found["host"].text


@pytest.mark.slow
def test_suspected_host_is_asked_for_its_problems(
    ray_cluster: Connection, no_leaks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class SlowProbe(HostProbe):
        def glance(self, proof: StorageProof, env: Mapping[str, str]) -> QuickFacts:
            time.sleep(60)
            return super().glance(proof, env)

    proof = StorageProof.leave(storage_uri=str(tmp_path), run="r")
    other = dataclasses.replace(proof, token="another")
    [host] = {each.name for each in probe_inventory(ray_cluster).hosts}
    for limit in ("_GLANCE_START_TIMEOUT_S", "_GLANCE_TIMEOUT_S"):
        monkeypatch.setattr(survey_module, limit, 60.0)  # the machine may be busy
    assert "storage: " not in str(problems_of({host}, proof, env={}))
    assert "does not see the storage" in problems_of({host, "10.0.0.99"}, other, env={})[host]
    assert problems_of({"10.0.0.99"}, other, env={}) == {}  # Ray does not count on it
    monkeypatch.setattr(survey_module, "_GLANCE_TIMEOUT_S", 0.1)
    monkeypatch.setattr(survey_module, "HostProbe", SlowProbe)
    assert problems_of({host}, proof, env={})[host].startswith("did not answer within 0.1 s")


@pytest.mark.slow
def test_suspected_host_that_is_slow_to_start_a_process_has_no_problem(
    ray_cluster: Connection, no_leaks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class BusyHostProbe(HostProbe):
        def __init__(self) -> None:
            time.sleep(2)

        def glance(self, proof: StorageProof, env: Mapping[str, str]) -> QuickFacts:
            return QuickFacts(versions=versions_here())

    monkeypatch.setattr(survey_module, "_GLANCE_START_TIMEOUT_S", 60.0)
    monkeypatch.setattr(survey_module, "_GLANCE_TIMEOUT_S", 2.0)
    monkeypatch.setattr(survey_module, "HostProbe", BusyHostProbe)
    [host] = {each.name for each in probe_inventory(ray_cluster).hosts}
    proof = StorageProof.leave(storage_uri=str(tmp_path), run="r")
    assert problems_of({host}, proof, env={}) == {}


def test_probe_has_the_variables_of_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/proc")
    monkeypatch.setattr(tempfile, "tempdir", None)
    proof = StorageProof.leave(storage_uri=str(tmp_path), run="r")
    [disk] = HostProbe().glance(proof, {"TMPDIR": str(tmp_path)}).disks
    assert disk.path == str(tmp_path)
