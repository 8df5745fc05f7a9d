"""What is decided for parameter_server before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

from raydist.errors import ClusterError, SpecError
from raydist.planning.assignment import static_environment
from raydist.planning.inventory import Inventory
from raydist.planning.plan import Plan
from raydist.spec.job import KerasFlavour, Strategy, WorkerRange
from raydist.spec.partitioner import Partitioner
from raydist.spec.settings.resolution import Origin
from raydist.spec.tasks import Resources, Role, TaskType
from tests.planning.plans import LAPTOP, cluster, plan, workers

SHARDS = Partitioner(min_shard_bytes=1024)


def num_workers_of(made: Plan) -> int:
    return next(role.num_tasks for role in made.roles if role.task_type is TaskType.WORKER)


def test_one_ps_alone_brings_a_chief_and_one_worker() -> None:
    made = plan(ps=1)
    assert (made.strategy, made.reason) == (Strategy.PARAMETER_SERVER, "ps is 1")
    assert [str(task) for task in made.tasks] == ["chief/0", "worker/0", "ps/0"]


def test_each_role_has_its_own_resources_and_only_workers_have_gpus() -> None:
    made = plan(
        cluster((16, 4)),
        workers=workers(3),
        ps=2,
        evaluator=True,
        resources={
            "chief": {"cpus": 0.5},
            "worker": {"cpus": 2.0},
            "ps": {"cpus": 3.0},
            "evaluator": {"cpus": 1.5},
        },
    )
    assert made.roles == (
        Role(task_type=TaskType.CHIEF, resources=Resources(num_cpus=0.5)),
        Role(task_type=TaskType.WORKER, num_tasks=3, resources=Resources(num_cpus=2.0, num_gpus=1)),
        Role(task_type=TaskType.PS, num_tasks=2, resources=Resources(num_cpus=3.0)),
        Role(task_type=TaskType.EVALUATOR, resources=Resources(num_cpus=1.5)),
    )
    assert made.notes == ("each worker uses 1 of 4 GPUs; --gpus worker=N gives it more",)


def test_workers_that_train_together_may_have_an_evaluator_beside_them() -> None:
    made = plan(cluster((16, 4)), workers=workers(2), evaluator=True, resources={"evaluator": {"cpus": 1.5}})
    assert made.strategy is Strategy.MULTI_WORKER_MIRRORED
    assert made.roles == (
        Role(task_type=TaskType.WORKER, num_tasks=2, resources=Resources(num_cpus=1.0, num_gpus=1)),
        Role(task_type=TaskType.EVALUATOR, resources=Resources(num_cpus=1.5)),
    )


@pytest.mark.parametrize(
    ("fields", "of_worker"), [({}, 1), ({"ps": 1}, 1), ({"resources": {"evaluator": {"gpus": 3}}}, 0)]
)
def test_evaluator_has_the_gpus_asked_for_and_the_workers_share_the_others(
    fields: dict[str, Any], of_worker: int
) -> None:
    fields = {"workers": workers(2), "evaluator": True, "resources": {"evaluator": {"gpus": 2}}, **fields}
    made = plan(cluster((16, 4)), **fields)
    gpus = {role.task_type: role.resources.num_gpus for role in made.roles}
    asked = fields["resources"]["evaluator"]["gpus"]
    assert (gpus[TaskType.EVALUATOR], gpus[TaskType.WORKER]) == (asked, of_worker)
    if of_worker == 0:
        assert made.notes == (
            "no worker uses a GPU: 2 workers need one each, and Ray at h0:6379 has 1 beside those of "
            "the evaluator; --workers 1 would use them",
        )
        with pytest.raises(SpecError, match="collective is nccl, which needs GPUs, and the tasks have none"):
            plan(cluster((16, 4)), collective="nccl", **fields)


@pytest.mark.parametrize(
    ("num_workers", "remedy"), [(1, "--gpus evaluator=0"), (2, "--workers 1 --gpus evaluator=0")]
)
def test_note_says_when_the_evaluator_takes_the_workers_gpus(num_workers: int, remedy: str) -> None:
    fields = {
        "strategy": Strategy.MULTI_WORKER_MIRRORED,
        "evaluator": True,
        "resources": {"evaluator": {"gpus": 1}},
    }
    assert plan(cluster((8, 1)), workers=workers(num_workers), **fields).notes == (
        f"no worker uses a GPU: Ray at h0:6379 has 1, for the evaluator; {remedy} would train on them",
    )


def test_gpus_of_an_evaluator_that_is_not_there_are_refused_unless_it_was_switched_off() -> None:
    fields = {"workers": workers(2), "resources": {"evaluator": {"gpus": 3}}}
    with pytest.raises(SpecError, match=r"^evaluator\.gpus is 3, but the run has no evaluator; drop --gpus"):
        plan(cluster((8, 4)), **fields)
    origins = {"evaluator.gpus": Origin.JOB, "evaluator": Origin.ASKED}
    made = plan(cluster((8, 2)), **fields, evaluator=False, origins=origins)
    assert made.job.resources_of(TaskType.EVALUATOR).gpus is None
    assert made.notes == ("evaluator.gpus 3, set by the job, has no effect: the run has no evaluator",)


def test_evaluator_with_more_gpus_than_a_host_has_is_named() -> None:
    with pytest.raises(ClusterError, match=r"1 evaluator \(1 CPU, 3 GPUs\).*--gpus evaluator=N"):
        plan(
            cluster((8, 2), (8, 2)), workers=workers(2), evaluator=True, resources={"evaluator": {"gpus": 3}}
        )


@pytest.mark.parametrize(
    "task_type", [each for each in TaskType if each is not TaskType.DATA_WORKER], ids=lambda each: each.value
)
def test_gpus_are_hidden_from_every_task_but_a_worker(task_type: TaskType) -> None:
    made = plan(cluster((16, 4)), workers=workers(2), ps=2, evaluator=True, resources={"worker": {"gpus": 2}})
    task = next(task for task in made.tasks if task.task_type is task_type)
    resources = made.resources_of(task)
    changes = static_environment(
        keras=made.keras, num_cpus=resources.num_cpus, num_gpus=resources.num_gpus, environ={}
    )
    assert ("CUDA_VISIBLE_DEVICES" in changes) is (task_type is not TaskType.WORKER)
    assert changes.get("CUDA_VISIBLE_DEVICES", "") == ""


@pytest.mark.parametrize(
    ("asked", "num_gpus", "notes"),
    [(None, 0, ["no worker uses a GPU: 3 workers need one each, and Ray at h0:6379 has 2"]), (0, 0, [])],
    ids=["too-few", "none-asked"],
)
def test_workers_have_a_gpu_each_or_none(asked: int | None, num_gpus: int, notes: list[str]) -> None:
    made = plan(cluster((16, 2)), workers=workers(3), ps=1, resources={"worker": {"gpus": asked}})
    assert made.roles[1].resources.num_gpus == num_gpus
    assert [note.partition(";")[0] for note in made.notes] == notes


def test_embedded_ray_gets_the_cpus_of_all_roles() -> None:
    made = plan(
        workers=workers(3), ps=2, evaluator=True, resources={"ps": {"cpus": 0.5}, "worker": {"cpus": 1.1}}
    )
    assert made.embedded_cpus == 7  # 1 + 3.3 + 1 + 1, rounded up
    assert (
        plan(
            ps=10, resources={"ps": {"cpus": 1.1}, "chief": {"cpus": 0.0}, "worker": {"cpus": 0.0}}
        ).embedded_cpus
        == 11
    )


@pytest.mark.parametrize(
    ("inventory", "asked", "num_workers", "note"),
    [
        (cluster((8, 0)), workers(2, 4), 4, None),
        (cluster((6, 0)), workers(2, 4), 3, "3 of 2:4 workers: Ray at h0:6379 has no room for more"),
        (cluster((3, 0), (3, 0)), workers(2, 9), 3, "3 of 2:9 workers: Ray at h0:6379 has no room for more"),
        (cluster((16, 3)), workers(2, 9), 3, "3 of 2:9 workers: Ray at h0:6379 has no room for more"),
        (
            cluster((1, 0), can_grow=True),
            workers(2),
            2,
            "Ray at h0:6379 has no room for 1 chief (1 CPU), 2 workers (1 CPU each) and 2 ps (1 CPU each) "
            "yet: waits for its autoscaler",
        ),
    ],
    ids=["all", "beside-chief-and-ps", "two-hosts", "as-many-as-gpus", "growing"],
)
def test_range_of_workers_becomes_the_most_that_fit_beside_the_others(
    inventory: Inventory, asked: WorkerRange, num_workers: int, note: str | None
) -> None:
    made = plan(inventory, workers=asked, ps=2)
    assert num_workers_of(made) == num_workers
    assert made.notes == ((note,) if note else ())


def test_range_on_a_laptop_that_is_full_is_its_minimum() -> None:
    assert num_workers_of(plan(LAPTOP, workers=workers(2, 4), ps=2)) == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"ps": 3},
        {"ps": 1, "resources": {"ps": {"cpus": 5.0}}},
        {"ps": 1, "evaluator": True, "resources": {"evaluator": {"cpus": 2.0}}},
    ],
    ids=["tasks", "one-host", "evaluator"],
)
def test_what_can_never_fit_is_exit_3(fields: dict[str, Any]) -> None:
    with pytest.raises(ClusterError, match="can never fit") as caught:
        plan(cluster((4, 0)), workers=workers(1), **fields)
    assert caught.value.exit_code == 3


def test_partitioner_brings_tf_keras_and_says_so() -> None:
    made = plan(ps=1, partitioner=SHARDS)
    reason = "a partitioner is asked for, and Keras 3 has no sharded variables"
    assert (made.keras, made.keras_reason) == (KerasFlavour.LEGACY, reason)


@pytest.mark.parametrize("source", [Origin.JOB, Origin.CONFIG, Origin.ASKED], ids=lambda source: source.name)
def test_keras_3_with_a_partitioner_is_refused_wherever_it_was_set(source: Origin) -> None:
    with pytest.raises(SpecError) as caught:
        plan(ps=1, partitioner=SHARDS, keras=KerasFlavour.KERAS_3, origins={"keras": source})
    assert str(caught.value) == (
        "keras is 3, but partitioner is min_size:1024 and Keras 3 has no sharded variables; "
        "use --keras legacy, or --partitioner none"
    )


def test_without_a_partitioner_keras_3_stays() -> None:
    assert plan(ps=1).keras is KerasFlavour.KERAS_3


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        (
            {"sync_batchnorm": True},
            "sync_batchnorm has no effect: under parameter_server each worker trains on batches of its own, "
            "asynchronously",
        ),
        (
            {"auto_shard": "file"},
            "auto_shard file has no effect: under parameter_server each worker makes its own dataset, "
            "which TensorFlow does not shard",
        ),
        (
            {"devices": 4, "origins": {"devices": Origin.CONFIG}},
            "devices 4 is not used: parameter_server has one replica per task",
        ),
        ({"devices": 4, "resources": {"worker": {"gpus": 1}}}, "devices 4 is not used: the task has GPUs"),
    ],
    ids=str,
)
def test_note_says_what_has_no_effect(fields: dict[str, Any], note: str) -> None:
    made = plan(cluster((8, 1)), **{"ps": 1, "resources": {"worker": {"gpus": 0}}} | fields)
    assert (made.devices, made.notes) == (None, (note,))


@pytest.mark.parametrize("auto_shard", ["data", "off"])
def test_auto_shard_that_changes_nothing_needs_no_note(auto_shard: str) -> None:
    assert plan(cluster((8, 0)), ps=1, auto_shard=auto_shard).notes == ()


@pytest.mark.parametrize("rank", [Origin.JOB, Origin.ASKED], ids=lambda source: source.name)
def test_devices_of_the_same_rank_as_the_ps_are_refused(rank: Origin) -> None:
    with pytest.raises(SpecError, match=r"^devices is 2, but TensorFlow's parameter_server has one CPU"):
        plan(ps=1, devices=2, origins={"ps": rank, "devices": rank})
