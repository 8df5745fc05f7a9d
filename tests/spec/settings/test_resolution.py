from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from raydist.errors import SpecError
from raydist.spec.job import EntryPoint, JobSpec, WorkerRange, check_run_name
from raydist.spec.params import ParamTexts
from raydist.spec.settings.resolution import (
    JobDefinition,
    Origin,
    ResolvedJob,
    default_run_name,
    resolve,
    typed_values,
)

NOW = datetime(2026, 11, 21, 9, 30, 12)
PARAMS = {"lr": 1e-3, "epochs": 3, "data": "auto", "shuffle": True, "layers": [1, 2], "extra": None}


def define(**defaults: Any) -> JobDefinition:
    return JobDefinition(
        name="cifar",
        entry_point=EntryPoint(file="cifar.py", function="train"),
        working_dir=Path("/jobs"),
        defaults=typed_values({"params": PARAMS, **defaults}),
        where="cifar.py, line 3",
    )


def resolved(
    definition: JobDefinition | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    config_where: str = "the config",
    overrides: Mapping[str, Any] | None = None,
) -> ResolvedJob:
    return resolve(
        definition or define(),
        config=typed_values(config or {}, where=config_where),
        config_where=config_where,
        overrides=typed_values(overrides or {}),
        now=NOW,
        suffix="1f3a",
    )


def params(**layers: Any) -> Mapping[str, Any]:
    return resolved(**layers).job.params


def test_no_layer_gives_built_in_defaults_and_a_name_from_job_and_time() -> None:
    job = resolved().job
    assert job == JobSpec(
        name="cifar-20261121-093012-1f3a",
        entry_point=EntryPoint(file="cifar.py", function="train"),
        params=PARAMS,
        working_dir="/jobs",
    )


def test_higher_layer_wins_and_is_named_as_the_source() -> None:
    result = resolved(define(workers=2, seed=1, ps=1), config={"seed": 2, "ps": 2}, overrides={"ps": "3"})
    assert (result.job.workers, result.job.seed, result.job.ps) == (WorkerRange(minimum=2, maximum=2), 2, 3)
    names = ("workers", "seed", "ps", "keras")
    origins = [result.origins[name] for name in names]
    assert origins == [Origin.JOB, Origin.CONFIG, Origin.ASKED, Origin.BUILT_IN]


