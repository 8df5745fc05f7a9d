from __future__ import annotations

from typing import Any

import pytest

from raydist.errors import ClusterError, SpecError
from raydist.planning.inventory import Host, Inventory
from raydist.spec.job import NO_FACTS, EntryPoint, KerasFlavour, SourceFacts, Strategy, WorkerRange
from raydist.spec.partitioner import Partitioner
from raydist.spec.settings.resolution import Origin
from raydist.spec.tasks import Resources, Role, TaskType
from tests.planning.plans import LAPTOP, OWN_STRATEGY, cluster, plan, workers


def test_two_workers_on_a_laptop() -> None:
    made = plan(workers=workers(2))
    assert made.strategy is Strategy.MULTI_WORKER_MIRRORED
    assert made.roles == (Role(task_type=TaskType.WORKER, num_tasks=2, resources=Resources(num_cpus=1.0)),)
    assert [str(task) for task in made.tasks] == ["worker/0", "worker/1"]
    assert (made.devices, made.embedded_cpus, made.notes) == (None, 2, ())


def test_embedded_ray_gets_the_cpus_of_the_plan_and_a_note_when_cores_are_shared() -> None:
    made = plan(workers=workers(3), resources={"worker": {"cpus": 1.5}})
    assert made.embedded_cpus == 5
    assert made.notes == ("2 cores are shared by 5 logical CPUs, so tasks run slower than on their own",)


def test_embedded_ray_shares_a_core_by_eight_at_most() -> None:
    assert plan(workers=workers(16)).embedded_cpus == 16
    with pytest.raises(ClusterError) as caught:
        plan(workers=workers(17))
    assert str(caught.value) == (
        "17 workers (1 CPU each) can never fit: this machine has 2 CPUs, no GPU, "
        "at most 8 logical CPUs per core; ask for fewer tasks, or for less with --cpus worker=N"
    )


def test_running_ray_gets_no_cpus() -> None:
    assert plan(cluster((4, 0))).embedded_cpus is None


@pytest.mark.parametrize(
    ("inventory", "fields"),
    [
        (cluster((2, 0), (2, 0)), {"workers": workers(5)}),
        (cluster((2, 0), (2, 0)), {"resources": {"worker": {"cpus": 3.0}}}),
        (cluster((2, 0), (2, 0)), {"workers": workers(3), "resources": {"worker": {"cpus": 1.5}}}),
        (cluster((2, 1), (2, 1)), {"resources": {"worker": {"gpus": 2}}}),
        (cluster((8, 2)), {"workers": workers(2), "resources": {"worker": {"gpus": 2}}}),
        (LAPTOP, {"resources": {"worker": {"gpus": 1}}}),
        (LAPTOP, {"resources": {"worker": {"cpus": 17.0}}}),
        (cluster(), {}),
    ],
    ids=[
        "cpus",
        "cpus-of-one-host",
        "hosts-in-parts",
        "gpus-of-one-host",
        "gpus",
        "no-gpu",
        "cores",
        "no-host",
    ],
)
def test_what_can_never_fit_is_refused_unless_hosts_may_be_added(
    inventory: Inventory, fields: dict[str, Any]
) -> None:
    with pytest.raises(ClusterError, match="can never fit") as caught:
        plan(inventory, **fields)
    assert caught.value.exit_code == 3
    growing = Inventory(hosts=inventory.hosts, can_grow=True, source="Ray")
    assert plan(growing, **fields).notes[-1].endswith("yet: waits for its autoscaler")


def test_error_says_what_each_host_has() -> None:
    with pytest.raises(ClusterError) as caught:
        plan(cluster((2, 1), (4, 0)), resources={"worker": {"cpus": 8.0, "gpus": 1}})
    assert str(caught.value) == (
        "1 worker (8 CPUs, 1 GPU) can never fit: Ray at h0:6379 has h0 (2 CPUs, 1 GPU), "
        "h1 (4 CPUs, no GPU); ask for fewer tasks, or for less with --cpus worker=N or --gpus worker=N"
    )


def test_fractions_of_a_cpu_add_up() -> None:
    assert (
        plan(cluster((0.3, 0)), workers=workers(3), resources={"worker": {"cpus": 0.1}}).roles[0].num_tasks
        == 3
    )


