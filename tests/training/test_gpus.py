"""GPUs that Ray assigned and TensorFlow does not see: the hardware is data here."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raydist.errors import DeviceError
from raydist.outcome.status import FailureKind
from raydist.spec.tasks import TaskId
from raydist.task import failure_of
from raydist.training.cluster import gpus
from raydist.training.cluster.gpus import SeenGpus, problem_of

NO_LIBRARIES = (
    "I0000 00:00:1795383984.984572     156 gpu_device.cc:2020] Created nothing for the GPU\n"
    "W0000 00:00:1795383984.984572     156 gpu_device.cc:2365] Cannot dlopen some GPU libraries. Please make "
    "sure the missing libraries mentioned above are installed properly if you would like to use GPU. Follow\n"
    "Skipping registering GPU devices...\n"
)
NO_DRIVER = (
    "2026-11-21 09:30:12.123456: E external/xla/cuda_platform.cc:51] failed call to cuInit: INTERNAL: CUDA "
    "error: Failed call to cuInit: UNKNOWN ERROR (303)\n"
)


def seen(num_seen: int, **facts: Any) -> SeenGpus:
    return SeenGpus(**{"num_seen": num_seen, "visible": "0", "version": "2.21.0", "log": "", **facts})


@pytest.mark.parametrize(
    ("facts", "num_gpus", "problem"),
    [
        pytest.param(
            seen(0, log=NO_LIBRARIES),
            1,
            "has 1 GPU from Ray (CUDA_VISIBLE_DEVICES=0), and TensorFlow 2.21.0 sees none: Cannot dlopen "
            "some GPU libraries; install tensorflow[and-cuda]==2.21.0 on that host, and a driver that "
            "supports its CUDA version, or run without GPUs (--gpus worker=0)",
            id="no-libraries",
        ),
        pytest.param(
            seen(0, log=NO_DRIVER),
            1,
            "sees none: failed call to cuInit: INTERNAL: CUDA error: Failed call to cuInit: UNKNOWN ERROR "
            "(303); install",
            id="no-driver",
        ),
        pytest.param(
            seen(1, visible=None),
            2,
            "has 2 GPUs from Ray, and TensorFlow 2.21.0 sees 1; install",
            id="one-of-two",
        ),
    ],
)
def test_missing_gpus_are_told_with_tensorflows_reason(facts: SeenGpus, num_gpus: int, problem: str) -> None:
    assert problem in (problem_of(facts, num_gpus=num_gpus, role="worker") or "")


@pytest.mark.parametrize("num_seen", [2, 3])
def test_gpus_that_are_seen_are_no_problem(num_seen: int) -> None:
    assert problem_of(seen(num_seen, log=NO_LIBRARIES), num_gpus=2, role="worker") is None


def test_task_without_its_gpus_fails_in_a_sentence_that_names_task_and_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpus, "_look_for_gpus", lambda: seen(0))
    worker = TaskId.parse("worker/1")
    with pytest.raises(DeviceError) as caught:
        gpus.check_gpus(worker, host="10.0.0.2", num_gpus=1)
    failure = failure_of(worker, caught.value)
    assert (failure.kind, failure.traceback) == (FailureKind.DEVICE, None)
    assert failure.message.startswith(
        "worker/1 on 10.0.0.2 has 1 GPU from Ray (CUDA_VISIBLE_DEVICES=0), and "
    )


def test_evaluator_without_its_gpus_is_told_the_evaluators_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_look_for_gpus", lambda: seen(0))
    with pytest.raises(DeviceError, match=r"^evaluator/0 on .* \(--gpus evaluator=0\)$"):
        gpus.check_gpus(TaskId.parse("evaluator/0"), host="10.0.0.2", num_gpus=1)


def test_what_tensorflow_printed_is_in_the_log_if_it_fails(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(kind: str) -> list[str]:
        os.write(2, b"cuInit: no driver\n")
        raise RuntimeError(kind)

    config = SimpleNamespace(list_physical_devices=fail)
    monkeypatch.setitem(sys.modules, "tensorflow", cast(Any, SimpleNamespace(config=config)))
    with pytest.raises(RuntimeError, match="GPU"):
        gpus.check_gpus(TaskId.parse("worker/0"), host="10.0.0.2", num_gpus=1)
    assert capfd.readouterr().err == "cuInit: no driver\n"
