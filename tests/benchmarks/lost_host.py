"""A host is lost: until the run knows of it, and from then to the next new step, with and without a standby.

    python -m tests.benchmarks.lost_host [--rounds 5] [--without | --elastic]

Hosts are network namespaces of this machine (needs root and iproute2). Two workers train on two of three
hosts, and the cable of one is pulled; the third has room. In turn with `--standby 0` and `--standby 1`.
Prints each round with the times of its events, and the ratio of the medians (target: at most 0.35).

With `--elastic` the run has `--workers 1:2` on two hosts and no other room: it goes on with one worker, and
with two once a host joins the cluster. Prints the pause from the loss's detection on, and that of the growth.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.figures.printing import figure
from tests.support.hosts import Host, Hosts

JOB = """
import os
import time

import tensorflow as tf

import raydist


class Log(tf.keras.callbacks.Callback):
    def __init__(self, path):
        super().__init__()
        self.path = path

    def on_train_batch_end(self, batch, logs=None):
        with open(self.path, "a") as file:
            file.write(f"{time.time()}\\n")
        time.sleep(0.05)


@raydist.job(workers=2, params={"log": "", "steps": 2000})
def train(ctx: raydist.TrainContext):
    with ctx.strategy.scope():
        layers = [tf.keras.layers.Dense(64), tf.keras.layers.Dense(10)]
        model = tf.keras.Sequential([tf.keras.Input((32,)), *layers])
        model.compile("sgd", loss="mse")
    data = tf.data.Dataset.from_tensors((tf.ones((64, 32)), tf.zeros((64, 10)))).repeat(ctx.params["steps"])
    log = [Log(ctx.params["log"] + f"-{ctx.attempt}")] if ctx.is_chief else []
    ctx.fit(model, data, epochs=1, callbacks=log)
"""
_START_S = 120.0


def wait_for(found: Any) -> Any:
    deadline = time.monotonic() + _START_S
    while not (value := found()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return value


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def events(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(run.rglob("*.jsonl")) for line in lines(path)]


def submit(hosts: Hosts, name: str, *more: str) -> Path:
    """Starts the run, which ends with its host; returns what the logs of its attempts begin with."""
    log, job = hosts.shared / name, hosts.head.write("code/job.py", JOB)
    options = ("--storage", str(hosts.shared), "--address", f"{hosts.head.address}:6379", "--json")
    parameters = ("-p", f"log={log}", "--checkpoint-every", "20", "--no-export", *more)
    hosts.raydist("submit", job, "--name", name, *options, *parameters)
    wait_for(lambda: len(lines(Path(f"{log}-0"))) > 60)  # a standby is there by then
    return log


def lose(hosts: Hosts, name: str) -> tuple[float, float]:
    """Cuts off a host that has a worker; returns when that was, and when the run knew of it."""
    used = {task["host"] for task in hosts.status(name)["tasks"]} - {hosts.head.address}
    victim: Host = next(host for host in hosts.all if host.address in used)
    victim.cut()
    cut_at_s = time.time()
    found = wait_for(lambda: [one for one in events(hosts.shared / name) if one["event"] == "task_failed"])
    return cut_at_s, found[0]["at_s"]


def first_of(log: Path, attempt: int) -> float:
    return float(wait_for(lambda: lines(Path(f"{log}-{attempt}")))[0])


def recover(hosts: Hosts, name: str, *, standby: int) -> tuple[float, float]:
    """Returns the seconds until the loss is known, and from then to the first step of the next attempt."""
    log = submit(hosts, name, *(("--standby", str(standby)) if standby else ()))
    cut_at_s, lost_at_s = lose(hosts, name)
    first, found = first_of(log, 1), events(hosts.shared / name)
    told = [f"{one['event']} {one['at_s'] - lost_at_s:+.2f}" for one in found if one["at_s"] >= lost_at_s]
    seconds = f"known after {lost_at_s - cut_at_s:.2f} s, {first - lost_at_s:.2f} s to a step"
    print(f"  standby {standby}: {seconds}; {', '.join(told[:10])}", flush=True)
    return lost_at_s - cut_at_s, first - lost_at_s


def resize(hosts: Hosts, name: str) -> tuple[float, float]:
    """Returns the seconds without a step after the loss was known, and around the growth."""
    log = submit(hosts, name, "--workers", "1:2")
    _, lost_at_s = lose(hosts, name)
    smaller_s = first_of(log, 1) - lost_at_s
    hosts.add(1)
    larger_s = first_of(log, 2) - float(lines(Path(f"{log}-1"))[-1])
    print(f"  {smaller_s:.2f} s until one worker went on, {larger_s:.2f} s until there were two", flush=True)
    return smaller_s, larger_s


def resized(rounds: int) -> None:
    pauses = []
    for number in range(rounds):
        with Hosts.started(1, 1) as hosts:
            pauses.append(resize(hosts, f"r{number}"))
    for name, values in zip(("smaller", "larger"), zip(*pauses, strict=True), strict=True):
        figure(name, values, "s")


def main() -> None:
    """Prints each round, and the ratio."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--without", action="store_true", help="Only without a standby.")
    parser.add_argument("--elastic", action="store_true", help="Only with --workers 1:2.")
    arguments = parser.parse_args()
    if arguments.elastic:
        return resized(arguments.rounds)
    known: list[float] = []
    found: dict[int, list[float]] = {0: [], 1: []}
    for number in range(arguments.rounds):
        for standby in (0,) if arguments.without else (0, 1):
            with Hosts.started(1, 1, 1) as hosts:  # anew, as Ray takes a minute to see that a host is back
                known_s, step_s = recover(hosts, f"r{number}-{standby}", standby=standby)
            known.append(known_s)
            found[standby].append(step_s)
    figure("known", known, "s")
    if not arguments.without:
        figure("standby", found[1], "s", against=("without a standby", found[0]))


if __name__ == "__main__":
    main()
