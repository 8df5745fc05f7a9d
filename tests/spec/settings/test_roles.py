"""What each role's tasks ask for, as it is written on the command line, in YAML and in Python."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pytest

from raydist.errors import SpecError
from raydist.spec.job import EntryPoint
from raydist.spec.settings.options import find_option
from raydist.spec.settings.resolution import JobDefinition, Origin, resolve, typed_values
from raydist.spec.settings.roles import settings_of, words_of
from raydist.spec.tasks import TaskResources, TaskType

PARSE = find_option("resources").parse


@pytest.mark.parametrize(
    ("amount", "written", "parsed"),
    [
        ("cpus", 2, 2.0),
        ("gpus", "auto", None),
        ("gpus", 2, 2),
        ("memory", "32MiB", 32 << 20),
        ("memory", "512 KiB", 512 << 10),
        ("memory", "2MB", 2_000_000),
        ("memory", "100", 100),
        ("memory", 100, 100),
        ("memory", "8GiB", 8 << 30),
        ("memory", "none", None),
        ("resources", {"ssd": 2}, {"ssd": 2.0}),
        ("resources", {"part": "0.25"}, {"part": 0.25}),
    ],
    ids=str,
)
def test_amount_is_typed(amount: str, written: object, parsed: Any) -> None:
    [value] = PARSE({"worker": {amount: written}})["worker"].values()
    assert (value, type(value)) == (parsed, type(parsed))


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("worker", "resources is 'worker'; write a mapping, such as {worker: {cpus: 4"),
        ({"wroker": {}}, "resources has 'wroker', but there is no role 'wroker'; did you mean worker?"),
        ({"data_worker": {}}, "there is no role 'data_worker'; did you mean data-worker"),
        ({"worker": 4}, "resources.worker is 4; write a mapping, such as {cpus: 4}"),
        ({"worker": {"cpu": 4}}, "resources.worker has 'cpu'; did you mean cpus?"),
        ({"worker": {"cpus": "-1"}}, "worker.cpus is -1; need at least 0"),
        ({"worker": {"cpus": None}}, "worker.cpus is None; write a number"),
        ({"ps": {"memory": 0}}, "ps.memory is 0; need at least 1"),
        ({"worker": {"memory": "32mb"}}, "worker.memory is '32mb'; write bytes, or 512KiB, 32MiB, 1GiB"),
        ({"worker": {"memory": True}}, "worker.memory is True; write bytes"),
        ({"worker": {"memory": 1.5}}, "worker.memory is 1.5; write bytes"),
        ({"worker": {"gpus": -1}}, "worker.gpus is -1; need at least 0"),
        ({"chief": {"gpus": 1}}, "chief.gpus is 1; only worker and evaluator use GPUs"),
        ({"worker": {"resources": {"ssd": "a"}}}, "worker.resources.ssd is 'a'; write a number"),
        ({"worker": {"resources": {"ssd": 1.5}}}, "worker.resources.ssd is 1.5; write a part of 1"),
        ({"worker": {"resources": {"memory": 1}}}, "worker.resources has memory; write memory instead"),
    ],
    ids=str,
)
def test_mistake_is_told_with_what_to_write(written: object, message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        PARSE(written)


def test_old_name_beside_a_resources_is_told_with_the_line_of_both(caplog: pytest.LogCaptureFixture) -> None:
    typed = typed_values({"cpus_per_worker": 2, "resources": {"worker": {"memory": "1GiB"}}})
    assert typed["resources"] == {"worker": {"cpus": 2.0, "memory": 1 << 30}}
    assert "now written resources={'worker': {'cpus': 2, 'memory': '1GiB'}}" in caplog.text
    with pytest.raises(SpecError, match=re.escape("resources.worker is 4; write a mapping")):
        typed_values({"cpus_per_worker": 2, "resources": {"worker": 4}})


@pytest.mark.parametrize("name", ["cpus", "memory", "gpus"])
def test_amount_without_a_role_is_refused_with_where_it_belongs(name: str) -> None:
    with pytest.raises(SpecError, match=r"there is no option .*; write it in resources, such as \{worker: "):
        typed_values({name: 4})


@pytest.mark.parametrize(
    ("texts", "settings"),
    [
        ({"cpus": ["worker=4", "ps=2"]}, {"worker": {"cpus": "4"}, "ps": {"cpus": "2"}}),
        (
            {"cpus": ["ps=1", "4"]},
            {role: {"cpus": "1" if role == "ps" else "4"} for role in ("chief", "worker", "ps", "evaluator")},
        ),
        ({"gpus": ["2"]}, {"worker": {"gpus": "2"}}),
        ({"memory": ["worker=1GiB", "worker=2GiB"]}, {"worker": {"memory": "2GiB"}}),
        (
            {"resources": ["worker=a:1", "worker=accelerator:A:0.5"]},
            {"worker": {"resources": {"a": "1", "accelerator:A": "0.5"}}},
        ),
        ({"resources": ["worker=none"]}, {"worker": {"resources": {}}}),
        ({"resources": ["a:1", "ps=b:1"], "cpus": ["ps=2"]}, None),
    ],
)
def test_texts_of_the_command_line_are_by_role(
    texts: Mapping[str, list[str]], settings: Mapping[str, Any] | None
) -> None:
    found = settings_of(texts)
    if settings is None:  # a role's own comes before what is for all
        assert found["worker"] == {"resources": {"a": "1"}}
        assert found["ps"] == {"resources": {"b": "1"}, "cpus": "2"}
        return
    assert found == settings


@pytest.mark.parametrize(
    ("amount", "text", "message"),
    [
        ("cpus", "wroker=4", "--cpus has 'wroker', but there is no role 'wroker'; did you mean worker?"),
        ("resources", "ssd=1", "--resources has 'ssd', but there is no role 'ssd'; write one of chief,"),
        ("resources", "worker=ssd", "--resources is 'worker=ssd'; write ROLE=KEY:N, such as worker=ssd:1"),
    ],
)
def test_text_without_a_role_or_an_amount_is_refused(amount: str, text: str, message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        settings_of({amount: [text]})


def test_layers_set_single_amounts() -> None:
    """As the fifteen options did that each role had for itself."""
    layers = [
        {"worker": {"cpus": 2, "memory": "1GiB", "resources": {"a": 1}}, "ps": {"cpus": 3}},
        {"worker": {"memory": "none", "resources": {"b": 1}}},
        settings_of({"cpus": ["worker=4"]}),
    ]
    job, config, asked = (typed_values({"resources": layer}) for layer in layers)
    definition = JobDefinition(name="j", entry_point=EntryPoint(file="a.py", function="f"), defaults=job)
    found = resolve(definition, config=config, overrides=asked, now=datetime(2026, 1, 1))
    assert found.job.resources_of(TaskType.WORKER) == TaskResources(cpus=4.0, resources={"b": 1.0})
    assert found.job.resources_of(TaskType.PS) == TaskResources(cpus=3.0)
    assert found.job.resources_of(TaskType.CHIEF) == TaskResources()
    names = ("worker.cpus", "worker.memory", "ps.cpus")
    assert [found.origins[name] for name in names] == [Origin.ASKED, Origin.CONFIG, Origin.JOB]
    assert "chief.cpus" not in found.origins


def test_words_are_read_as_the_settings() -> None:
    settings = PARSE(
        {"worker": {"cpus": 0.5, "memory": "1GiB", "resources": {"a": 1, "b:c": 2}, "gpus": "auto"}}
    )
    words = [*words_of(settings, defaults=None)]
    texts: dict[str, list[str]] = {}
    for flag, text in zip(words[::2], words[1::2], strict=True):
        texts.setdefault(flag.removeprefix("--"), []).append(text)
    assert PARSE(settings_of(texts)) == settings
    assert [*words_of(settings, defaults=settings)] == []
    back = {"worker": {"memory": None, "resources": {}}}
    assert [*words_of(back, defaults=settings)] == ["--memory", "worker=none", "--resources", "worker=none"]
    assert [*words_of(back, defaults={})] == []
