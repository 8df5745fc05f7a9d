"""cluster_configs/slurm/submit.sh under Slurm's own daemons, on two hosts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import WaitUntil
from tests.support.slow_job import write_slow_job
from tests.support.slurm import Slurm, why_unavailable

SCRIPT = Path(__file__).parents[2] / "cluster_configs" / "slurm" / "submit.sh"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable())),
]


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with Slurm.started() as slurm:
        write_slow_job(slurm.shared)
        yield slurm


def submit(slurm: Slurm, name: str, *arguments: str) -> str:
    """Sends the script to Slurm and returns the job's number."""
    options = (f"--job-name={name}", f"--output={slurm.shared}/{name}.txt", "--cpus-per-task=2", "--parsable")
    job = slurm.shared / "code" / "slow.py"
    return slurm.run("sbatch", *options, SCRIPT, job, "--storage", slurm.shared, *arguments)


def wait_for_end(slurm: Slurm, number: str, wait_until: WaitUntil) -> str:
    """Waits for the job's end and returns its state and exit code."""
    wait_until(
        lambda: slurm.job(number)["JobState"] not in ("PENDING", "RUNNING", "COMPLETING"), timeout_s=400
    )
    job = slurm.job(number)
    return f"{job['JobState']} {job['ExitCode']}"


def is_nothing_left(slurm: Slurm) -> bool:
    names = ("raylet", "gcs_server", "ray::", "raydist")
    return not [pid for host in slurm.hosts for name in names for pid in host.pids_of(name)]


def output(slurm: Slurm, name: str) -> str:
    return (slurm.shared / f"{name}.txt").read_text()


def test_run_has_a_worker_on_each_host_and_leaves_nothing(slurm: Slurm, wait_until: WaitUntil) -> None:
    number = submit(slurm, "plain", "-p", "epochs=1", "-p", "pause_s=0")
    assert wait_for_end(slurm, number, wait_until) == "COMPLETED 0:0", output(slurm, "plain")
    record = slurm.status(f"plain-{number}")
    assert (record["state"], record["steps"]) == ("SUCCEEDED", 10)
    assert sorted(task["host"] for task in record["tasks"]) == ["10.77.0.1", "10.77.0.2"]
    wait_until(lambda: is_nothing_left(slurm), timeout_s=30)


def test_exit_code_of_a_training_that_fails_is_that_of_the_job(slurm: Slurm, wait_until: WaitUntil) -> None:
    number = submit(slurm, "failing", "-p", "raise_at=2", "--max-failures", "0")
    assert wait_for_end(slurm, number, wait_until) == "FAILED 1:0", output(slurm, "failing")
    assert "the user's own mistake" in output(slurm, "failing")
    wait_until(lambda: is_nothing_left(slurm), timeout_s=30)


@pytest.mark.exhaustive("requeue", covered_by="[time-limit], where the script requeues its job itself")
@pytest.mark.parametrize("cause", ["time-limit", "requeue"])
def test_requeued_job_goes_on_from_its_newest_checkpoint(
    slurm: Slurm, wait_until: WaitUntil, cause: str
) -> None:
    number = submit(slurm, cause, "-p", "pause_s=0.3", "--checkpoint-every", "1")
    wait_until(lambda: slurm.status(f"{cause}-{number}")["steps"] >= 12, timeout_s=120)
    if cause == "requeue":  # as after a preemption
        slurm.run("scontrol", "requeue", number)
    else:  # the warning that --signal asks for
        slurm.run("scancel", "--batch", "--signal=USR1", number)
    wait_until(lambda: slurm.job(number)["Restarts"] == "1", timeout_s=60)
    # Slurm waits two minutes before a requeued job begins.
    assert wait_for_end(slurm, number, wait_until) == "COMPLETED 0:0", output(slurm, cause)
    record = slurm.status(f"{cause}-{number}")
    assert (record["state"], record["steps"], record["attempts"]) == ("SUCCEEDED", 40, 2)
    wait_until(lambda: is_nothing_left(slurm), timeout_s=30)
