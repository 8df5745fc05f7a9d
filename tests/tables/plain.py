"""Plain Keras on one device, in a process without raydist: what the cells of the tables are compared with.

`python -m tests.tables.plain MODULE:FUNCTION FILE` reads its arguments from standard input.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class Plain:
    """As much of a train context as the tables use, with nothing behind it but Keras."""

    def __init__(self) -> None:
        import tensorflow as tf

        self.strategy = tf.distribute.get_strategy()

    def fit(self, model: Any, data: Any, y: Any = None, **options: Any) -> Any:
        return model.fit(data, y, verbose=0, **options)

    def evaluate(self, model: Any, data: Any, *, steps: int | None = None) -> Any:
        given = data if isinstance(data, tuple) else (data,)
        return model.evaluate(*given, steps=steps, verbose=0, return_dict=True)

    def predict(self, model: Any, data: Any, *, steps: int | None = None) -> Any:
        return model.predict(data, steps=steps, verbose=0)

    def train_steps(self, step_fn: Any, data: Any, *, num_steps: int, steps_per_call: int) -> Any:
        import numpy as np
        import tensorflow as tf

        step = tf.function(step_fn, reduce_retracing=True)
        shown = [step(batch) for batch in data.repeat().take(num_steps)]
        return {name: float(np.mean([one[name] for one in shown])) for name in shown[0]}


@functools.cache
def run_plain(target: str, keras: str, arguments: str) -> dict[str, Any]:
    """Returns what `module:function(Plain(), **arguments)` returns; the arguments are JSON."""
    with tempfile.TemporaryDirectory(prefix="raydist-tables-") as folder:
        environ = {
            **os.environ,
            "TF_USE_LEGACY_KERAS": str(int(keras == "legacy")),
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "CUDA_VISIBLE_DEVICES": "-1",
        }
        for name in ("TF_CONFIG", "KERAS_BACKEND"):
            environ.pop(name, None)
        done = subprocess.run(
            [sys.executable, "-m", "tests.tables.plain", target, f"{folder}/found.json"],
            input=arguments,
            cwd=ROOT,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-5000:]
        found: dict[str, Any] = json.loads(Path(folder, "found.json").read_text())
        return found


if __name__ == "__main__":
    module, _, function = sys.argv[1].partition(":")
    result = getattr(importlib.import_module(module), function)(Plain(), **json.load(sys.stdin))
    Path(sys.argv[2]).write_text(json.dumps(result))
