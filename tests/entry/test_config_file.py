from __future__ import annotations

from pathlib import Path

import pytest

from raydist.entry.config_file import read_config
from raydist.errors import SpecError
from raydist.spec.job import PortRange, Strategy, WorkerRange
from raydist.spec.partitioner import Partitioner
from raydist.spec.yaml12 import parse_yaml


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "cluster.yaml"


def test_options_are_typed_and_params_kept_by_yaml_1_2(config: Path) -> None:
    config.write_text(
        "workers: 2:4\nstrategy: multi_worker_mirrored\nports: 20000-20009\nauto_shard: off\n"
        "partitioner: min_size:1024,max_shards:2\n"
        "timeout:\nstart_timeout: 5m\nparams:\n  lr: 1e-3\n  flag: no\n"
    )
    assert read_config(config) == {
        "workers": WorkerRange(minimum=2, maximum=4),
        "strategy": Strategy.MULTI_WORKER_MIRRORED,
        "ports": PortRange(low=20000, high=20009),
        "auto_shard": "off",
        "partitioner": Partitioner(min_shard_bytes=1024, max_shards=2),
        "timeout": None,
        "start_timeout": 300.0,
        "params": {"lr": 0.001, "flag": "no"},
    }


@pytest.mark.parametrize("text", ["", "# nothing set\n", "---\n"], ids=["empty", "comment", "marker"])
def test_file_that_sets_nothing_is_an_empty_layer(config: Path, text: str) -> None:
    config.write_text(text)
    assert read_config(config) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ps: 1\nworker: 2\n", ", line 2: there is no option 'worker'; did you mean workers?"),
        ("ps: 1\n\nworkers: 0\n", ", line 3: workers is 0; need at least 1"),
        ("evaluator: yes\n", ", line 1: evaluator is 'yes'; write true or false"),
        ("start_timeout:\n", ", line 1: start_timeout is None; write seconds, or 90s, 5m, 2h"),
        ("params: [1]\n", ", line 1: params is [1]; write a mapping of names to values"),
        ("params:\n  1: 2\n", ", line 1: params has the key 1; write text"),
        ("a: &x [*x]\n", ", line 1: there is no option 'a'; "),
        ("params:\n  a: &x [*x]\n", ", line 1: params.a is of type list; "),
        ("- workers\n", " holds a list, not a mapping; write lines such as `workers: 2`"),
        ("workers\n", " holds 'workers', not a mapping; write lines such as `workers: 2`"),
        ("ps: 1\nps: 2\n", ", line 2: the key 'ps' is there twice; fix the YAML there"),
        ("params:\n  a: 1\n  a: 2\n", ", line 3: the key 'a' is there twice; fix the YAML there"),
        ("ps: 1\n  workers: [\n", ", line 2: mapping values are not allowed here; fix the YAML there"),
        ("ps: " + "9" * 5000, ", line 1: the number is too long; fix the YAML there"),
        ("ps: !!python/object:os.system 1\n", ", line 1: could not determine a constructor"),
        ("ps: \x00", " is not YAML: "),
        ("ps: 1\n---\nps: 2\n", ", line 2: but found another document; fix the YAML there"),
        ("? [a]\n: 1\n", ", line 1: found unhashable key; fix the YAML there"),
        ("1: 2\n", ", line 1: there is no option '1'; "),
        ("[" * 20000, " is nested too deeply; "),
    ],
    ids=lambda text: text[:25],
)
def test_ill_file_is_refused_with_path_and_line(config: Path, text: str, message: str) -> None:
    config.write_text(text)
    with pytest.raises(SpecError) as caught:
        read_config(config)
    assert f"{config}{message}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_is_refused(config: Path) -> None:
    with pytest.raises(SpecError, match="No such file or directory; give a YAML file"):
        read_config(config)


def test_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="Is a directory; give a YAML file"):
        read_config(tmp_path)


def test_binary_file_is_refused(config: Path) -> None:
    config.write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(SpecError, match="is not UTF-8 text"):
        read_config(config)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1.", 1.0),
        (".5", 0.5),
        ("-.inf", float("-inf")),
        ("010", 10),
        ("0o10", 8),
        ("0x1F", 31),
        ("1_000", "1_000"),
        ("12:30", "12:30"),
        ("no", "no"),
        ("On", "On"),
        ("TRUE", True),
        ("~", None),
        ("2026-11-21", "2026-11-21"),
        ("'3'", "3"),
        ("=", "="),
    ],
)
def test_scalar_is_resolved_by_yaml_1_2(text: str, value: object) -> None:
    assert parse_yaml(text) == value
    assert type(parse_yaml(text)) is type(value)
