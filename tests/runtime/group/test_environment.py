"""What a job's own variables and runtime environment do, in the processes of a real Ray."""

from __future__ import annotations

import dataclasses
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest

from raydist.errors import ClusterError, JobFileError, SpecError
from raydist.outcome.status import TaskState
from raydist.planning.plan import Plan
from raydist.planning.this_machine import usable_cores
from raydist.runtime.cluster.runtime_env import check_runtime_env, pickle_by_value, runtime_env_of
from tests.conftest import WaitUntil
from tests.runtime.conftest import Drive, Start, make_plan

NAMES = ["OWN", "TF_NUM_INTRAOP_THREADS", "KERAS_BACKEND", "PYTHONHASHSEED"]


def with_environment(plan: Plan, **fields: Any) -> Plan:
    return dataclasses.replace(plan, job=dataclasses.replace(plan.job, **fields))


def notes_of(drive: Drive, task: str) -> dict[str, str]:
    return dict(note.split("=", 1) for note in drive.statuses[task].notes)  # type: ignore[misc]


def test_every_task_has_the_variables_of_the_job(start: Start, wait_until: WaitUntil) -> None:
    env = {"OWN": "a b", "TF_NUM_INTRAOP_THREADS": "3"}
    drive = start(with_environment(make_plan(shows=NAMES), env=env))
    wait_until(lambda: drive.all_in(TaskState.FINISHED, "worker/0", "worker/1"))
    for task in ("worker/0", "worker/1"):
        told = notes_of(drive, task)
        assert [told[name] for name in NAMES] == ["a b", "3", "tensorflow", "None"]


@pytest.mark.slow
def test_worker_has_the_planned_threads_as_far_as_its_host_has_cores(
    start: Start, wait_until: WaitUntil
) -> None:
    drive = start(dataclasses.replace(make_plan(1, shows=NAMES), worker_threads=10_000))
    wait_until(lambda: drive.all_in(TaskState.FINISHED, "worker/0"))
    assert notes_of(drive, "worker/0")["TF_NUM_INTRAOP_THREADS"] == str(usable_cores())


@pytest.mark.slow
def test_variable_that_python_reads_at_its_start_is_there_by_then(
    start: Start, wait_until: WaitUntil
) -> None:
    plan = make_plan(1, shows=NAMES, imports=["tests.support.hash_seed"])
    drive = start(with_environment(plan, env={"PYTHONHASHSEED": "7", "OWN": "1"}))
    wait_until(lambda: drive.all_in(TaskState.FINISHED, "worker/0"))
    told = notes_of(drive, "worker/0")
    assert (told["PYTHONHASHSEED"], told["OWN"]) == ("7", "1")
    assert told["tests.support.hash_seed"] == "7"


def test_job_without_them_asks_for_no_runtime_environment() -> None:
    plan = make_plan(1)
    assert runtime_env_of(plan.job) is None
    assert runtime_env_of(with_environment(plan, env={"OWN": "1"}).job) is None


@pytest.mark.slow
def test_package_of_a_runtime_environment_is_installed_for_the_tasks(
    start: Start, wait_until: WaitUntil, tmp_path: Path
) -> None:
    pytest.importorskip("virtualenv")
    wheel, facts = tmp_path / "carried-1.0-py3-none-any.whl", "carried-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("carried.py", "VALUE = 'installed'")
        archive.writestr(f"{facts}/METADATA", "Metadata-Version: 2.1\nName: carried\nVersion: 1.0\n")
        archive.writestr(f"{facts}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{facts}/RECORD", "")
    packages = {"packages": [str(wheel)], "pip_install_options": ["--no-index"]}
    drive = start(with_environment(make_plan(1, imports=["carried"]), runtime_env={"pip": packages}))
    wait_until(lambda: drive.all_in(TaskState.FINISHED, "worker/0"), timeout_s=240)
    assert notes_of(drive, "worker/0")["carried"] == "installed"


def test_runtime_environment_that_a_host_cannot_set_up_ends_the_attempt(
    start: Start, wait_until: WaitUntil
) -> None:
    plan = make_plan(1)
    drive = start(with_environment(plan, runtime_env={"conda": "nowhere-such-an-environment"}))
    with pytest.raises(ClusterError, match="worker/0 cannot be started: its host cannot set up") as caught:
        wait_until(lambda: drive.all_in(TaskState.FINISHED, "worker/0"))
    assert "Traceback" not in str(caught.value)
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize(
    "asked", [{"pip": 3}, {"pip": ["a"], "conda": "b"}, {"pip": ["a"], "uv": ["a"]}], ids=str
)
def test_runtime_environment_that_ray_does_not_take_is_a_mistake(asked: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="runtime_env is not one that Ray takes: "):
        check_runtime_env(with_environment(make_plan(1), runtime_env=asked).job)


def test_function_that_uses_what_cannot_be_pickled_is_a_mistake() -> None:
    lock = threading.Lock()

    def helper() -> object:
        return lock

    def train(ctx: object) -> object:
        return helper()

    with pytest.raises(JobFileError, match="the job train uses lock, which exists in this process only"):
        pickle_by_value(train)
