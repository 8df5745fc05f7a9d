"""An unchanged Keras script: on one core by Python, and on two workers of two hosts with a core each.

    python -m tests.benchmarks.plain_script [--rounds 2] [--epochs 20]

A convolutional net on 4,096 pictures of 32 pixels square, in batches of 128. The hosts are network namespaces
of this machine with disks of their own (tests/support/hosts.py). In turn, in each round: Python with one
thread on one core, and `raydist submit --workers 2`. Prints the seconds from the first command to the last
line of the script, those of the epochs behind the first one, the ratios (target: at least 1.6), and whether
both have printed the same loss.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import pytest

from tests.benchmarks.figures.printing import figure
from tests.support.hosts import Hosts

SCRIPT = """
import sys
import time

import keras
import numpy as np

keras.utils.set_random_seed(1)
rng = np.random.default_rng(0)
y = rng.integers(0, 10, 4096)
x = (rng.normal(size=(4096, 32, 32, 3)) + y[:, None, None, None] / 10).astype("float32")
model = keras.Sequential(
    [
        keras.Input((32, 32, 3)),
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(64, 3, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(10),
    ]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.001), loss)
model.fit(x, y, batch_size=128, epochs=1, verbose=0)
began_at_s = time.perf_counter()
history = model.fit(x, y, batch_size=128, epochs=int(sys.argv[1]), verbose=0)
print("MEASURED", time.perf_counter() - began_at_s, history.history["loss"][-1], flush=True)
"""


def measured(printed: str) -> tuple[float, float]:
    """Returns the seconds of the later epochs and the last loss."""
    line = next(one for one in printed.splitlines() if "MEASURED" in one)
    seconds, loss = line.partition("MEASURED")[2].split()
    return float(seconds), float(loss)


def by_python(script: Path, epochs: int) -> tuple[float, float, float]:
    one = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = ["taskset", "-c", "0", sys.executable, str(script), str(epochs)]
    began_at_s = time.perf_counter()
    found = subprocess.run(command, env={**os.environ, **one}, capture_output=True, text=True, check=True)
    return time.perf_counter() - began_at_s, *measured(found.stdout)


def by_raydist(hosts: Hosts, script: Path, epochs: int, name: str) -> tuple[float, float, float]:
    address = ("--address", f"{hosts.head.address}:6379", "--storage", str(hosts.shared))
    began_at_s = time.perf_counter()
    process = hosts.raydist(
        "submit", script, "--json", "--name", name, "--workers", "2", *address, "--", str(epochs)
    )
    _, told = process.communicate()
    assert process.returncode == 0, told
    took_s = time.perf_counter() - began_at_s
    logs = hosts.shared / name / "logs" / "0" / "worker-0"
    return took_s, *measured("".join(one.read_text() for one in sorted(logs.iterdir())))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    whole, trained = [], []
    with tempfile.TemporaryDirectory() as folder, Hosts.started(1, 1) as hosts:
        plain = Path(folder) / "train.py"
        plain.write_text(SCRIPT)
        script = hosts.head.write("code/train.py", SCRIPT)
        for number in range(options.rounds):
            alone = by_python(plain, options.epochs)
            both = by_raydist(hosts, script, options.epochs, f"plain-{number}")
            assert alone[2] == pytest.approx(both[2], rel=1e-4)
            print(f"python {alone[0]:.1f} s, epochs {alone[1]:.1f} s, loss {alone[2]:.6f}")
            print(f"raydist {both[0]:.1f} s, epochs {both[1]:.1f} s, loss {both[2]:.6f}", flush=True)
            whole.append(alone[0] / both[0])
            trained.append(alone[1] / both[1])
    figure("plain_script_whole", whole, "times as fast as Python on one core")
    figure("plain_script_epochs", trained, "times as fast as Python on one core")


if __name__ == "__main__":
    main()
