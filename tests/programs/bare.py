"""Plain Keras on one device, in a process that has no raydist: what every other run is compared with.

`python -m tests.programs.bare FIND FOLDER NAME…`, where FIND is that of `in_task.run`; TF_USE_LEGACY_KERAS
chooses the Keras.
"""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.programs.in_turn import Done, read_outcome

ROOT = Path(__file__).parents[2]


class Bare:
    """As much of a train context as programs use, with nothing behind it but Keras."""

    def __init__(self) -> None:
        import tensorflow as tf

        self.strategy = tf.distribute.get_strategy()

    def fit(self, model: Any, train_data: Any, y: Any = None, **options: Any) -> Any:
        if callable(train_data):
            data = train_data()
            train_data = data.repeat() if "steps_per_epoch" in options else data
        return model.fit(train_data, y, verbose=0, **options)

    def evaluate(self, model: Any, data: Any) -> Any:
        return model.evaluate(data() if callable(data) else data, verbose=0, return_dict=True)

    def predict(self, model: Any, data: Any) -> Any:
        return model.predict(data, verbose=0)

    def train_steps(self, step_fn: Any, train_data: Any, *, num_steps: int, steps_per_call: int) -> None:
        import tensorflow as tf

        step = tf.function(step_fn, reduce_retracing=True)
        for batch in train_data.repeat().take(num_steps):
            step(batch)


@functools.cache
def run_bare(names: tuple[str, ...], keras: str, find: str) -> dict[str, Done]:
    """Returns by name what plain Keras makes of each program; several clusters are compared with one run."""
    with tempfile.TemporaryDirectory(prefix="raydist-programs-") as folder:
        environ = {
            **os.environ,
            "TF_USE_LEGACY_KERAS": str(int(keras == "legacy")),
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }
        for name in ("TF_CONFIG", "KERAS_BACKEND"):
            environ.pop(name, None)
        done = subprocess.run(
            [sys.executable, "-m", "tests.programs.bare", find, folder, *names],
            cwd=ROOT,
            env={**environ, "CUDA_VISIBLE_DEVICES": "-1", "TMPDIR": folder},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-5000:]
        return {name: _done(Path(folder), name) for name in names}


def _done(folder: Path, name: str) -> Done:
    if (folder / f"{name}.error").exists():
        return Done(task="bare", error=(folder / f"{name}.error").read_text())
    return Done(task="bare", outcome=read_outcome(folder, name))


def main(find: str, folder: str, *names: str) -> None:
    import traceback

    import tensorflow as tf

    from tests.programs.in_task import store_outcome

    module, _, function = find.partition(":")
    function_of = getattr(importlib.import_module(module), function)
    for name in names:
        train = function_of(name)
        if getattr(train, "is_seeded", True):  # as in_task.run
            tf.keras.utils.set_random_seed(28)
        try:
            store_outcome(Path(folder), name, train(Bare()))
        except Exception:
            Path(folder, f"{name}.error").write_text(traceback.format_exc())
        finally:
            tf.keras.mixed_precision.set_global_policy("float32")


if __name__ == "__main__":
    main(*sys.argv[1:])
