from __future__ import annotations

import dataclasses
import json

from raydist.planning.describe import describe_job, describe_plan
from raydist.spec.job import CheckpointEvery, EntryPoint, JobSpec, PortRange, Strategy, WorkerRange
from raydist.spec.partitioner import Partitioner
from raydist.spec.secrecy import dump_plain_json
from raydist.spec.settings.options import OPTIONS
from raydist.spec.tasks import TaskType
from tests.planning.plans import LAPTOP, plan, workers


def test_job_in_run_json_is_read_back_as_it_was() -> None:
    job = JobSpec(
        name="run",
        entry_point=EntryPoint(file="a.py", function="train"),
        strategy=Strategy.PARAMETER_SERVER,
        workers=WorkerRange(minimum=2, maximum=4),
        ps=2,
        evaluator=True,
        ports=PortRange(low=20000, high=20099),
        checkpoint_every=CheckpointEvery.parse("100"),
        partitioner=Partitioner(min_shard_bytes=1024, max_shards=2),
    )
    stored = json.loads(dump_plain_json(describe_job(job)))
    assert stored["partitioner"] == "min_size:1024,max_shards:2"
    read = {option.name: option.parse(stored[option.name]) for option in OPTIONS}
    again = JobSpec(entry_point=job.entry_point, **read)
    assert dataclasses.replace(again, resources={}) == job
    assert [again.resources_of(one) for one in TaskType] == [job.resources_of(one) for one in TaskType]


def test_values_of_secret_variables_are_nowhere() -> None:
    env = {"HF_TOKEN": "hush-1", "DB": "postgres://me:hush-2@db", "OPEN": "1"}
    runtime_env = {"pip": ["--extra-index-url https://me:hush-3@index", "einops"]}
    made = plan(LAPTOP, env=env, runtime_env=runtime_env)
    told = dump_plain_json([describe_plan(made), describe_job(made.job)]) + repr(made)
    assert "hush" not in told
    assert describe_job(made.job)["env"] == {"HF_TOKEN": "***", "DB": "***", "OPEN": "1"}
    assert describe_plan(made)["runtime_env"] == ["pip"]


def test_described_plan_lists_every_role_and_a_tf_config_for_every_task() -> None:
    described = describe_plan(
        plan(LAPTOP, workers=workers(2), ps=1, evaluator=True, resources={"ps": {"cpus": 0.5}})
    )
    assert [(role["task_type"], role["num_tasks"], role["cpus"]) for role in described["roles"]] == [
        ("chief", 1, 1.0),
        ("worker", 2, 1.0),
        ("ps", 1, 0.5),
        ("evaluator", 1, 1.0),
    ]
    assert [task["task"] for task in described["tasks"]] == [
        *("chief/0", "worker/0", "worker/1", "ps/0", "evaluator/0")
    ]
    assert all(json.loads(task["tf_config"])["cluster"]["ps"] == ["ps-0:0"] for task in described["tasks"])
