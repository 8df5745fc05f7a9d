from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from raydist.entry.config_file import read_config
from raydist.errors import SpecError
from raydist.planning.describe import describe_job
from raydist.spec.job import EntryPoint, JobSpec
from raydist.spec.secrecy import dump_plain_json
from raydist.spec.settings.options import find_option
from raydist.spec.tasks import ExtraRole, ExtraTask, Resources, TaskId, TaskType, parse_any_task

FEATURES = ExtraRole(
    name="features",
    command=("python", "serve.py", "--name", "a b"),
    num_tasks=2,
    resources=Resources(num_cpus=0.5, num_gpus=1, memory_bytes=2 << 30, custom=(("nvme", 1.0),)),
    may_fail=True,
)
WRITTEN = """
roles:
  features:
    command: python serve.py --name 'a b'
    count: 2
    cpus: 0.5
    gpus: 1
    memory: 2GiB
    resources: {nvme: 1}
    may_fail: true
"""


def test_config_file_has_a_role(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(WRITTEN)
    assert read_config(path) == {"roles": {"features": FEATURES}}


def test_command_alone_is_enough_and_may_be_a_list() -> None:
    found = find_option("roles").parse({"f": {"command": ["serve", "--port", 7000]}})
    assert found == {"f": ExtraRole(name="f", command=("serve", "--port", "7000"))}


@pytest.mark.parametrize(
    ("roles", "sentence"),
    [
        pytest.param("serve", r"roles is 'serve'; write a mapping", id="text"),
        pytest.param({"f": "serve"}, r"roles.f is 'serve'; write a mapping", id="no mapping"),
        pytest.param({"f": {"cpus": 1}}, r"roles.f has no command; write one", id="no command"),
        pytest.param({"f": {"command": ""}}, r"roles.f.command is empty", id="empty"),
        pytest.param({"f": {"command": "a 'b"}}, r"roles.f.command is .*No closing quotation", id="quotes"),
        pytest.param({"f": {"comand": "a"}}, r"has 'comand'; did you mean command\?", id="unknown key"),
        pytest.param({"f": {"command": "a", "count": 0}}, r"roles.f.count is 0; write 1 to", id="count"),
        pytest.param({"f": {"command": "a", "gpus": "auto"}}, r"roles.f.gpus is 'auto'; write a", id="gpus"),
        pytest.param({"f": {"command": "a", "may_fail": 1}}, r"roles.f.may_fail is 1; write true", id="fail"),
        pytest.param({"f": {"command": "a", "cpus": -1}}, r"roles.f.cpus is -1; need at least 0", id="cpus"),
        pytest.param({"f": {"command": "a", "memory": 0}}, r"roles.f.memory is 0; need", id="memory"),
        pytest.param({"f": {"command": "a", "resources": {"GPU": 1}}}, r"resources has GPU; write", id="gpu"),
        pytest.param({"F": {"command": "a"}}, r"roles has 'F'; write a name of lower-case", id="name"),
        *(
            pytest.param(
                {each.value: {"command": "a"}}, f"roles has {each.value}, which is a task type", id=each.value
            )
            for each in TaskType
        ),
    ],
)
def test_mistake_is_one_sentence(roles: object, sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence) as caught:
        find_option("roles").parse(roles)
    assert "\n" not in str(caught.value)


def test_run_json_has_the_role_without_its_secrets() -> None:
    role = dataclasses.replace(FEATURES, command=("serve", "--api-key", "hush", "--port", "7000"))
    job = JobSpec(name="run", entry_point=EntryPoint(file="a.py", function="train"), roles={"features": role})
    stored = json.loads(dump_plain_json(describe_job(job)))["roles"]
    command = ("serve", "--api-key", "***", "--port", "7000")
    assert find_option("roles").parse(stored) == {"features": dataclasses.replace(role, command=command)}


def test_tasks_of_a_role_are_named_like_tasks() -> None:
    assert [str(task) for task in FEATURES.tasks] == ["features/0", "features/1"]
    assert parse_any_task("features/1") == ExtraTask(role="features", index=1)
    assert parse_any_task("data-worker/1") == TaskId(task_type=TaskType.DATA_WORKER, index=1)
    with pytest.raises(SpecError, match="is not a task"):
        parse_any_task("Features")


def test_variable_of_the_hosts_is_named_after_the_role() -> None:
    assert ExtraRole(name="my-features", command=("a",)).hosts_variable == "RAYDIST_HOSTS_MY_FEATURES"
