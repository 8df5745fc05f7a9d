"""What the scripts of tests/scripts train, on one device."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from raydist.training.cluster import default_strategy
from tests.support.scripts import FOLDER


def keras_losses(ctx: Any) -> dict[str, Any]:
    """multi_worker_keras.py with the global batch of two workers, without any strategy."""
    sys.path.insert(0, str(FOLDER))
    import digits_setup as setup

    tf.keras.utils.set_random_seed(7)
    model = setup.build_and_compile_cnn_model()
    history = model.fit(setup.digits_dataset(128), epochs=3, steps_per_epoch=14, verbose=0)
    return {"losses": np.array(history.history["loss"])}


def is_current(ctx: Any) -> dict[str, Any]:
    import raydist

    return {"is current": raydist.context() is ctx}


def scope_without_help(ctx: Any, *, folder: str) -> dict[str, bool]:
    """Returns whether clear_session keeps a scope, and whether a loaded function tells of its placeholder."""

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
