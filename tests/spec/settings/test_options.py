from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from raydist.errors import SpecError
from raydist.spec.job import (
    CheckpointEvery,
    CheckpointUnit,
    JobSpec,
    KerasFlavour,
    PortRange,
    Strategy,
    WorkerRange,
)
from raydist.spec.partitioner import Partitioner
from raydist.spec.settings.options import OPTIONS, find_option
from raydist.spec.shares import Shares


def test_options_are_the_fields_of_job_spec_but_entry_point_and_params() -> None:
    fields = {field.name for field in dataclasses.fields(JobSpec)}
    assert {option.name for option in OPTIONS} == fields - {"entry_point", "params"}


def test_every_default_passes_its_own_parser() -> None:
    parsed = {option.name: option.parse(option.default) for option in OPTIONS if option.name != "name"}
    assert parsed == {option.name: option.default for option in OPTIONS if option.name != "name"}


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        ("label_selector", "--label-selector"),
        ("evaluator", "--evaluator/--no-evaluator"),
        ("patch_keras", "--patch-keras/--no-patch-keras"),
        ("resume", "--resume"),
    ],
)
def test_flag_is_the_field_with_dashes(name: str, flag: str) -> None:
    assert find_option(name).flag == flag


def test_help_ends_with_the_built_in_default() -> None:
    assert find_option("max_failures").help.endswith("[default: 3]")
    assert find_option("start_timeout").help == "Time limit for starting an attempt. [default: 5m]"
    assert find_option("checkpoint_every").help.endswith("[default: epoch]")


@pytest.mark.parametrize(
    ("name", "written", "parsed"),
    [
        ("workers", "2:4", WorkerRange(minimum=2, maximum=4)),
        ("workers", 3, WorkerRange(minimum=3, maximum=3)),
        ("workers", WorkerRange(), WorkerRange()),
        ("strategy", "mirrored", Strategy.MIRRORED),
        ("strategy", Strategy.TPU, Strategy.TPU),
        ("keras", 3, KerasFlavour.KERAS_3),
        ("keras", "legacy", KerasFlavour.LEGACY),
        ("ports", "20000-20099", PortRange(low=20000, high=20099)),
        ("checkpoint_every", 100, CheckpointEvery(count=100, unit=CheckpointUnit.STEPS)),
        ("checkpoint_every", "60s", CheckpointEvery(count=60, unit=CheckpointUnit.SECONDS)),
        ("checkpoint_every", "1 h", CheckpointEvery(count=3600, unit=CheckpointUnit.SECONDS)),
        ("ps", "2", 2),
        ("checkpoint_every", "5m", CheckpointEvery(count=300, unit=CheckpointUnit.SECONDS)),
        ("timeout", "1e3", 1000.0),
        ("timeout", 90, 90.0),
        ("timeout", 0.5, 0.5),
        ("timeout", "90", 90.0),
        ("timeout", "90s", 90.0),
        ("timeout", "5m", 300.0),
        ("stall_timeout", "1.5h", 5400.0),
        ("timeout", "none", None),
        ("keep", "all", None),
        ("evaluator", "true", True),
        ("storage", Path("/runs"), "/runs"),
        ("address", "ray://head:10001", "ray://head:10001"),
        ("address", "[::1]:6379", "[::1]:6379"),
        ("auto_shard", "off", "off"),
        ("partitioner", "min_size:262144", Partitioner(min_shard_bytes=262144)),
        ("partitioner", Partitioner(max_shards=2), Partitioner(max_shards=2)),
        ("partitioner", "none", None),
        ("shares", "3, 1", Shares(weights=(3, 1))),
        ("shares", [3, 1], Shares(weights=(3, 1))),
        ("shares", "equal", None),
        ("keep_best", "val_accuracy", "val_accuracy"),
        ("collective", "ring", "ring"),
        ("collective_timeout", "5m", 300.0),
        ("collective_timeout", "none", None),
        ("memory_retry", "1.5x", 1.5),
        ("memory_retry", 2, 2.0),
        ("memory_retry", "none", None),
        ("accelerator_type", "A100", "A100"),
        ("accelerator_type", "any", None),
        ("label_selector", ("zone=a", "ps:disk=!in(hdd, tape)"), {"zone": "a", "ps:disk": "!in(hdd, tape)"}),
        ("label_selector", {"ray.io/node-group": "gpu"}, {"ray.io/node-group": "gpu"}),
        ("label_selector", ("none",), {}),
        ("compress_gradients", "none", "none"),
        ("resume", "auto", "auto"),
        ("resume", "true", True),
        ("resume", False, False),
    ],
    ids=str,
)
def test_text_and_typed_values_become_the_fields_type(name: str, written: object, parsed: Any) -> None:
    value = find_option(name).parse(written)
    assert (value, type(value)) == (parsed, type(parsed))


