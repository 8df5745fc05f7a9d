"""A search of short trials against the same runs submitted one after another.

    python -m tests.benchmarks.search [--trials 12] [--parallel 2] [--repeat 1]

Both train scikit-learn's digits with the same params, one worker each, from a shell, in turn: `raydist
search` with an embedded Ray of its own, and one `raydist submit` after another, each with an embedded Ray,
and on a Ray that stays. Prints the seconds of the search and its
ratio to each.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.figures.printing import figure
from tests.support.ray_heads import ray_head

ROOT = Path(__file__).parents[2]
RAYDIST = str(Path(sys.executable).parent / "raydist")
JOB = """
import keras
from sklearn.datasets import load_digits

import raydist


@raydist.job(params={"epochs": 3, "rate": 0.1})
def train(ctx):
    x, y = load_digits(return_X_y=True)
    data = raydist.data.from_arrays(x / 16, y).batches(global_batch_size=128, seed=1)
    with ctx.strategy.scope():
        model = keras.Sequential([keras.layers.Dense(64, "relu"), keras.layers.Dense(10)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(ctx.params["rate"]), loss, metrics=["accuracy"])
    ctx.fit(model, data, epochs=ctx.params["epochs"])
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=1)
    args = parser.parse_args()
    rates = [f"{0.01 * number:g}" for number in range(1, args.trials + 1)]
    took: dict[str, list[float]] = {"search": [], "embedded": [], "standing": []}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "digits.py").write_text(JOB)
        for _ in range(args.repeat):
            took["search"].append(search(rates, folder, parallel=args.parallel))
            took["embedded"].append(submits(rates, folder, "local"))
            with ray_head(num_cpus=2) as head:
                took["standing"].append(submits(rates, folder, head.address, environ=head.environ))
    figure(
        f"embedded_{args.trials}",
        took["search"],
        "s",
        against=("submits with an embedded Ray each", took["embedded"]),
    )
    figure(
        f"standing_{args.trials}",
        took["search"],
        "s",
        against=("submits on a Ray that stays", took["standing"]),
    )


def search(rates: Sequence[str], folder: str, *, parallel: int) -> float:
    """Returns the seconds of one search with these rates."""
    began_s = time.monotonic()
    asked = ("-p", f"rate={','.join(rates)}", "--metric", "accuracy", "--parallel", str(parallel))
    run(["search", "digits.py", "--address", "local", *asked], folder)
    return time.monotonic() - began_s


def submits(
    rates: Sequence[str], folder: str, address: str, *, environ: Mapping[str, str] = os.environ
) -> float:
    """Returns the seconds of as many submits."""
    began_s = time.monotonic()
    for rate in rates:
        run(["submit", "digits.py", "--address", address, "-p", f"rate={rate}"], folder, environ)
    return time.monotonic() - began_s


def run(arguments: Sequence[str], folder: str, environ: Mapping[str, str] = os.environ) -> None:
    environ = {**environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([RAYDIST, *arguments], cwd=folder, env=environ, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
