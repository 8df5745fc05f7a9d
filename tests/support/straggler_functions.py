"""Train functions whose worker/1 is slower than the others."""

from __future__ import annotations

import dataclasses
import importlib
import time
from typing import Any

import numpy as np
import tensorflow as tf

from raydist.training.cluster import collective_clock
from tests.support.inside import progress_of, reports_of, run_of
from tests.support.train_functions import examples, made

SLOW_TASK = "worker/1"


def slowed(ctx: Any, *, by: str | None, num_steps: int = 60, pause_s: float = 0.1) -> dict[str, Any]:
    """Trains while worker/1 is slowed; returns the local values and the paces that were reported.

    Args:
      by: What slows it, for `pause_s` at each step: `data`, `compute`, or nothing.
    """
    pause_s = pause_s if str(ctx.task) == SLOW_TASK else 0.0

    def read(x: np.ndarray) -> np.ndarray:
        time.sleep(pause_s if by == "data" else 0.0)
        return x

    def compute(x: np.ndarray) -> np.ndarray:
        end = time.thread_time() + (pause_s if by == "compute" else 0.01)
        while time.thread_time() < end:
            pass
        return x

    def mapped(x: Any, y: Any) -> Any:
        return tf.ensure_shape(tf.numpy_function(read, [x], tf.float32), x.shape), y

    recorded, reporter = reports_of(ctx), run_of(ctx).reporter
    paces: list[dict[str, Any]] = []
    pace = reporter.progress.paced

    def pacing(told: Any) -> None:
        paces.append(dataclasses.asdict(told))
        pace(told)

    reporter.progress.paced = pacing
    dataset = tf.data.Dataset.from_tensor_slices(examples(160)).batch(8, drop_remainder=True).map(mapped)
    model = made(ctx, "adam")
    forward = model.call

    def slow_call(x: Any, *args: Any, **kwargs: Any) -> Any:
        return forward(tf.ensure_shape(tf.numpy_function(compute, [x], tf.float32), x.shape), *args, **kwargs)

    model.call = slow_call
    ctx.fit(model, dataset.repeat(), epochs=1, steps_per_epoch=num_steps)
    assert progress_of(ctx).status().pace is not None
    return {"recorded": [one for one in recorded if "examples_per_s" in one], "paces": paces}


def trained_with_and_without_the_clock(ctx: Any, *, program: str) -> dict[str, Any]:
    """Runs a program of tests/programs twice, with the clock of collectives and without it.

    Returns the names of the variables and metrics that differ by a bit, how many there are, and the seconds
    that the clock has counted.
    """
    train = importlib.import_module(f"tests.programs.{program}").train
    before_s = collective_clock.waited_s()
    measured = train(ctx)
    after_s = collective_clock.waited_s()
    collective_clock.start(tf.distribute.get_strategy())  # outside of every scope: it has no collectives
    plain = train(ctx)
    pairs = [
        (name, one, other[name])
        for one_of, other in ((measured.variables, plain.variables), (measured.history, plain.history))
        for name, one in one_of.items()
    ]
    return {
        "differ": [name for name, one, other in pairs if one.tobytes() != other.tobytes()],
        "num_compared": len(pairs),
        "waited_s": after_s - before_s,
        "still_measured": collective_clock.waited_s() is not None,
    }


def slowed_worker(ctx: Any, *, pause_s: float, num_steps: int = 1200) -> dict[str, Any]:
    """Trains under parameter servers, where each step of worker/1 waits `pause_s` for its data, else 20 ms.

    Returns what the chief has told of its workers.
    """
    told: list[Any] = []
    progress = progress_of(ctx)
    tell = progress.workers_paced

    def telling(sums: Any) -> None:
        told.append(sums)
        tell(sums)

    progress.workers_paced = telling

    def data(context: Any) -> Any:
        wait_s = pause_s if context.input_pipeline_id == 1 else 0.02
        dataset = tf.data.Dataset.from_tensor_slices(examples(160)).batch(8, drop_remainder=True).repeat()
        # Without Python, which a worker's data may not have.
        slowed = tf.raw_ops.SleepDataset(
            input_dataset=tf.data.experimental.to_variant(dataset),
            sleep_microseconds=int(wait_s * 1e6),
            output_types=[spec.dtype for spec in dataset.element_spec],
            output_shapes=[spec.shape for spec in dataset.element_spec],
        )
        return tf.data.experimental.from_variant(slowed, dataset.element_spec)

    model = made(ctx, "adam", is_built=True)
    ctx.fit(model, data, epochs=1, steps_per_epoch=num_steps)
    assert progress.status().worker_paces
    return {"told": told}
