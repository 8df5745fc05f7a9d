from __future__ import annotations

from typing import Any

import pytest

from raydist.planning.assignment import Changes, static_environment
from raydist.spec.job import KerasFlavour


def changes(environ: dict[str, str] | None = None, **fields: Any) -> Changes:
    given: dict[str, Any] = {"keras": KerasFlavour.KERAS_3, "num_cpus": 1.0, "num_gpus": 0} | fields
    return static_environment(environ=environ or {}, **given)


def test_environment_of_a_cpu_task() -> None:
    assert changes() == {
        "TF_USE_LEGACY_KERAS": "0",
        "KERAS_BACKEND": "tensorflow",
        "TF_NUM_INTRAOP_THREADS": "1",
        "TF_NUM_INTEROP_THREADS": "2",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "TF_GRPC_REUSE_PORT": "true",
        "grpc_proxy": "",
        "TF_CONFIG": None,
        "CUDA_VISIBLE_DEVICES": "",
    }


def test_legacy_keras_is_chosen_explicitly() -> None:
    assert changes(keras=KerasFlavour.LEGACY)["TF_USE_LEGACY_KERAS"] == "1"


def test_gpus_that_ray_made_visible_stay() -> None:
    assert "CUDA_VISIBLE_DEVICES" not in changes(num_gpus=1)


@pytest.mark.parametrize(("num_cpus", "threads"), [(0.0, "1 2"), (0.5, "1 2"), (2.0, "2 2"), (8.5, "8 8")])
def test_threads_follow_the_cpus_of_the_actor(num_cpus: float, threads: str) -> None:
    made = changes(num_cpus=num_cpus)
    assert f"{made['TF_NUM_INTRAOP_THREADS']} {made['TF_NUM_INTEROP_THREADS']}" == threads


def test_planned_threads_come_before_those_of_the_cpus() -> None:
    made = changes(num_cpus=1.0, num_threads=6)
    assert (made["TF_NUM_INTRAOP_THREADS"], made["TF_NUM_INTEROP_THREADS"]) == ("6", "6")


@pytest.mark.parametrize(("value", "is_removed"), [("false", True), ("0", True), ("use_caller", False)])
def test_calls_that_would_wait_for_dead_peers_are_ended(value: str, is_removed: bool) -> None:
    made = changes({"GRPC_FAIL_FAST": value})
    assert ("GRPC_FAIL_FAST" in made) is is_removed
    assert made.get("GRPC_FAIL_FAST") is None


def test_proxy_is_taken_from_grpc_alone() -> None:
    made = changes({"http_proxy": "http://proxy:1", "HTTPS_PROXY": "http://proxy:1"})
    assert {name: value for name, value in made.items() if "proxy" in name.lower()} == {"grpc_proxy": ""}


def test_variables_of_the_job_come_before_those_of_raydist() -> None:
    made = changes(given={"TF_NUM_INTRAOP_THREADS": "7", "grpc_proxy": "http://proxy:1", "OWN": "1"})
    assert made["TF_NUM_INTRAOP_THREADS"] == "7"
    assert (made["grpc_proxy"], made["OWN"]) == ("http://proxy:1", "1")


def test_tpu_is_passed_by_name() -> None:
    assert changes(tpu_name="t1")["TPU_NAME"] == "t1"
