"""What raydist writes for a person or a command line is read again as the same value."""

from __future__ import annotations

import shlex
from typing import Any

from hypothesis import given, strategies as st

from raydist.cli.kept_job import submit_line
from raydist.spec.job import CheckpointEvery, CheckpointUnit, PortRange, WorkerRange
from raydist.spec.partitioner import Partitioner
from raydist.spec.quantities import parse_bytes, parse_duration, write_duration
from raydist.spec.settings.options import find_option
from raydist.spec.settings.roles import settings_of
from tests.support.any_values import any_values

SECONDS = st.floats(min_value=1e-6, max_value=1e12) | st.integers(1, 10**9).map(float)
COUNTS = st.integers(1, 10**9)
PORTS = st.tuples(st.integers(1024, 65535), st.integers(1024, 65535)).map(sorted)
PARTITIONERS = st.builds(Partitioner, min_shard_bytes=COUNTS, max_shards=st.none() | COUNTS) | st.builds(
    Partitioner, fixed_shards=COUNTS
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "timeout": SECONDS,
    "memory_retry": st.floats(1.01, 10.0),
    "resources": st.builds(lambda cpus: {"ps": {"cpus": cpus}}, st.floats(0, 1e6))
    | st.builds(lambda amount: {"worker": {"resources": {"a:b": amount}}}, st.floats(1e-6, 1)),
    "workers": st.tuples(st.integers(1, 10_000), st.integers(1, 10_000)).map(
        lambda ends: WorkerRange(minimum=min(ends), maximum=max(ends))
    ),
    "checkpoint_every": st.builds(CheckpointEvery, count=COUNTS, unit=st.just(CheckpointUnit.STEPS))
    | st.builds(CheckpointEvery, count=COUNTS, unit=st.just(CheckpointUnit.SECONDS))
    | st.just(CheckpointEvery()),
    "ports": st.none() | PORTS.map(lambda ends: PortRange(low=ends[0], high=ends[1])),
    "partitioner": st.none() | PARTITIONERS,
    "keep": st.none() | COUNTS,
    "runtime_env": st.dictionaries(st.text(min_size=1, max_size=5), st.text(max_size=5), max_size=3),
}


@any_values
@given(SECONDS)
def test_duration_is_read_as_it_was(seconds: float) -> None:
    assert parse_duration("x", write_duration(seconds)) == seconds


@any_values
@given(st.integers(0, 10**15 - 1), st.sampled_from(["", " KiB", "MiB", " GB"]))
def test_size_is_read_in_its_unit(number: int, unit: str) -> None:
    units = {"": 1, "KiB": 2**10, "MiB": 2**20, "GB": 10**9}
    assert parse_bytes("x", f"{number}{unit}") == number * units[unit.strip()]


@any_values
@given(st.data(), st.sampled_from(sorted(VALUES)))
def test_value_of_an_option_is_read_from_the_submit_line(data: st.DataObject, name: str) -> None:
    option = find_option(name)
    value = data.draw(VALUES[name])
    words = shlex.split(submit_line("job.py", {name: value}, defaults=None))
    assert words[:3] == ["raydist", "submit", "job.py"]
    [flag, text] = words[3:]
    if name == "resources":
        assert option.parse(settings_of({flag.removeprefix("--"): [text]})) == value
        return
    assert flag == option.flag
    read = option.parse(text)
    assert read == (text if name == "runtime_env" else value)
