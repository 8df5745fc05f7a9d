"""A loop that a new process takes up is traced once: what the process before it found out is handed on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.conftest import Raydist

# In attempt 1 the loss of a job that `changes` is a sum, which trains by another rule.
_JOB = """
import json, os, signal, threading, time
from pathlib import Path

import raydist


@raydist.job(workers=2, params={"folder": "", "changes": False})
def train(ctx: raydist.TrainContext):
    import tensorflow as tf

    folder, me = Path(ctx.params["folder"]), f"{ctx.attempt}-{ctx.task.index}"
    with ctx.strategy.scope():
        weight = tf.Variable([[1.0], [2.0]])
        done = tf.Variable(0, dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
        optimizer = tf.keras.optimizers.SGD(0.01)
        optimizer.build([weight])
    begun = ctx.restore(weight=[weight], done=[done], optimizer=optimizer) or 0
    (folder / f"begun-{me}").write_text(str(begun))

    def die():
        while done.numpy() < 100:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)

    if me == "0-1":
        threading.Thread(target=die, daemon=True).start()

    def step(batch):
        with open(folder / f"traced-{me}", "a") as traces:
            traces.write("x")
        x, y = batch
        reduce = tf.reduce_sum if ctx.params["changes"] and ctx.attempt else tf.reduce_mean
        with tf.GradientTape() as tape:
            loss = reduce(tf.square(y - x @ weight))
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
        done.assign_add(1)
        return {"loss": loss}

    x = tf.reshape(tf.range(16.0), [8, 2]) / 16
    data = tf.data.Dataset.from_tensors((x, tf.ones([8, 1]))).repeat()
    metrics = ctx.train_steps(step, data, num_steps=300, steps_per_call=1)
    (folder / f"end-{me}").write_text(json.dumps([weight.numpy().tolist(), metrics["loss"]]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("changes", [False, True])
def test_step_is_looked_at_again_only_if_its_graph_is_another(
    changes: bool, raydist: Raydist, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "job.py").write_text(_JOB)
    ended = raydist(
        *("submit", "code/job.py", "--json", "--no-export", "-p", f"changes={str(changes).lower()}"),
        *("-p", f"folder={tmp_path}"),
    )
    assert ended.code == 0, ended.err
    assert ended.json["attempts"] == 2
    traces = [(tmp_path / f"traced-1-{worker}").read_text() for worker in (0, 1)]
    assert [len(one) > 1 for one in traces] == [changes, changes]
    begun = int((tmp_path / "begun-1-0").read_text())
    assert begun > 50

    x, y, weight = np.arange(16.0).reshape(8, 2) / 16, np.ones([8, 1]), np.array([[1.0], [2.0]])
    for number in range(300):
        loss_scale = 1.0 if changes and number >= begun else 1 / 8
        weight = weight + 0.01 * 2 * loss_scale * x.T @ (y - x @ weight)
    for worker in (0, 1):
        found, _ = json.loads((tmp_path / f"end-1-{worker}").read_text())
        np.testing.assert_allclose(found, weight, rtol=1e-4)
