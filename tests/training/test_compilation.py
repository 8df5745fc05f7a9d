"""Where XLA compiles what several replicas with GPUs share: the hardware is data here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raydist.training.replicas import compilation


@pytest.mark.parametrize(
    ("facts", "is_told"),
    [
        pytest.param({"jit": "autoclustering"}, True, id="set_jit"),
        pytest.param({"flags": "--tf_xla_cpu_global_jit --tf_xla_auto_jit=2"}, True, id="flags"),
        pytest.param({"flags": "--tf_xla_auto_jit=0"}, False, id="flags-off"),
        pytest.param({}, False, id="off"),
        pytest.param({"jit": "autoclustering", "num_gpus": 0}, False, id="cpus"),
        pytest.param({"jit": "autoclustering", "num_replicas": 1}, False, id="one-replica"),
    ],
)
def test_xla_on_several_replicas_with_gpus_is_noted(facts: dict[str, Any], is_told: bool) -> None:
    sentence = compilation.note_on_clustering(
        **{"num_replicas": 2, "num_gpus": 1, "jit": "", "flags": "", **facts}
    )
    assert (sentence is not None and "#120580, #120989, #121429" in sentence) == is_told


@pytest.mark.slow  # the only one here that imports TensorFlow
def test_what_tensorflow_says_of_devices_and_xla_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    import tensorflow as tf

    from raydist.training.reporting import reporter

    noted: list[str | None] = []  # None: nothing is told
    monkeypatch.setattr(reporter, "note", noted.append)
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: ["GPU:0"] if kind == "GPU" else [])
    strategy = SimpleNamespace(num_replicas_in_sync=2)
    compilation.note_clustering(strategy)
    assert noted == [None]
    tf.config.optimizer.set_jit("autoclustering")
    compilation.note_clustering(strategy)
    tf.config.optimizer.set_jit(False)
    assert "XLA compiles parts of the steps" in str(noted[-1])