@pytest.mark.parametrize(
    ("inventory", "fields", "num_gpus"),
    [
        (cluster((8, 2), (8, 4)), {}, 4),
        (cluster((8, 2), (8, 4)), {"resources": {"worker": {"gpus": 3}}}, 3),
        (cluster((8, 4)), {"strategy": Strategy.ONE_DEVICE}, 1),
        (cluster((8, 4)), {"strategy": Strategy.ONE_DEVICE, "resources": {"worker": {"gpus": 0}}}, 0),
        (cluster((8, 0)), {"strategy": Strategy.ONE_DEVICE}, 0),
        (cluster((8, 1), (8, 1)), {"workers": workers(2)}, 1),
        (cluster((8, 4)), {"workers": workers(2), "resources": {"worker": {"gpus": 2}}}, 2),
        (cluster((8, 1)), {"workers": workers(2)}, 0),
    ],
    ids=["most", "asked", "one", "one-hidden", "one-none", "one-each", "asked-each", "too-few"],
)
def test_gpus_of_a_worker(inventory: Inventory, fields: dict[str, Any], num_gpus: int) -> None:
    assert plan(inventory, **fields).roles[0].resources.num_gpus == num_gpus


def test_note_says_when_workers_use_no_gpu_or_only_one_of_many() -> None:
    assert plan(cluster((8, 1)), workers=workers(2)).notes == (
        "no worker uses a GPU: 2 workers need one each, and Ray at h0:6379 has 1; --workers 1 would use them",
    )
    assert plan(cluster((8, 8)), workers=workers(2)).notes == (
        "each worker uses 1 of 8 GPUs; --gpus worker=N gives it more",
    )


@pytest.mark.parametrize(
    ("inventory", "asked", "num_tasks"),
    [
        (LAPTOP, workers(1, 4), 2),
        (LAPTOP, workers(3, 4), 3),
        (cluster((2, 0), (3, 0)), workers(2, 8), 5),
        (cluster((16, 0)), workers(2, 8), 8),
        (cluster((16, 3)), workers(2, 8), 3),
        (cluster((1, 0), can_grow=True), workers(2, 8), 2),
    ],
    ids=["laptop", "at-least-min", "two-hosts", "max", "as-many-as-gpus", "growing"],
)
def test_range_of_workers_becomes_the_most_that_fit(
    inventory: Inventory, asked: WorkerRange, num_tasks: int
) -> None:
    assert plan(inventory, workers=asked).roles[0].num_tasks == num_tasks


@pytest.mark.parametrize(
    ("inventory", "fields", "devices", "note"),
    [
        (
            LAPTOP,
            {"strategy": Strategy.MIRRORED},
            2,
            "mirrored without GPUs uses 2 logical CPU devices; --devices N sets the number",
        ),
        (LAPTOP, {"strategy": Strategy.CENTRAL_STORAGE, "devices": 3}, 3, None),
        (LAPTOP, {"strategy": Strategy.MIRRORED, "devices": 1}, 1, None),
        (LAPTOP, {"devices": 4}, 4, None),
        (LAPTOP, {}, None, None),
        (cluster((8, 2)), {"strategy": Strategy.MIRRORED}, None, None),
        (cluster((8, 2)), {"devices": 4}, None, "devices 4 is not used: the task has GPUs"),
        (
            LAPTOP,
            {"strategy": Strategy.ONE_DEVICE, "devices": 4},
            None,
            "devices 4 is not used: one_device has one replica per task",
        ),
        (
            LAPTOP,
            {"workers": workers(2), "devices": 4, "origins": {"devices": Origin.JOB}},
            None,
            "devices 4 is not used: multi_worker_mirrored has one replica per task",
        ),
    ],
    ids=str,
)
def test_logical_devices(
    inventory: Inventory, fields: dict[str, Any], devices: int | None, note: str | None
) -> None:
    made = plan(inventory, **fields)
    assert (made.devices, made.notes) == (devices, (note,) if note else ())


def test_devices_asked_for_with_workers_on_cpus_is_refused() -> None:
    with pytest.raises(SpecError, match=r"^devices is 2, but TensorFlow's multi_worker_mirrored has one CPU"):
        plan(workers=workers(2), devices=2)


OF_KERAS_2 = SourceFacts(legacy_keras_reason="main.py uses lr")


@pytest.mark.parametrize(
    ("fields", "keras", "reason"),
    [
        ({}, KerasFlavour.KERAS_3, "nothing in the job's source needs Keras 2"),
        ({"source": OF_KERAS_2}, KerasFlavour.LEGACY, "main.py uses lr"),
        ({"source": OF_KERAS_2, "keras": KerasFlavour.KERAS_3}, KerasFlavour.KERAS_3, "keras 3 was set"),
        ({"keras": KerasFlavour.LEGACY}, KerasFlavour.LEGACY, "keras legacy was set"),
        (
            {"partitioner": Partitioner(max_shards=2)},
            KerasFlavour.LEGACY,
            "a partitioner is asked for, and Keras 3 has no sharded variables",
        ),
    ],
    ids=str,
)
def test_keras_flavour(fields: dict[str, Any], keras: KerasFlavour, reason: str) -> None:
    made = plan(**fields)
    assert (made.keras, made.keras_reason) == (keras, reason)


