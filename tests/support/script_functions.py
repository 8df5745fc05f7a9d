"""What the scripts of tests/scripts train, on one device."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from tests.support.scripts import FOLDER


def keras_losses(ctx: Any) -> dict[str, Any]:
    """multi_worker_keras.py with the global batch of two workers, without any strategy."""
    import tensorflow as tf

    setup = _setup()
    tf.keras.utils.set_random_seed(7)
    model = setup.build_and_compile_cnn_model()
    history = model.fit(setup.digits_dataset(128), epochs=3, steps_per_epoch=14, verbose=0)
    return {"losses": np.array(history.history["loss"])}


def loop_losses(ctx: Any) -> dict[str, Any]:
    """custom_training.py, likewise."""
    import tensorflow as tf

    setup = _setup()
    tf.keras.utils.set_random_seed(7)
    images, labels = setup.digits()
    train = (
        tf.data.Dataset.from_tensor_slices((images[:1536], labels[:1536])).shuffle(2000, seed=1).batch(128)
    )
    model, optimizer = setup.build_cnn_model(), tf.keras.optimizers.Adam(learning_rate=0.001)
    loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    losses = []
    for _ in range(3):
        steps = []
        for x, y in train:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(loss_object(y, model(x, training=True)))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            steps.append(float(loss))
        test = tf.reduce_mean(loss_object(labels[1536:], model(images[1536:], training=False)))
        losses += [float(np.mean(steps)), float(test)]
    return {"losses": np.array(losses)}


def is_current(ctx: Any) -> dict[str, Any]:
    import raydist

    return {"is current": raydist.context() is ctx}


def _setup() -> Any:
    sys.path.insert(0, str(FOLDER))
    import digits_setup

    return digits_setup


def scope_without_help(ctx: Any, *, folder: str) -> dict[str, bool]:
    """Returns whether clear_session keeps a scope, and whether a loaded function tells of its placeholder."""
    import tensorflow as tf

    class Doubled(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = tf.Variable(2.0)

        @tf.function(input_signature=[tf.TensorSpec(())])
        def __call__(self, given: Any) -> Any:
            return self.factor * given

    tf.saved_model.save(Doubled(), folder)
    tf.distribute.experimental_set_strategy(ctx.strategy)
    loaded = tf.saved_model.load(folder)
    try:
        loaded(tf.constant(1.0))
        is_told = False
    except tf.errors.InvalidArgumentError as error:
        is_told = "not supposed to be" in str(error)
    tf.keras.backend.clear_session()
    return {"kept": tf.distribute.has_strategy(), "told": is_told}


def shared_files(ctx: Any) -> dict[str, list[bool]]:
    """Returns which paths other workers may write too, of a task with and without a working folder."""
    from dataclasses import replace

    from raydist.training.cluster import default_strategy

    assignment, found = ctx._run.assignment, {}
    for name, folder in (("with", "/code"), ("without", None)):
        given = replace(assignment, job=replace(assignment.job, working_dir=folder))
        with default_strategy.alike(given):
            paths = (
                *("best.keras", "../best.keras", "/dev/null", "/proc/self/comm", "/best.keras"),
                "s3://bucket/best.keras",
            )
            found[name] = [default_strategy._is_shared(one) for one in paths]
    return found
