"""What a profile has: its steps and its ops."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from raydist.spec.tasks import TaskId
from raydist.storage.profile_mail import ProfileRequest, write_request
from raydist.storage.run_storage import RunStorage, open_run
from tests.support.in_tasks import flat
from tests.support.late import LateModule
from tests.support.train_functions import dense_model, examples

tf = LateModule("tensorflow")


def events_of(storage: RunStorage, task: TaskId) -> dict[str, list[dict[str, Any]]]:
    """Returns the stats of each event of a task's only profile, by the event's name."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    files = storage.list_files(storage.tensorboard_task(task))
    [key] = [file.key for file in files if file.key.endswith(".xplane.pb")]
    space = xplane_pb2.XSpace.FromString(storage.read_bytes(key))
    events: dict[str, list[dict[str, Any]]] = {}
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                stats = {
                    plane.stat_metadata[stat.metadata_id].name: getattr(stat, stat.WhichOneof("value"))
                    for stat in event.stats
                }
                events.setdefault(plane.event_metadata[event.metadata_id].name, []).append(stats)
    return events


def steps_of(storage: RunStorage, task: TaskId) -> list[int]:
    """Returns the steps that a task's only profile marks."""
    return sorted(stats["step_num"] for stats in events_of(storage, task).get("train", []))


def check_profile(storage: RunStorage, task: str, *, steps: int, first_step: int | None = None) -> None:
    marks = steps_of(storage, TaskId.parse(task))
    assert marks == list(range(marks[0], marks[0] + steps))
    assert first_step in (None, marks[0])
    assert any("MatMul" in name for name in events_of(storage, TaskId.parse(task)))


def fit(ctx: Any, *, keras: str, profiled_steps: int) -> dict[str, Any]:
    """Trains for 24 steps, and has some of them profiled in each task that trains, unless it is 0."""
    library = tf.keras
    assert ("tf_keras" in library.Model.__module__) == (keras == "legacy")
    with ctx.strategy.scope():
        model = dense_model(library, "adam")
    storage = open_run(os.path.dirname(ctx.storage), run=ctx.run_name)

    class Asks(library.callbacks.Callback):
        steps = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.steps += 1
            if self.steps == 3 and profiled_steps:
                request = ProfileRequest(steps=profiled_steps, timeout_s=60)
                write_request(storage, ctx.task, request)
                os.kill(os.getpid(), signal.SIGURG)
                self.wait()

        def wait(self) -> None:
            time.sleep(2.5)  # for two ticks of the thread that looks for requests

    def data() -> Any:
        return tf.data.Dataset.from_tensor_slices(examples(96)).batch(8).repeat()

    ctx.fit(model, data, epochs=2, steps_per_epoch=12, callbacks=[Asks()], verbose=0)
    return {"weights": flat(model)}


def fit_normalised(ctx: Any, *, board: str = "") -> dict[str, Any]:
    """Trains a model with batch normalization for 5 epochs of 4 steps; returns each weight by its tag.

    Args:
      board: Where Keras's TensorBoard callback writes, if it is used.
    """
    layers = tf.keras.layers
    tf.keras.utils.set_random_seed(7)
    with ctx.strategy.scope():
        model = tf.keras.Sequential(
            [
                layers.Input((6,)),
                layers.Dense(8, activation="tanh", name="narrow"),
                layers.BatchNormalization(name="norm"),
                layers.Dense(3, name="out"),
            ],
            name="normalised",
        )
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss=loss)

    def data() -> Any:
        return tf.data.Dataset.from_tensor_slices(examples(32)).batch(8).repeat()

    callbacks = [tf.keras.callbacks.TensorBoard(board, histogram_freq=2)] if board else []
    ctx.fit(model, data, epochs=5, steps_per_epoch=4, verbose=0, callbacks=callbacks)
    weights = [weight for layer in model.layers for weight in layer.weights]
    names = [str(getattr(weight, "path", weight.name)).replace(":", "_") for weight in weights]
    return dict(zip(names, model.get_weights(), strict=True))


def fit_compiled(ctx: Any) -> dict[str, Any]:
    with ctx.strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Input((6,)), tf.keras.layers.Dense(3)])
        model.compile("sgd", "mse", jit_compile=True)
    ctx.fit(model, tf.data.Dataset.from_tensors((np.ones([8, 6]), np.ones([8, 3]))), epochs=2, verbose=0)
    return {}


def abort_like_the_profiler(ctx: Any, *, marker: str, file: str) -> dict[str, Any]:
    """Aborts in a function of `file` where there is no marker yet, and leaves one."""
    if not Path(marker).exists():
        Path(marker).touch()
        exec(compile("os.abort()", file, "exec"))
    return {"steps": 1}
