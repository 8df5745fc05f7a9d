"""`raydist compare` on jobs that train: what they measure, and that Ctrl-C ends them."""

from __future__ import annotations

import csv
import os
import signal
import time
from pathlib import Path

import pytest

from raydist.storage.run_names import run_names
from raydist.storage.run_storage import Storage
from raydist.storage.studies import StudyStore
from tests.e2e.conftest import ROOT, Raydist, RunningRay, start_raydist

pytestmark = pytest.mark.slow

# More epochs than a run has time for: each is stopped.
_JOB = (str(ROOT / "jobs/digits.py"), "--address", "local", "-p", "epochs=100000")


def test_digits_with_one_and_two_workers(raydist: Raydist, tmp_path: Path) -> None:
    options = ("--workers", "1,2", "--steps", "50", "--storage", "runs", "--name", "digits")
    ended = raydist("compare", *_JOB, *options, "--json", "--csv", "a.csv", "--plot", "a.svg")
    assert ended.code == 0, ended.err
    alone, two = ended.json["runs"]
    assert [alone["run"], two["run"]] == ["digits-one-device", "digits-2-workers"]
    assert (alone["strategy"], two["strategy"]) == ("one_device", "multi_worker_mirrored")
    for one in (alone, two):
        assert one["state"] == "CANCELLED"
        assert one["steps"] >= 50
        assert one["batch"] == 96
        # Examples are counted by the input, steps by the loop: both tell the same speed.
        assert 0.3 < one["examples_per_s"] * one["step_s"] / 96 < 3
        assert 0 <= one["input_wait"] <= 1
        assert one["memory_bytes"] > 1e8
    assert alone["collective_wait"] is None
    assert 0 < two["collective_wait"] <= 1
    assert two["speed_up"] == pytest.approx(two["examples_per_s"] / alone["examples_per_s"], rel=0.01)
    assert "2 workers train" in ended.json["answer"]
    assert [row["run"] for row in csv.DictReader((tmp_path / "a.csv").read_text().splitlines())] == [
        "digits-one-device",
        "digits-2-workers",
    ]
    assert (tmp_path / "a.svg").read_text().startswith("<svg")
    assert raydist("status", "digits-2-workers", "--storage", "runs").code == 0
    listed = raydist("list", "--study", "digits", "--storage", "runs", "--json").json["runs"]
    assert {one["run"] for one in listed} == {"digits-one-device", "digits-2-workers"}
    kept = StudyStore(Storage.open(str(tmp_path / "runs"))).comparison("digits")
    assert (kept["sentence"], kept["picture"]) == (ended.json["answer"], (tmp_path / "a.svg").read_text())


def test_ctrl_c_stops_the_run_that_goes_on(running_ray: RunningRay, tmp_path: Path) -> None:
    process = start_raydist(
        *(running_ray, tmp_path, "compare", *_JOB, "--workers", "2"),
        *("--storage", "runs", "--name", "digits", "--steps", "1000000000"),
    )
    deadline = time.monotonic() + 120
    storage = Storage.open(str(tmp_path / "runs"))
    while "digits-one-device" not in run_names(storage):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.2)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "stopped by Ctrl-C" in err
    assert out == ""
    assert run_names(storage) == ["digits-one-device"]


def test_synchronous_and_asynchronous(raydist: Raydist, tmp_path: Path) -> None:
    options = ("--strategies", "multi_worker_mirrored,parameter_server", "--workers", "2", "--steps", "50")
    job = (str(ROOT / "jobs/sync_vs_async.py"), "--address", "local", "-p", "steps=1000000")
    ended = raydist("compare", *job, *options, "--storage", "runs", "--name", "both", "--json")
    assert ended.code == 0, ended.err
    runs = ended.json["runs"]
    assert [one["run"] for one in runs] == ["both-multi_worker_mirrored", "both-parameter_server"]
    assert [one["staleness"] for one in runs] == [0, 1]
    assert ended.json["examples"] > 0
    for one in runs:
        assert one["examples_per_s"] > 0
        assert one["loss_at_equal_examples"] > 0
        assert one["loss_at_equal_time"] > 0
