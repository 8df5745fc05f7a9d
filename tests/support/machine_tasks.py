"""Real TensorFlow tasks without Ray, as in processes.py, but each on a machine with an address of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.netns import Machine, Network

_ROOT = Path(__file__).parents[2]
_PORT = 3333
_MAIN = "import json, sys; from tests.support.task_main import main; main(json.loads(sys.argv[1]))"


@dataclass(frozen=True, kw_only=True)
class Machines:
    """Machines on one network, each with a link of its own."""

    network: Network
    all: list[Machine]
    addresses: list[str]

    @classmethod
    @contextmanager
    def started(cls, num_machines: int) -> Iterator[Machines]:
        with ExitStack() as stack:
            network = Network.start()
            stack.callback(network.stop)
            machines = []
            for index in range(num_machines):
                machine = Machine.start(f"machine-{index}")
                stack.callback(machine.kill)
                machines.append(machine)
            addresses = [network.join(one, number=1 + index) for index, one in enumerate(machines)]
            yield cls(network=network, all=machines, addresses=addresses)

    def slow(self, index: int, *, delay_s: float = 0.0, loss: float = 0.0) -> None:
        """Slows the link of one machine in both directions."""
        self.network.slow(1 + index, self.all[index], delay_s=delay_s, loss=loss)

    def run_workers(
        self, target: str, *, folder: Path, timeout_s: float, **arguments: Any
    ) -> dict[str, dict[str, Any]]:
        """Runs `module:function(ctx, **arguments)` in a worker on each machine; returns what each returned.

        Raises AssertionError with all output when a task fails or the time is up.
        """
        addresses = {f"worker/{index}": f"{host}:{_PORT}" for index, host in enumerate(self.addresses)}
        processes = {}
        for name, machine in zip(addresses, self.all, strict=True):
            place = folder / name.replace("/", "-")
            place.mkdir()
            request = {
                **{"target": target, "strategy": "multi_worker_mirrored", "devices": None, "keras": "3"},
                **{"addresses": addresses, "task": name, "folder": str(place), "attempt": 0},
                **{"storage": str(folder / "storage"), "token": None, "shares": (), "arguments": arguments},
            }
            with (place / "output.txt").open("wb") as sink:
                processes[name] = machine.popen(
                    *(sys.executable, "-c", _MAIN, json.dumps(request)),
                    cwd=_ROOT,
                    env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "1", "PYTHONPATH": str(_ROOT)},
                    **{"stdin": subprocess.DEVNULL, "stdout": sink, "stderr": sink},
                )
        deadline = time.monotonic() + timeout_s
        for name, process in processes.items():
            try:
                code: int | None = process.wait(timeout=max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                code = None
            printed = {one.parent.name: one.read_text()[-3000:] for one in folder.glob("*/output.txt")}
            assert code == 0, f"{name} ended with {code}, None is not in time: {printed}"
        return {
            name: json.loads((folder / name.replace("/", "-") / "values.json").read_text())
            for name in addresses
        }
