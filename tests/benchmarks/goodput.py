"""Goodput under failures: how far a training gets in a time, divided by how far it gets without them.

    python -m tests.benchmarks.goodput [SCENARIO] [--rounds 2] [--seconds 60] [--every 15] [--working-dir DIR]

    killed    every so often SIGKILL ends a random one of 2 workers; Ray Train's TensorflowTrainer in turn
    four      the same with 4 workers, raydist alone
    stopped   a random one of 2 workers is stopped for 20 s (SIGSTOP)
    servers   parameter servers: SIGKILL of a random one of 3 workers
    hosts     a random host of 2 workers loses its network, while another one stands by (needs root, iproute2)

Steps take about 20 ms (100 ms with parameter servers), and time counts from the first step on. Runs without
and with failures take turns. Each step's weights have to be the same in both, in every bit, but with
parameter servers, where they depend on the order of updates.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

import raydist
from tests.benchmarks import parameter_server_kills, recovery
from tests.benchmarks.figures.printing import figure
from tests.support.hosts import Hosts
from tests.support.ray_heads import RayHead, ray_head

_ENDLESS, _START_S, _STOPPED_S = 10**9, 120.0, 20.0


class Line(NamedTuple):
    """A step that a worker has done; its weights as a checksum."""

    worker: int
    pid: int
    step: int
    at_s: float
    weights: str


def lines_of(log: Path) -> list[Line]:
    lines = (line.split() for line in log.read_text().splitlines()[:-1])  # the last may be half written
    return [Line(int(a), int(b), int(c), float(d), e) for a, b, c, d, e in lines]


def first_step(log: Path, driver: subprocess.Popen[str]) -> float:
    deadline = time.monotonic() + _START_S
    while not (log.exists() and lines_of(log)):
        assert driver.poll() is None, driver.communicate()[1][-3000:]
        assert time.monotonic() < deadline, "no step was taken"
        time.sleep(0.05)
    return time.time()


def watched(
    driver: subprocess.Popen[str], log: Path, options: argparse.Namespace, harm: Callable[[], None] | None
) -> int:
    """Returns the step that is reached after the time, with `harm` every so often, and ends the run."""
    try:
        begin_s = first_step(log, driver)
        for number in range(1, math.ceil(options.seconds / options.every) if harm else 1):
            time.sleep(max(0.0, begin_s + number * options.every - time.time()))
            assert harm is not None
            harm()
        time.sleep(max(0.0, begin_s + options.seconds - time.time()))
        assert driver.poll() is None, driver.communicate()[1][-3000:]
        return max(line.step for line in lines_of(log))
    finally:
        driver.send_signal(signal.SIGINT)
        try:
            driver.wait(timeout=60)
        except subprocess.TimeoutExpired:
            driver.kill()


def signalled(log: Path, chance: random.Random, numbers: tuple[signal.Signals, ...]) -> None:
    """Sends these signals to the newest process of a random worker, with the time of a stop in between."""
    newest = {line.worker: line.pid for line in lines_of(log)}
    pid = newest[chance.choice(sorted(newest))]
    for index, number in enumerate(numbers):
        time.sleep(_STOPPED_S if index else 0.0)
        with contextlib.suppress(ProcessLookupError):  # the one after it has taken no step yet
            os.kill(pid, number)


def of_workers(
    who: str,
    head: RayHead,
    log: Path,
    options: argparse.Namespace,
    *,
    num_workers: int,
    signals: tuple[signal.Signals, ...],
) -> int:
    harm = functools.partial(signalled, log, random.Random(0), signals) if signals else None
    size = {"steps": _ENDLESS, "failures": _ENDLESS, "workers": num_workers}
    with recovery.started(who, head, log, options.working_dir.resolve(), **size) as driver:
        return watched(driver, log, options, harm)


def on_hosts(log: Path, options: argparse.Namespace, *, is_harmed: bool) -> int:
    """One host for the driver, two for workers, one that stands by, and one for each that is lost."""
    num_lost = math.ceil(options.seconds / options.every) - 1
    chance = random.Random(0)
    with Hosts.started(1, *[1] * (2 + num_lost)) as hosts:
        inside = hosts.shared / log.name
        job = hosts.head.write("code/recovery.py", recovery.SCRIPT.read_text())
        more = ("--storage", hosts.shared, "--address", hosts.head.gcs_address, "--standby", "1")
        parameters = ("-p", f"log={inside}", "-p", f"steps={_ENDLESS}", "--name", "lost")
        kept = ("--checkpoint-every", str(recovery.SAVED_EVERY), "--max-failures", "99", "--no-export")
        driver = hosts.raydist("submit", f"{job}:train_ours", "--workers", "2", *more, *parameters, *kept)

        def harm() -> None:
            used = {task["host"] for task in hosts.status("lost")["tasks"]}
            chance.choice([host for host in hosts.all[1:] if host.address in used]).cut()

        reached = watched(driver, inside, options, harm if is_harmed else None)
        log.write_bytes(inside.read_bytes())
        return reached


def of_servers(name: str, options: argparse.Namespace, *, is_harmed: bool) -> int:
    """Returns how many steps the workers of a ParameterServer run did."""
    folder, chance = Path(options.folder), random.Random(0)
    handle = parameter_server_kills.submit(
        folder, epochs=1, steps=_ENDLESS, name=name, evaluator=False, wait_ms=100
    )

    def done() -> list[float]:
        return [at_s for at_s, _ in parameter_server_kills.events(folder / f"{name}.log", "done")]

    begin_s = parameter_server_kills.wait(done, handle)[0]
    for number in range(1, math.ceil(options.seconds / options.every) if is_harmed else 1):
        time.sleep(max(0.0, begin_s + number * options.every - time.time()))
        pid = parameter_server_kills.pid_of(
            handle, f"worker/{chance.randrange(parameter_server_kills.WORKERS)}"
        )
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
    time.sleep(max(0.0, begin_s + options.seconds - time.time()))
    num_done = len(done())
    handle.stop()
    with contextlib.suppress(raydist.TrainingError):  # it was cancelled
        handle.result(timeout=60)
    return num_done


def check_equal(calm: Path, harmed: Path) -> None:
    """Raises AssertionError where a step's weights are not those of the run without failures."""
    found = [{(line.step, line.weights) for line in lines_of(log)} for log in (calm, harmed)]
    least = min(max(step for step, _ in pairs) for pairs in found)
    assert least > 100
    both = {pair for pairs in found for pair in pairs if pair[0] <= least}
    assert len(both) == len({step for step, _ in both})  # of all workers, and of repeated steps


