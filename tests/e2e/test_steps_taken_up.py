"""A step that a new process takes up is traced once: what the process before it found out is handed on."""

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


@raydist.job(workers=2, params={"folder": "", "changes": False, "by_fit": False})
def train(ctx: raydist.TrainContext):
    import tensorflow as tf
    from tensorflow import keras

    folder, me = Path(ctx.params["folder"]), f"{ctx.attempt}-{ctx.task.index}"
    reduce = tf.reduce_sum if ctx.params["changes"] and ctx.attempt else tf.reduce_mean

    class Model(keras.Model):
        def train_step(self, batch):
            with open(folder / f"traced-{me}", "a") as traces:
                traces.write("x")
            x, y = batch
            with tf.GradientTape() as tape:
                loss = reduce(tf.square(y - self(x)))
            weights = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
            return {"loss": loss}

    with ctx.strategy.scope():
        inputs = keras.Input((2,))
        model = Model(inputs, keras.layers.Dense(1, use_bias=False)(inputs))
        model.layers[-1].kernel.assign([[1.0], [2.0]])
        model.compile(optimizer=keras.optimizers.SGD(0.01))
    model.optimizer.build(model.trainable_variables)

    def die():
        while model.optimizer.iterations.numpy() < 100:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)

    def begin(logs=None):
        (folder / f"begun-{me}").write_text(str(model.optimizer.iterations.numpy()))
        if me == "0-1":
            threading.Thread(target=die, daemon=True).start()

    x = tf.reshape(tf.range(16.0), [8, 2]) / 16
    data = tf.data.Dataset.from_tensors((x, tf.ones([8, 1]))).repeat()
    if ctx.params["by_fit"]:
        begins = keras.callbacks.LambdaCallback(on_train_begin=begin)
        ctx.fit(model, data, epochs=1, steps_per_epoch=300, callbacks=[begins])
    else:
        ctx.restore(model=model, optimizer=model.optimizer)
        begin()
        ctx.train_steps(model.train_step, data, num_steps=300, steps_per_call=1)
    (folder / f"end-{me}").write_text(json.dumps(model.get_weights()[0].tolist()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("keras", ["3", "legacy"])
@pytest.mark.parametrize("by_fit", [True, False])
@pytest.mark.parametrize("changes", [True, False])
def test_step_is_looked_at_again_only_if_its_graph_is_another(
    changes: bool, by_fit: bool, keras: str, raydist: Raydist, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "job.py").write_text(_JOB)
    params = {"folder": tmp_path, "changes": str(changes).lower(), "by_fit": str(by_fit).lower()}
    given = [part for name, value in params.items() for part in ("-p", f"{name}={value}")]
    ended = raydist("submit", "code/job.py", "--json", "--no-export", "--keras", keras, *given)
    assert ended.code == 0, ended.err
    assert ended.json["attempts"] == 2
    traces = [(tmp_path / f"traced-1-{worker}").read_text() for worker in (0, 1)]
    least = 1 + by_fit  # a fit traces the step also to build what it makes
    assert [len(one) > least for one in traces] == [changes, changes]
    begun = int((tmp_path / "begun-1-0").read_text())
    assert 0 < begun < 300

    x, y, weight = np.arange(16.0).reshape(8, 2) / 16, np.ones([8, 1]), np.array([[1.0], [2.0]])
    for step in range(300):
        factor = 2.0 if changes and step >= begun else 2.0 / 8
        weight = weight + 0.01 * factor * x.T @ (y - x @ weight)
    for worker in (0, 1):
        found = json.loads((tmp_path / f"end-1-{worker}").read_text())
        np.testing.assert_allclose(found, weight, rtol=1e-4, atol=1e-5)
