"""The benchmarks: their scripts, with the arguments of a full run and of a quick one."""

from __future__ import annotations

import shlex
import sys
from dataclasses import KW_ONLY, dataclass


@dataclass(frozen=True)
class Benchmark:
    """One run of a script.

    Attributes:
      script: A module of `package`.
      arguments: Of the run whose figures are recorded.
      quick: Arguments of a run that only shows that the script works.
      minutes: What it takes on 2 cores that do nothing else.
      requires: What pip has to install that raydist's own tests do not need.
      is_long: Only `--long` runs it; the others take half an hour together.
    """

    script: str
    arguments: str = ""
    _: KW_ONLY
    quick: str = ""
    minutes: float
    requires: tuple[str, ...] = ()
    is_long: bool = False
    package: str = "tests.benchmarks"

    @property
    def title(self) -> str:
        return f"{self.script} {self.arguments}".strip()

    def command(self, *, is_quick: bool) -> list[str]:
        arguments = shlex.split(self.quick if is_quick else self.arguments)
        return [sys.executable, "-m", f"{self.package}.{self.script}", *arguments]


BENCHMARKS = (
    Benchmark("steps", "--rounds 1", quick="--rounds 1 --steps 40", minutes=0.8),
    Benchmark("parameter_server", "--rounds 2 --steps 3000", quick="--rounds 1 --steps 200", minutes=1.5),
    Benchmark(
        "virtual_replicas", "--rounds 1 --models dense", quick="--rounds 1 --models dense", minutes=0.5
    ),
    Benchmark("small_fits", "--rounds 2", quick="--rounds 1 --fits 2", minutes=0.6),
    Benchmark("small_fits", "--parts", quick="--parts --fits 2", minutes=0.2),
    Benchmark("first_fit", "dense --rounds 1", quick="dense --rounds 1", minutes=0.3),
    Benchmark("plain_script", "--rounds 1 --epochs 20", quick="--rounds 1 --epochs 1", minutes=1.1),
    Benchmark("launch", "--rounds 3", quick="--rounds 2", minutes=0.9),
    Benchmark("launch", "--cold --rounds 2", quick="--cold --rounds 1", minutes=0.6),
    Benchmark("recovery", "--rounds 1", quick="--rounds 1", minutes=1.8, requires=("pydantic", "requests")),
    Benchmark(
        "goodput",
        "killed --rounds 2",
        quick="killed --rounds 1 --seconds 20 --every 10",
        minutes=10.0,
        is_long=True,
        requires=("pydantic", "requests"),
    ),
    *(
        Benchmark(
            "goodput",
            f"{scenario} --rounds 1 --seconds {seconds} --every {every}",
            quick=f"{scenario} --rounds 1 --seconds 20 --every 10",
            minutes=seconds / 25,
            is_long=True,
        )
        for scenario, seconds, every in (
            ("four", 60, 15),
            ("stopped", 60, 30),
            ("servers", 60, 15),
            ("hosts", 120, 60),
        )
    ),
    Benchmark("lost_host", "--rounds 1", quick="--rounds 1", minutes=1.3),
    Benchmark("lost_host", "--elastic --rounds 1", quick="--elastic --rounds 1", minutes=0.8),
    Benchmark("repeated_steps", "--rounds 1 --pauses 0 0.05", quick="--rounds 1 --pauses 0", minutes=0.9),
    Benchmark("many_runs", "--runs 10", quick="--runs 2", minutes=0.8),
    Benchmark("parameter_server_kills", "worker --rounds 2", quick="worker --rounds 1", minutes=1.0),
    Benchmark("faults", "--faults 1", quick="--faults 1", minutes=0.6),
    Benchmark("task_memory", "--workers 4", quick="--workers 2", minutes=0.5),
    Benchmark("costs", "reporting --seconds 12", quick="reporting --seconds 9 --rounds 1", minutes=0.9),
    Benchmark("scale", "--seconds 15", quick="--tasks 100 --seconds 3", minutes=2.1),
    Benchmark("checkpoints", "--pairs 2", quick="--pairs 1 --batch 8", minutes=0.8),
    Benchmark("checkpoint_stall", "--rounds 1", quick="--rounds 1 --saves 1", minutes=2.3),
    Benchmark("metrics_reading", "--kinds written", quick="--rows 20000 --repeats 1", minutes=0.8),
    Benchmark("page", "--repeats 2", quick="--rows 20000 --repeats 1", minutes=0.4),
    Benchmark("input", "--rows 1600000 --rounds 2", quick="--rows 60000 --rounds 1", minutes=2.1),
    Benchmark("input", "--parts --rounds 3", quick="--parts --rows 60000 --rounds 1", minutes=0.3),
    Benchmark(
        "remote", "--rounds 1", quick="--rounds 1 --rows 60000 --records 20000 --images 300", minutes=0.9
    ),
    Benchmark("large_data", "--only list", quick="--only list --listed 1000", minutes=0.5),
    Benchmark(
        "large_embedding",
        "--rounds 1 --rows 1000000 --steps 300",
        quick="--rounds 1 --rows 20000 --steps 60",
        minutes=0.3,
    ),
    Benchmark("records", "--rounds 1", quick="--rounds 1 --records 2000 --pictures 100", minutes=0.8),
    Benchmark(
        "plain_pipeline", "--rounds 1 --side 320", quick="--rounds 1 --records 100 --side 32", minutes=0.8
    ),
    Benchmark("predict", "--rows 300000 --rounds 1", quick="--rows 20000 --rounds 1", minutes=0.6),
    # These are left to `--long`.
    Benchmark(
        "checkpoints",
        "--width 8704 --every 8 --pairs 2",
        quick="--width 512 --every 4 --pairs 1 --batch 8",
        minutes=4.0,
        is_long=True,
    ),
    Benchmark(
        "checkpoint_stall",
        "--width 8704 --rounds 1 --saves 2",
        quick="--width 512 --rounds 1 --saves 1",
        minutes=5.0,
        is_long=True,
    ),
    Benchmark(
        "images",
        "--rounds 3 --images 4000",
        quick="--rounds 1 --images 200 --epochs 1 --ways raydist tf.data",
        minutes=5.0,
        is_long=True,
    ),
    Benchmark(
        "costs",
        "controller --seconds 5",
        quick="controller --seconds 3 --rounds 1",
        minutes=1.2,
        is_long=True,
    ),
    Benchmark(
        "parameter_server",
        "--keras legacy --rounds 3",
        quick="--keras legacy --rounds 1 --steps 200",
        minutes=2.8,
        is_long=True,
    ),
    Benchmark(
        "large_embedding", "--rounds 1", quick="--rounds 1 --rows 20000 --steps 60", minutes=3.2, is_long=True
    ),
    Benchmark("large_data", "--only parquet", quick="--only parquet --files 20", minutes=1.0, is_long=True),
    Benchmark("large_data", "--only tfrecord", quick="--only tfrecord", minutes=0.6, is_long=True),
    Benchmark(
        "large_embedding", "--keras 3", quick="--keras 3 --rows 20000 --steps 60", minutes=3.0, is_long=True
    ),
    Benchmark(
        "scale",
        "--tasks --agents 40 --nodes 4",
        quick="--tasks --agents 4 --nodes 2",
        minutes=4.0,
        is_long=True,
    ),
    Benchmark(
        "plain_pipeline", "--rounds 2", quick="--rounds 1 --records 100 --side 64", minutes=2.6, is_long=True
    ),
    Benchmark("task_memory", quick="--workers 2", minutes=1.6, is_long=True),
    Benchmark("virtual_replicas", "--rounds 2", quick="--rounds 1 --models dense", minutes=3.8, is_long=True),
    Benchmark("predict", "--rounds 2", quick="--rows 20000 --rounds 1", minutes=2.0, is_long=True),
    Benchmark("virtual_replicas", "--growth", quick="--growth --models dense", minutes=8.0, is_long=True),
    Benchmark("scale", "--tasks --agents 200", quick="--tasks --agents 3", minutes=6.0, is_long=True),
    Benchmark(
        "parameter_server_kills", "grow --rounds 2", quick="grow --rounds 1", minutes=2.0, is_long=True
    ),
    Benchmark("parameter_server_kills", "any", quick="any --runs 1", minutes=8.0, is_long=True),
    Benchmark("faults", "--faults 100 --seed 3", quick="--faults 1", minutes=40.0, is_long=True),
)
