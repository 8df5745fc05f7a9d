"""`raydist doctor --address` on a real Ray of one host; tests/e2e/test_hosts.py has one of two."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raydist.runtime.checkup import survey as survey_module
from raydist.runtime.checkup.findings import Finding
from raydist.runtime.checkup.survey import HostProbe, survey


def by_name(found: list[Finding]) -> dict[str, Finding]:
    return {one.what: one for one in found}


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
