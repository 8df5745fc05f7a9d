"""What runs of one job with several numbers of workers say of its scaling, and what bounds it.

Decides from plain numbers; who runs and reads is `raydist.cli.commands.studies`.
"""

from __future__ import annotations

import dataclasses
import enum
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raydist.spec.text import counted

# Of a task's values the first ones are left out: its buffers were still filling then.
_UNSTEADY = 0.25
# Shares of the time of a step, from which on they bound a run.
_WAITS = 0.2
# Steps that are shorter than this spend their time on the messages themselves, not on what is in them.
_SHORT_STEP_S = 0.02
# From here on more workers pay.
_SCALES = 0.8


@dataclass(frozen=True, kw_only=True)
class TaskReadings:
    """What a task reported, a value for each report in order; empty where it is not measured.

    Attributes:
      steps: Completed by the run at each report; `times` are the Unix times of these, seconds.
      examples_per_s: Of this task alone.
      input_wait, collective_wait: Shares of the time since the report before, 0 to 1.
    """

    steps: Sequence[int] = ()
    times: Sequence[float] = ()
    examples_per_s: Sequence[float] = ()
    input_wait: Sequence[float] = ()
    collective_wait: Sequence[float] = ()


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One run of the job. Of what is None nothing was measured.

    Attributes:
      workers: Of the run; 1 for the run on one device.
      num_hosts: Hosts that its workers were on.
      num_cores: CPUs of the cluster.
      has_gpus: Whether the workers have GPUs.
      steps: The highest step completed.
      examples_per_s: Of all workers together, in the steady state.
      step_s: Seconds that a step takes.
      input_wait, collective_wait: Mean share over the workers, 0 to 1.
      memory_bytes: Of the worker that took most.
      batch: Examples in a global batch.
    """

    name: str
    run: str
    state: str
    strategy: str
    workers: int
    num_hosts: int = 1
    num_cores: int = 1
    has_gpus: bool = False
    steps: int = 0
    examples_per_s: float | None = None
    step_s: float | None = None
    input_wait: float | None = None
    collective_wait: float | None = None
    memory_bytes: int | None = None
    batch: int | None = None

    @property
    def worker_s_per_million(self) -> float | None:
        """What a million examples cost, in seconds of one worker."""
        return None if not self.examples_per_s else 1e6 * self.workers / self.examples_per_s

    def speed_up(self, one_device: Measurement) -> float | None:
        """Returns how many times faster it is than the run on one device."""
        if self.examples_per_s is None or not one_device.examples_per_s:
            return None
        return self.examples_per_s / one_device.examples_per_s

    def efficiency(self, one_device: Measurement) -> float | None:
        """Returns the speed-up for each worker."""
        speed_up = self.speed_up(one_device)
        return None if speed_up is None else speed_up / self.workers

    def as_dict(self, one_device: Measurement) -> dict[str, Any]:
        """Returns all of it as plain values, rounded to four digits."""
        found = {
            **dataclasses.asdict(self),
            "speed_up": self.speed_up(one_device),
            "efficiency": self.efficiency(one_device),
            "worker_s_per_million_examples": self.worker_s_per_million,
        }
        return {key: float(f"{one:.4g}") if isinstance(one, float) else one for key, one in found.items()}


def measured(readings: Mapping[str, TaskReadings], *, batch: int | None) -> dict[str, Any]:
    """Returns the fields of a Measurement that the workers' readings tell.

    Args:
      batch: Examples in a global batch, for tasks that do not count their examples.
    """
    rates = [_steady(one.examples_per_s) for one in readings.values()]
    known = [one for one in rates if one is not None]
    step_s = _mean([_step_s(one) for one in readings.values()])
    examples_per_s = sum(known) if known else None
    if examples_per_s is None and batch is not None and step_s:
        examples_per_s = batch / step_s
    return {
        "examples_per_s": examples_per_s,
        "step_s": step_s,
        "input_wait": _mean([_steady(one.input_wait) for one in readings.values()]),
        "collective_wait": _mean([_steady(one.collective_wait) for one in readings.values()]),
    }


class Bound(enum.Enum):
    """What keeps more workers from making a job faster."""

    NOTHING = "nothing"  # it scales
    CORES = "cores"  # the workers share CPUs that the run on one device had for itself
    INPUT = "input"
    SMALL_BATCH = "small batch"  # steps are so short that messages take most of them
    ALL_REDUCE = "all-reduce"
    COMPUTE = "compute"  # none of the shares explains it
    UNKNOWN = "unknown"  # nothing was measured


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What bounds a job, and what to change, as one sentence."""

    bound: Bound
    sentence: str