def test_params_of_a_script_that_does_not_import_raydist_have_no_effect() -> None:
    script = EntryPoint(function="", file="a.py")
    for source, is_told in ((SourceFacts(imports_raydist=False), True), (SourceFacts(), False)):
        made = plan(entry_point=script, params={"epochs": 3}, source=source)
        assert any("epochs given with -p has no effect: a.py" in one for one in made.notes) == is_told
    assert plan(entry_point=script, source=SourceFacts(imports_raydist=False)).notes == ()


@pytest.mark.parametrize(
    ("fields", "is_default", "note"),
    [
        ({"workers": workers(2)}, True, "a.py:train builds no strategy: its models train on all 2 workers"),
        (
            {"strategy": Strategy.MIRRORED, "devices": 2},
            True,
            "a.py:train builds no strategy: its models train on all 2 devices",
        ),
        ({}, True, None),
        ({"workers": workers(2), "default_strategy": False}, False, None),
        ({"workers": workers(2), "source": OWN_STRATEGY}, False, None),
        (
            {"workers": workers(2), "ps": 1},
            True,
            "a.py:train builds no strategy: its models train on all 2 workers",
        ),
        (
            {"workers": workers(2), "ps": 1, "source": SourceFacts(own_loop="a.py, line 9")},
            False,
            "a.py, line 9, updates weights in a loop of its own, so the chief runs all of it; give the step "
            "to ctx.train_steps to divide its batches among 2 workers (raydist guide writing-a-job)",
        ),
        (
            {"workers": workers(2), "source": SourceFacts(own_loop="a.py, line 9")},
            False,
            "a.py, line 9, updates weights in a loop of its own, so each of 2 workers runs all of it; give "
            "the step to ctx.train_steps to divide its batches among 2 workers (raydist guide writing-a-job)",
        ),
    ],
    ids=str,
)
def test_job_that_builds_no_strategy_gets_the_runs(
    fields: dict[str, Any], is_default: bool, note: str | None
) -> None:
    made = plan(**{"source": NO_FACTS, **fields})
    assert made.has_default_strategy == is_default
    assert made.has_own_loop == ("source" in fields and fields["source"].own_loop is not None)
    assert [one for one in made.notes if "strategy" in one or "loop" in one] == ([note] if note else [])


def test_partitioner_is_of_no_use_to_other_strategies_whichever_keras_is_asked_for() -> None:
    made = plan(partitioner=Partitioner(fixed_shards=2), keras=KerasFlavour.KERAS_3)
    assert made.keras is KerasFlavour.KERAS_3
    assert made.notes == ("partitioner fixed_shards:2 has no effect: only parameter_server shards variables",)


def test_standby_needs_another_host_and_a_fixed_number_of_workers() -> None:
    with pytest.raises(SpecError, match=r"^standby is 1, but workers is 2:4: an elastic run continues"):
        plan(cluster((2, 0), (2, 0)), standby=1, workers=workers(2, 4))
    made = plan(standby=1)
    note = "standby has no effect: an embedded Ray has one host, and ends with it"
    assert (made.job.standby, made.notes) == (0, (note,))
    made = plan(cluster((4, 0)), standby=1)
    assert (made.job.standby, made.notes) == (1, ("standby waits for another host: Ray has only one",))


def test_tpu_of_ray_takes_all_chips_of_a_host_and_a_named_one_takes_none() -> None:
    ray_tpu = Inventory(hosts=(Host(name="h0"), Host(name="h1", num_tpus=4)))
    named = Inventory(hosts=(Host(name="h0", num_gpus=1),), tpu_name="t1")
    resources = [plan(inventory).roles[0].resources for inventory in (ray_tpu, named)]
    assert resources == [Resources(num_tpus=4), Resources()]


def test_job_of_the_plan_is_without_what_the_strategy_overrides() -> None:
    made = plan(strategy=Strategy.ONE_DEVICE, workers=workers(4), origins={"workers": Origin.CONFIG})
    assert (made.job.workers, made.roles[0].num_tasks) == (workers(1), 1)
    assert made.notes == ("workers 4, set by the config, is not used: one_device runs on one host",)
