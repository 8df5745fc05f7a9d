"""Steps that are trained again after the SIGKILL of one of three workers, where a callback watches batches.

    python -m tests.benchmarks.repeated_steps [--rounds 3]

The chief's state is kept in memory after a call of steps as long as that takes at most 3% of the time, so the
number depends on how long a step takes. Prints it for steps of some milliseconds, and of 50 and 200 ms.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import raydist

NUM_STEPS = 150


@raydist.job(params={"pause_s": 0.0, "log": "", "killed_at": 0})
def train(ctx: Any) -> None:
    """Writes down each step of the chief; worker 2 kills itself in the first attempt."""
    import tensorflow as tf

    class Watch(tf.keras.callbacks.Callback):
        num_done = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            time.sleep(ctx.params["pause_s"])
            if ctx.is_chief:
                with open(ctx.params["log"], "a") as file:
                    file.write(f"{int(self.model.optimizer.iterations.numpy())}\n")
            self.num_done += 1
            if ctx.attempt == 0 and ctx.task.index == 2 and self.num_done == ctx.params["killed_at"]:
                os.kill(os.getpid(), signal.SIGKILL)

    with ctx.strategy.scope():
        layers = [tf.keras.layers.Dense(64), tf.keras.layers.Dense(10)]
        model = tf.keras.Sequential([tf.keras.Input((32,)), *layers])
        model.compile("adam", loss="mse")
    data = tf.data.Dataset.from_tensors((tf.ones((63, 32)), tf.zeros((63, 10)))).repeat(NUM_STEPS)
    ctx.fit(model, data, epochs=1, callbacks=[Watch()])


def num_repeated(pause_s: float, killed_at: int) -> int:
    """Returns how many steps the chief has done more than once."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "steps"
        params = {"pause_s": pause_s, "log": str(log), "killed_at": killed_at}
        options = {
            "address": "local",
            "resources": {"worker": {"cpus": 0.5}},
            "export": False,
            "max_failures": 1,
        }
        result = raydist.run(train, workers=3, params=params, storage=folder, **options)
        assert (result.state.value, result.attempts, result.steps) == ("SUCCEEDED", 2, NUM_STEPS)
        steps = log.read_text().split()
        return len(steps) - len(set(steps))


def main() -> None:
    """Prints the rounds of each pace."""
    from tests.benchmarks.figures.printing import figure

    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pauses", type=float, nargs="+", default=[0.0, 0.05, 0.2])
    asked = parser.parse_args()
    for pause_s in asked.pauses:
        found = [num_repeated(pause_s, 97 + 7 * number) for number in range(asked.rounds)]
        print(f"a pause of {pause_s:g} s a step: {', '.join(map(str, found))} steps repeated", flush=True)
        figure(f"pause_{1000 * pause_s:g}_ms", found, "steps repeated")


if __name__ == "__main__":
    main()