def verdict(one_device: Measurement, runs: Sequence[Measurement]) -> Verdict:
    """Returns what bounds the run with the most workers."""
    others = [one for one in runs if one is not one_device]
    largest = max(others, key=lambda one: one.workers, default=None)
    if largest is None:
        told = "only the run on one device was measured, which says nothing of more workers"
        return Verdict(bound=Bound.UNKNOWN, sentence=told)
    bound = _bound(one_device, largest)
    return Verdict(bound=bound, sentence=f"{_finding(bound, one_device, largest)}; {_REMEDIES[bound]}")


_REMEDIES = {
    Bound.NOTHING: "more workers pay as long as the efficiency stays there",
    Bound.CORES: "give each worker a host or a GPU of its own, or use fewer workers",
    Bound.INPUT: (
        "cache what does not change (cached()), make maps cheaper, or give --cpus worker=N or --data-workers"
    ),
    Bound.SMALL_BATCH: (
        "raise the batch size, and several steps a call (steps_per_call, steps_per_execution) or "
        "accumulated gradients, so that there is more to compute for each exchange"
    ),
    Bound.ALL_REDUCE: ("raise the batch size, accumulate gradients, or send less (--compress-gradients)"),
    Bound.COMPUTE: "`raydist profile` shows what the steps do, and the page of a run which worker is slow",
    Bound.UNKNOWN: "train with ctx.fit, ctx.train_steps or model.fit, and long enough for --steps",
}


def _bound(one_device: Measurement, largest: Measurement) -> Bound:
    efficiency = largest.efficiency(one_device)
    if efficiency is None:
        return Bound.UNKNOWN
    if efficiency >= _SCALES:
        return Bound.NOTHING
    # Tasks that wait for a CPU make the others wait in collectives, and their inputs late.
    if not largest.has_gpus and largest.workers > largest.num_cores:
        return Bound.CORES
    input_wait, collective_wait = largest.input_wait or 0.0, largest.collective_wait or 0.0
    if input_wait >= max(_WAITS, collective_wait):
        return Bound.INPUT
    if collective_wait >= _WAITS:
        is_short = largest.step_s is not None and largest.step_s < _SHORT_STEP_S
        return Bound.SMALL_BATCH if is_short else Bound.ALL_REDUCE
    if not largest.has_gpus and largest.workers > largest.num_hosts:
        return Bound.CORES
    return Bound.COMPUTE


def _finding(bound: Bound, one_device: Measurement, largest: Measurement) -> str:
    if bound is Bound.UNKNOWN:
        return "no bound was found: the examples of a run were not counted"
    workers = counted(largest.workers, "worker")
    trains = "trains" if largest.workers == 1 else "train"
    speed = f"{workers} {trains} {largest.speed_up(one_device):.2g} times as fast as one device"
    cores = counted(largest.num_cores, "CPU core")
    match bound:
        case Bound.NOTHING:
            return f"{speed}, and nothing bounds them yet"
        case Bound.CORES:
            return f"{speed}, bound by CPU: they share {cores}, which the run on one device had for itself"
        case Bound.INPUT:
            return f"{speed}, bound by their input: they wait for it {largest.input_wait:.0%} of the time"
        case Bound.SMALL_BATCH:
            each = "" if largest.batch is None else f" of {largest.batch} examples"
            return (
                f"{speed}, bound by a small batch: a step{each} takes {1000 * (largest.step_s or 0):.2g} ms, "
                f"and {largest.collective_wait:.0%} of it is all-reduce"
            )
        case Bound.ALL_REDUCE:
            return f"{speed}, bound by all-reduce, which takes {largest.collective_wait:.0%} of the time"
        case _:
            return f"{speed}, and neither input nor all-reduce explains it"


def _steady(values: Sequence[float]) -> float | None:
    """Returns the median once the buffers are filled; None without a value."""
    kept = values[_num_unsteady(values) :]
    return statistics.median(kept) if len(kept) else None


def _step_s(one: TaskReadings) -> float | None:
    first = _num_unsteady(one.steps)
    if len(one.steps) - first < 2 or one.steps[-1] <= one.steps[first]:
        return None
    return (one.times[-1] - one.times[first]) / (one.steps[-1] - one.steps[first])


def _num_unsteady(values: Sequence[Any]) -> int:
    return int(_UNSTEADY * len(values))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    return statistics.fmean(known) if known else None
