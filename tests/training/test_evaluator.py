"""An evaluator beside workers that train together."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.support.processes import Cluster, run_function, started

FUNCTIONS = "tests.support.given_functions"


@pytest.mark.exhaustive("legacy", covered_by="the same with Keras 3")
@pytest.mark.slow
@pytest.mark.parametrize(("keras", "devices"), [("3", 2), ("legacy", None)], ids=["3", "legacy"])
def test_evaluator_evaluates_every_checkpoint_and_decides_which_is_best(
    keras: str, devices: int | None, tmp_path: Path
) -> None:
    # The devices stand for the GPUs that an evaluator may have; a worker takes one CPU device in any case.
    where = Cluster(strategy="multi_worker_mirrored", workers=2, keras=keras, evaluator=True, devices=devices)
    [expected] = run_function(f"{FUNCTIONS}:through_ctx", Cluster(keras=keras), way="split")
    with started(
        f"{FUNCTIONS}:through_ctx",
        where,
        storage=tmp_path,
        way="split",
        job_options={"evaluator": "true", "keep": "1", "keep_best": "val_loss:max"},
    ) as [*workers, evaluator]:
        for worker in workers:
            assert worker.process.wait(timeout=120) == 0, worker.text()
        evaluator.process.send_signal(signal.SIGUSR2)  # what Command.FINISH does in a task
        assert evaluator.process.wait(timeout=60) == 0, evaluator.text()
        trained = json.loads((workers[0].folder / "values.json").read_text())
        followed = json.loads((evaluator.folder / "values.json").read_text())
        with np.load(workers[1].folder / "arrays.npz") as arrays:
            np.testing.assert_allclose(arrays["weights"], expected.arrays["weights"], atol=1e-5)
    assert set(trained["history"]) == {"loss", "accuracy"}  # the evaluator's work is not done twice
    for name in ("loss", "accuracy"):  # what stands after ctx.fit runs there too
        assert followed["history"][name] == pytest.approx(trained["history"][name])
    for name in ("val_loss", "val_accuracy"):
        found = followed["history"][name][-1]
        assert found == pytest.approx(expected.values["history"][name][-1], abs=1e-5)
    # All of them, and the worst, which is the first, beside the newest: the evaluator may be far behind.
    assert followed["replicas"] == (devices or 1)
    losses = expected.values["history"]["val_loss"]
    assert followed["history"]["val_loss"] == pytest.approx(losses, abs=1e-5)
    assert max(losses) == losses[0]
    first, last = (trained["step"] // 3, trained["step"])
    kept = {path.name for path in (tmp_path / "test/checkpoints").iterdir()}
    assert kept == {f"step-{first}-a0", f"step-{last}-a0"}
