"""`ray.data.Dataset`s: what is refused, and what of them reaches each worker of a real group."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import ray

from raydist.errors import SpecError
from raydist.outcome.status import TaskState
from raydist.runtime.cluster.datasets import (
    DatasetSplits,
    check_datasets,
    check_resumed,
    deserialize,
    serialize,
)
from tests.conftest import WaitUntil
from tests.runtime.conftest import Drive, Start, make_plan

# Ray 2.60 sets deprecated fields of its own context.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning:ray")]

BOTH = ("worker/0", "worker/1")
READING = "tests.support.runners:ReadingRunner"


@pytest.fixture(scope="module")
def ray_data(ray_cluster: object) -> Any:
    """Ray Data, after its first use: it starts an actor for its statistics that stays as long as Ray does."""
    import ray.data

    assert ray.data.range(4, override_num_blocks=2).map_batches(lambda batch: batch).count() == 4
    shares = ray.data.range(4).streaming_split(1, equal=True)
    assert sum(len(batch["id"]) for batch in shares[0].iter_batches()) == 4
    return ray.data


def ids_of(drive: Drive, task: str) -> list[int]:
    (ids,) = [note for note in drive.statuses[task].notes if note.startswith("ids=")]
    found: list[int] = json.loads(ids.removeprefix("ids="))
    return found


def coordinators() -> list[str]:
    from ray._private import state

    actors = state.actors().values()
    return [
        one["ActorID"]
        for one in actors
        if one["ActorClassName"] == "SplitCoordinator" and one["State"] != "DEAD"
    ]


def test_each_worker_reads_its_share_in_every_pass(
    ray_data: Any, start: Start, wait_until: WaitUntil
) -> None:
    drive = start(make_plan(step_s=0), runner=READING, datasets={"train": ray_data.range(20)})
    wait_until(lambda: drive.all_in(TaskState.FINISHED, *BOTH))
    assert [drive.statuses[task].step for task in BOTH] == [20, 20]
    assert sorted(ids_of(drive, "worker/0") + ids_of(drive, "worker/1")) == list(range(20))


def tensors_of(share: Any, columns: list[str]) -> Any:
    """Returns the rows of each column as `to_tf` gives them."""
    batches = [x for x, _ in share.to_tf(columns, "y", batch_size=8)]
    return {name: getattr(batch, "to_list", batch.numpy)() for [x] in [batches] for name, batch in x.items()}


def test_lists_of_any_kind_are_tensors_of_a_share(ray_data: Any) -> None:
    rows = np.arange(24, dtype=np.float32).reshape(8, 3)
    unequal = [[number] * (number % 3) for number in range(8)]
    table = {
        "fixed": pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), 3),
        "list": pa.array(rows.tolist(), pa.list_(pa.float32())),
        "large": pa.array(rows.tolist(), pa.large_list(pa.float32())),
        "unequal": pa.array(unequal),
    }
    dataset = ray_data.from_arrow(pa.table({**table, "y": pa.array([0.0] * 8)}))
    splits = DatasetSplits.start({"train": dataset}, node_ids=[ray.get_runtime_context().get_node_id()])
    read = ray.remote(tensors_of).options(num_cpus=0).remote(splits.share_of(0)["train"], list(table))
    columns = ray.get(read)
    assert columns.pop("unequal") == unequal
    for name, found in columns.items():
        np.testing.assert_array_equal(found, rows, err_msg=name)
    splits.stop()


def test_split_of_another_attempt_is_made_anew(ray_data: Any, start: Start, wait_until: WaitUntil) -> None:
    dataset = ray_data.range(20).map_batches(lambda batch: {"id": batch["id"] + 1})
    first = start(make_plan(steps=100_000), runner=READING, datasets={"train": dataset})
    wait_until(lambda: first.all_in(TaskState.RUNNING, *BOTH) and first.statuses["worker/1"].step > 0)
    os.kill(first.statuses["worker/1"].pid, signal.SIGKILL)
    wait_until(lambda: first.poll() or first.state("worker/1") is TaskState.FAILED)
    first.group.stop()
    wait_until(lambda: coordinators() == [])

    second = start(make_plan(1, step_s=0), runner=READING, datasets={"train": dataset})
    wait_until(lambda: second.all_in(TaskState.FINISHED, "worker/0"))
    assert sorted(ids_of(second, "worker/0")) == list(range(1, 21))


def test_stop_leaves_no_coordinator_and_no_reader(ray_data: Any, start: Start, wait_until: WaitUntil) -> None:
    def slow(batch: dict[str, Any]) -> dict[str, Any]:
        import time

        time.sleep(600)
        return batch

    dataset = ray_data.range(8).map_batches(slow)
    drive = start(make_plan(), runner=READING, datasets={"train": dataset})
    wait_until(lambda: drive.all_in(TaskState.RUNNING, *BOTH))
    assert len(coordinators()) == 1
    drive.group.stop()
    wait_until(lambda: coordinators() == [])  # `no_leaks` looks for the processes


def test_dataset_of_files_travels_without_its_data(ray_data: Any, tmp_path: Any) -> None:
    from ray.data.expressions import col

    ray_data.range(6).write_parquet(str(tmp_path))
    sent = serialize({"train": ray_data.read_parquet(str(tmp_path)).filter(expr=col("id") > 2)})
    assert sorted(row["id"] for row in deserialize(sent)["train"].take_all()) == [3, 4, 5]


def test_dataset_in_memory_cannot_outlive_this_process(ray_data: Any) -> None:
    with pytest.raises(SpecError, match=r"datasets\['train'\] holds data that end with this process"):
        serialize({"train": ray_data.from_items([1, 2])})


@pytest.mark.parametrize(
    ("datasets", "message"),
    [
        ([1], r"datasets is list; give a dict"),
        ({"train": [1]}, r"datasets\['train'\] is list; give a ray.data.Dataset"),
        ({"train": subprocess}, r"datasets\['train'\] is module"),
    ],
    ids=["no-mapping", "list", "module"],
)
def test_what_is_no_dataset_is_refused(datasets: object, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        check_datasets(datasets)


def test_name_that_is_no_string_is_refused(ray_data: Any) -> None:
    with pytest.raises(SpecError, match="the name 1; give a string"):
        check_datasets({1: ray_data.range(1)})


def test_wrong_type_is_refused_without_ray() -> None:
    code = (
        "import sys, raydist\n"
        "try:\n    raydist.run(lambda ctx: None, datasets={'train': 1})\n"
        "except raydist.SpecError as error:\n    print(error.exit_code, 'ray' in sys.modules)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert ended.stdout.split() == ["2", "False"]


def test_resume_without_the_datasets_names_the_remedy() -> None:
    with pytest.raises(SpecError) as caught:
        check_resumed("far", {}, before=["train"])
    assert 'raydist.run(job, name="far", resume=True, datasets={"train": ...})' in str(caught.value)
    check_resumed("far", {"train": object()}, before=["train"])