def signals_of(scenario: str) -> tuple[signal.Signals, ...]:
    return (signal.SIGSTOP, signal.SIGCONT) if scenario == "stopped" else (signal.SIGKILL,)


def main() -> None:
    """Prints each pair of runs, and their ratio."""
    parser = argparse.ArgumentParser()
    scenarios = ("killed", "four", "stopped", "servers", "hosts")
    parser.add_argument("scenario", nargs="?", choices=scenarios, default="killed")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=15.0, help="seconds between failures")
    parser.add_argument("--working-dir", type=Path, default=recovery.SCRIPT.parent)
    options = parser.parse_args()
    scenario, contenders = options.scenario, ["raydist"]
    if scenario == "killed":
        contenders.append("ray-train")
    found: dict[str, list[float]] = {who: [] for who in contenders}
    with contextlib.ExitStack() as stack:
        options.folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rd-"))
        if scenario == "servers":
            parameter_server_kills.start_ray()
        elif scenario != "hosts":
            head = stack.enter_context(ray_head(num_cpus=4))
        for number, who in itertools.product(range(options.rounds), contenders):
            reached, logs = [], []
            for is_harmed in (False, True):
                name = f"{who}-{number}-{'harmed' if is_harmed else 'calm'}"
                log = Path(options.folder, f"{name}.log")
                if scenario == "servers":
                    reached.append(of_servers(name, options, is_harmed=is_harmed))
                elif scenario == "hosts":
                    reached.append(on_hosts(log, options, is_harmed=is_harmed))
                else:
                    signals = signals_of(scenario) if is_harmed else ()
                    num_workers = 4 if scenario == "four" else 2
                    reached.append(
                        of_workers(who, head, log, options, num_workers=num_workers, signals=signals)
                    )
                logs.append(log)
            if scenario != "servers" and who == "raydist":
                check_equal(*logs)
            print(f"{who}: {reached[0]} steps without failures, {reached[1]} with them", flush=True)
            found[who].append(reached[1] / reached[0])
    against = ("Ray Train", found["ray-train"]) if "ray-train" in found else None
    figure(scenario, found["raydist"], "of the steps", against=against)


if __name__ == "__main__":
    main()
