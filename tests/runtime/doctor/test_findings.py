"""What `raydist doctor --address` makes of what the hosts tell."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from raydist.known_versions import KNOWN
from raydist.runtime.doctor.findings import (
    Clock,
    Device,
    Disk,
    Finding,
    HostFacts,
    QuickFacts,
    StorageSpeed,
    finding_of_link,
    findings_of,
    quick_findings_of,
)

OURS = {"raydist": "0.1.0", **{name: f"{known.newest}.0" for name, known in KNOWN.items()}, "python": "3.11"}
CPU = Device(kind="CPU", name="CPU:0", gflops=100.0)
GPU = Device(kind="GPU", name="GPU:0", gflops=9000.0)
FINE = HostFacts(
    hostname="host-1",
    versions=OURS,
    devices=(CPU,),
    disks=(Disk(path="/tmp", free_bytes=20 * 2**30, total_bytes=40 * 2**30),),
    storage=StorageSpeed(write=50e6, read=80e6),
)
REFERENCES = {"the driver": OURS}
CLOCK = Clock(offset_s=0.01, error_s=0.001)


def found(what: str, *, resources: Any = None, clock: Clock = CLOCK, **facts: Any) -> Finding:
    """Returns the finding of that name of a host that differs from a fine one in some facts."""
    told = dataclasses.replace(FINE, **facts)
    everything = findings_of("10.0.0.1", told, references=REFERENCES, resources=resources or {}, clock=clock)
    (one,) = (each for each in everything if each.what == what)
    return one


def test_host_without_faults_has_fine_findings_only() -> None:
    everything = findings_of("10.0.0.1", FINE, references=REFERENCES, resources={"CPU": 4.0}, clock=CLOCK)
    assert [one.what for one in everything if not one.is_ok] == []
    assert {one.exit_code for one in everything} == {0}
    assert {one.host for one in everything} == {"10.0.0.1"}


@pytest.mark.parametrize(
    ("what", "facts", "sentences"),
    [
        pytest.param(
            "versions",
            {"versions": {**OURS, "keras": "3.1.0"}},
            ["host 10.0.0.1 has keras 3.1.0"],
            id="differs",
        ),
        pytest.param("devices", {"devices": (), "device_error": "no libcudart"}, ["no libcudart"], id="tf"),
        pytest.param(
            "devices",
            {"devices": (CPU, dataclasses.replace(GPU, gflops=None)), "gpus": ("A, driver 1",)},
            ["wrong on GPU:0"],
            id="wrong-product",
        ),
        pytest.param(
            "GPUs",
            {"resources": {"GPU": 2.0}, "gpus": ("A100, driver 550", "A100, driver 550")},
            ["sees 0 of 2 in Ray, 2 of the driver", "A100, driver 550", "tensorflow[and-cuda]"],
            id="gpus-without-cuda",
        ),
        pytest.param(
            "GPUs",
            {"devices": (CPU, GPU), "gpus": ("A100, driver 550",)},
            ["Ray counts 0 of 1", "--num-gpus=1"],
            id="gpus-without-ray",
        ),
        pytest.param(
            "disk",
            {"disks": (Disk(path="/tmp", free_bytes=2**30, total_bytes=9 * 2**30),)},
            ["1.0 of 9.0 GiB free in /tmp", "TMPDIR"],
            id="full-disk",
        ),
        pytest.param("clock", {"clock": Clock(offset_s=-7.5, error_s=0.1)}, ["-7.500 s", "NTP"], id="clock"),
        pytest.param(
            "storage",
            {"storage": None, "storage_error": "is missing there"},
            ["is missing there"],
            id="storage",
        ),
        pytest.param(
            "exposure",
            {"public_addresses": ("8.8.8.8",)},
            ["would listen on 8.8.8.8", "--ports"],
            id="public",
        ),
        pytest.param(
            "exposure",
            {"public_addresses": ("8.8.8.8",), "task_ports": (40001,)},
            ["tasks listen on 8.8.8.8, port 40001", "firewall"],
            id="open-port",
        ),
    ],
)
def test_fault_is_named_with_what_to_do(what: str, facts: dict[str, Any], sentences: list[str]) -> None:
    one = found(what, **facts)
    assert (one.is_ok, one.exit_code) == (False, 4 if what == "storage" else 3)
    for sentence in sentences:
        assert sentence in one.text


def test_version_that_is_older_or_newer_than_known_is_said_where_all_hosts_have_it() -> None:
    old, new = ({**OURS, "ray": version} for version in ("2.9.0", "2.99.0"))
    facts = [dataclasses.replace(FINE, versions=versions) for versions in (old, new)]
    first, second = (findings_of("a", one, references={}, resources={}, clock=CLOCK)[0] for one in facts)
    assert not first.is_ok
    assert 'ray 2.9.0 is too old; install "ray>=2.46' in first.text
    assert second.is_ok
    assert "ray 2.99.0 is newer than" in second.text


def test_clock_whose_offset_is_not_known_exactly_is_not_blamed() -> None:
    assert found("clock", clock=Clock(offset_s=4.0, error_s=3.0)).is_ok


def test_gpus_that_ray_and_tensorflow_have_are_fine() -> None:
    one = found("GPUs", devices=(CPU, GPU), gpus=("A100, driver 550",), resources={"GPU": 1.0})
    assert (one.is_ok, one.text) == (True, "A100, driver 550")


@pytest.mark.parametrize(
    ("rate", "is_ok", "sentence"),
    [
        (900e6, True, "900 MB/s to b"),
        (1e6, False, "1 MB/s to b, which is slow"),
        ("timed out", False, "cannot send to b: timed out; open the ports"),
    ],
    ids=["fast", "slow", "closed"],
)
def test_link_is_judged_by_its_rate(rate: float | str, is_ok: bool, sentence: str) -> None:
    one = finding_of_link("a", "b", rate)
    assert (one.host, one.is_ok) == ("a", is_ok)
    assert sentence in one.text


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        pytest.param({}, [], id="fine"),
        pytest.param({"versions": {**OURS, "keras": "3.1.0"}}, ["versions"], id="versions"),
        pytest.param(
            {"disks": (Disk(path="/tmp", free_bytes=2**30, total_bytes=40 * 2**30),), "storage_error": "no"},
            ["disk", "storage"],
            id="two",
        ),
    ],
)
def test_of_what_is_reported_at_once_only_problems_are_told(facts: dict[str, Any], told: list[str]) -> None:
    quick = dataclasses.replace(QuickFacts(versions=OURS, disks=FINE.disks), **facts)
    found = list(quick_findings_of("10.0.0.1", quick, references=REFERENCES))
    assert [one.what for one in found] == told
    assert not any(one.is_ok for one in found)