def test_explicit_null_of_a_higher_layer_wins() -> None:
    assert resolved(config={"timeout": 60}, overrides={"timeout": None}).job.timeout is None


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("lr=1e-2", "lr", 0.01),
        ("lr=1", "lr", 1.0),
        ("epochs=5", "epochs", 5),
        ("data=no", "data", "no"),
        ("data=a=b", "data", "a=b"),
        ("data=", "data", ""),
        ("shuffle=False", "shuffle", False),
        ("layers=[3, 1e-3, no]", "layers", [3, 1e-3, "no"]),
        ("extra=1e-3", "extra", 1e-3),
        ("extra=no", "extra", "no"),
        ("extra={a: 1}", "extra", {"a": 1}),
        ("extra=", "extra", None),
    ],
)
def test_param_text_is_read_by_the_type_of_its_default(text: str, key: str, value: Any) -> None:
    read = params(overrides={"params": ParamTexts.parse([text])})[key]
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr=fast", "params.lr is 'fast'; write a number, as its default is 0.001"),
        ("epochs=1.5", "params.epochs is '1.5'; write a whole number, as its default is 3"),
        ("shuffle=yes", "params.shuffle is 'yes'; write true or false, as its default is True"),
        ("layers=3", "params.layers is 3; write a list, as its default is [1, 2]"),
        ("layers=[3", "params.layers is '[3', which is not YAML; write a value such as 3, [1, 2] or 'text'"),
        ("epoch=3", "params.epoch: the job has no such param; did you mean epochs?"),
        ("epochs", "-p 'epochs' has no value; write -p KEY=VALUE"),
    ],
)
def test_ill_param_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        params(overrides={"params": ParamTexts.parse([text])})
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("lr", "0.1", "params.lr is '0.1'; write a number, as its default is 0.001"),
        ("lr", True, "params.lr is True; write a number, as its default is 0.001"),
        ("epochs", 1.0, "params.epochs is 1.0; write a whole number, as its default is 3"),
        ("data", 3, "params.data is 3; write text (in quotes), as its default is 'auto'"),
        ("layers", "1", "params.layers is '1'; write a list, as its default is [1, 2]"),
        ("lrs", 1, "params.lrs: the job has no such param; did you mean lr?"),
    ],
)
def test_ill_typed_param_of_a_config_is_refused_and_names_it(key: str, value: Any, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        params(config={"params": {key: value}}, config_where="c.yaml")
    assert str(caught.value) == f"c.yaml: {message}"


@pytest.mark.parametrize(
    "asked", [{"epochs": 6}, ParamTexts.parse(["epochs=5", "epochs=6"])], ids=["keywords", "command-line"]
)
def test_params_of_keywords_or_command_line_come_before_config(asked: Mapping[str, Any]) -> None:
    merged = params(config={"params": {"lr": 1, "epochs": 5}}, overrides={"params": asked})
    assert (merged["lr"], merged["epochs"], merged["data"]) == (1.0, 6, "auto")


def test_param_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(SpecError, match=r"^params\.extra is of type object; use numbers"):
        params(overrides={"params": {"extra": object()}})


BARE = JobDefinition(name="bare", entry_point=EntryPoint(file="bare.py", function="train"))


def test_job_that_declares_no_params_takes_any() -> None:
    merged = resolved(
        BARE, config={"params": {"a": 1, "b": [1]}}, overrides={"params": {"b": {"c": None}, "n": 20}}
    ).job.params
    assert merged == {"a": 1, "b": {"c": None}, "n": 20}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("20", 20),
        ("1e3", 1000.0),
        ("0o17", 15),
        ("017", 17),
        ("0x1F", 31),
        ("-.5", -0.5),
        ("1_000", "1_000"),
        ("12:30", "12:30"),
        ("2026-11-21", "2026-11-21"),
        ("yes", "yes"),
        ("on", "on"),
        ("true", True),
        ("null", None),
        ("~", None),
        ("", None),
        ("[1, no, 2.5]", [1, "no", 2.5]),
        ("{a: [true]}", {"a": [True]}),
        ("'20'", "20"),
        ("s3://bucket/data", "s3://bucket/data"),
    ],
)
def test_text_of_an_undeclared_param_is_yaml_1_2(text: str, value: Any) -> None:
    read = resolved(BARE, overrides={"params": ParamTexts.parse([f"n={text}"])}).job.params["n"]
    assert (read, type(read)) == (value, type(value))


def test_undeclared_param_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(SpecError, match=r"^params\.n is of type dict; use numbers"):
        resolved(BARE, overrides={"params": ParamTexts.parse(["n={1: 2}"])})


def test_unknown_override_is_refused() -> None:
    with pytest.raises(SpecError, match=r"^there is no option 'worker'; did you mean workers\?$"):
        resolved(overrides={"worker": 2})


def test_resume_without_a_name_is_refused() -> None:
    with pytest.raises(SpecError, match="add the name of the run to continue: --name RUN"):
        resolved(overrides={"resume": True})


@pytest.mark.parametrize(
    ("job_name", "run_name"),
    [
        ("cifar", "cifar-20261121-093012-1f3a"),
        ("my job..v2", "my-job-v2-20261121-093012-1f3a"),
        ("<lambda>", "lambda-20261121-093012-1f3a"),
        ("_ä", "run-20261121-093012-1f3a"),
        ("x" * 300, "x" * 60 + "-20261121-093012-1f3a"),
    ],
)
def test_default_run_name_is_valid_whatever_the_job_is_called(job_name: str, run_name: str) -> None:
    name = default_run_name(job_name, now=NOW, suffix="1f3a")
    check_run_name(name)
    assert name == run_name