@pytest.mark.parametrize(
    ("name", "written", "message"),
    [
        ("workers", 0, "workers is 0; need at least 1"),
        ("workers", "-1", "workers is -1; need at least 1"),
        ("workers", "4:2", "workers is 4:2; MIN must not exceed MAX, write 2:4"),
        ("workers", "two", "workers is 'two'; write a number, or MIN:MAX such as 2:4"),
        ("workers", True, "workers is True; write a number, or MIN:MAX such as 2:4"),
        ("workers", 2.0, "workers is 2.0; write a number, or MIN:MAX such as 2:4"),
        ("workers", "9" * 5000, None),
        ("strategy", "miror", "strategy is 'miror'; did you mean mirrored?"),
        ("strategy", "Mirrored", "strategy is 'Mirrored'; did you mean mirrored?"),
        ("strategy", "x", None),
        ("keras", "2", "keras is '2'; write one of auto, 3, legacy"),
        ("keras", True, None),
        ("ps", True, "ps is True; write a whole number"),
        ("shares", "3,0", "shares is 3,0; each number has to be from 1 to 1000"),
        ("shares", 3, "shares is 3; write auto, or a whole number for each worker, in order, such as 3,1"),
        (
            "shares",
            "3;1",
            "shares is '3;1'; write auto, or a whole number for each worker, in order, such as 3,1",
        ),
        ("resume", "always", "resume is 'always'; write true, false or auto"),
        ("resume", 1, "resume is 1; write true, false or auto"),
        ("ps", -1, "ps is -1; need at least 0"),
        ("ps", 1.5, "ps is 1.5; write a whole number"),
        ("ps", 10_001, "ps is 10001; at most 10000 are supported"),
        ("devices", 0, "devices is 0; need at least 1"),
        ("timeout", 0, "timeout is 0; need more than 0 seconds"),
        ("start_timeout", "nan", "start_timeout is 'nan'; write seconds, or 90s, 5m, 2h"),
        ("start_timeout", None, "start_timeout is None; write seconds, or 90s, 5m, 2h"),
        ("timeout", "-5m", "timeout is -300; need more than 0 seconds"),
        ("timeout", "1d", "timeout is '1d'; write seconds, or 90s, 5m, 2h"),
        ("timeout", "1h30m", "timeout is '1h30m'; write seconds, or 90s, 5m, 2h"),
        ("timeout", "m", "timeout is 'm'; write seconds, or 90s, 5m, 2h"),
        ("timeout", True, "timeout is True; write seconds, or 90s, 5m, 2h"),
        ("timeout", "1" * 400 + "h", None),
        ("seed", 2**32, "seed is 4294967296; need at most 4294967295"),
        ("evaluator", 1, "evaluator is 1; write true or false"),
        ("evaluator", "no", "evaluator is 'no'; write true or false"),
        ("ports", "80-90", "ports is 80-90; write LOW-HIGH with 1024 <= LOW <= HIGH <= 65535"),
        ("ports", 20000, "ports is 20000; write LOW-HIGH, such as 20000-20099"),
        ("checkpoint_every", "0", "checkpoint_every is 0; the number has to be at least 1"),
        ("checkpoint_every", "5d", "checkpoint_every is '5d'; write 100 (steps), epoch, 60s, or 5m"),
        ("checkpoint_every", "0.5s", "checkpoint_every is '0.5s'; write whole seconds, such as 60s"),
        ("checkpoint_every", "0m", "checkpoint_every is 0s; the number has to be at least 1"),
        ("checkpoint_every", "..s", "checkpoint_every is '..s'; write seconds, or 90s, 5m, 2h"),
        ("auto_shard", "files", "auto_shard is 'files'; did you mean file?"),
        ("collective", "rings", "collective is 'rings'; did you mean ring?"),
        ("collective_timeout", 0, "collective_timeout is 0; need more than 0 seconds"),
        ("compress_gradients", "fp8", None),
        (
            "partitioner",
            {"min_size": 1},
            "partitioner is {'min_size': 1}; write min_size:BYTES, max_shards:N, "
            "min_size:BYTES,max_shards:N or fixed_shards:N",
        ),
        ("name", Path("r"), None),
        ("keep_best", "", "keep_best is ''; write the name of a metric, such as val_accuracy"),
        ("address", "head", "address is 'head'; write local, auto, host:port, or ray://host:port"),
        ("name", "a/b", None),
        ("name", "..", None),
        ("name", "x" * 101, None),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_ill_value_is_refused_with_name_value_and_remedy(
    name: str, written: object, message: str | None
) -> None:
    with pytest.raises(SpecError) as caught:
        find_option(name).parse(written)
    text = str(caught.value)
    assert text == message if message else text.startswith(f"{name} is ")


def test_where_comes_first_in_the_message() -> None:
    with pytest.raises(SpecError, match=r"^jobs/a\.py, line 3: workers is 0; need at least 1$"):
        find_option("workers").parse(0, where="jobs/a.py, line 3")


def test_unknown_option_names_the_near_ones() -> None:
    with pytest.raises(SpecError, match=r"^there is no option 'worker'; did you mean workers\?$"):
        find_option("worker")


@pytest.mark.parametrize(
    ("name", "written", "message"),
    [
        ("memory_retry", "1x", "memory_retry is 1; write a factor above 1 and up to 10, such as 1.5x"),
        ("memory_retry", "more", "memory_retry is 'more'; write a factor such as 1.5x"),
        ("label_selector", "zone=a", "label_selector is 'zone=a'; write KEY=VALUE"),
        ("label_selector", ("pss:zone=a",), "label_selector has 'pss:zone', but there is no role 'pss'; did"),
        ("label_selector", ("zone=in(a",), "label_selector has 'zone': 'in(a'; write a, !a, in(a,b)"),
    ],
)
def test_ill_resource_is_refused_with_what_to_write(name: str, written: object, message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        find_option(name).parse(written)
