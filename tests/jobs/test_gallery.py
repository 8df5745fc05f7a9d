"""The jobs of the gallery, small, under each strategy that suits them: what each one says that it shows."""

from __future__ import annotations

import functools
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raydist.entry.definition import read_job
from tests.support.gallery_functions import JOBS
from tests.support.processes import Cluster, TaskProcess, run_function, run_in_turn, started

FUNCTIONS = "tests.support.gallery_functions"
CLUSTERS = {
    "one device": Cluster(),
    "2 devices": Cluster(strategy="mirrored", devices=2),
    "2 workers": Cluster(strategy="multi_worker_mirrored", workers=2),
    "parameter servers": Cluster(strategy="parameter_server", workers=2, ps=1),
    "sharded": Cluster(strategy="parameter_server", workers=2, ps=2, keras="legacy"),
}
REPLICAS = {"one device": 1, "2 devices": 2, "2 workers": 2}
SYNCHRONOUS = tuple(REPLICAS)
# Where each job suits. checkpoint_and_export kills its tasks and has processes of its own, see below.
SUITS = {
    **dict.fromkeys(
        ("mnist", "custom_loop", "replicas", "all_reduce", "input_pipeline", "batch_size"), SYNCHRONOUS
    ),
    **dict.fromkeys(("baseline_vs_distributed", "monitor", "tune_input", "tpu"), SYNCHRONOUS),
    "sync_vs_async": (*SYNCHRONOUS, "parameter servers"),
    "scope": (*SYNCHRONOUS, "parameter servers"),
    "device_choice": ("one device", "2 devices"),
    "parameter_server_loop": ("sharded",),
}
# Each job where it tells most, and what that is compared with; elsewhere it is exhaustive.
TELLING = {
    "one device": ("mnist", "custom_loop", "sync_vs_async", "tune_input", "tpu"),
    "2 devices": ("mnist", "batch_size", "baseline_vs_distributed", "device_choice", "tpu"),
    "2 workers": ("custom_loop", "replicas", "all_reduce", "scope", "input_pipeline", "monitor"),
    "parameter servers": ("scope", "sync_vs_async"),
    "sharded": ("parameter_server_loop",),
}
PARAMS: dict[str, dict[str, Any]] = {
    "mnist": {"epochs": 1},
    "custom_loop": {"epochs": 2},
    "replicas": {"batch_size": 7},
    "all_reduce": {"steps": 3},
    "input_pipeline": {"examples": 48, "batch_size": 12},
    "batch_size": {"epochs": 1, "base_batch_size": 32, "warmup_steps": 4},
    "baseline_vs_distributed": {"epochs": 1},
    "monitor": {"steps": 10, "unscaled_replica": 1},
    "tune_input": {"epochs": 2, "examples": 100, "batch_size": 16, "step_ms": 0.0},
    "tpu": {"steps": 30, "steps_per_call": 10},
    "sync_vs_async": {"steps": 60},
    "parameter_server_loop": {"epochs": 1, "steps_per_epoch": 80, "num_reviews": 2000},
}
OPTIONS: dict[str, dict[str, Any]] = {"sharded": {"job_options": {"partitioner": "min_size:8192"}}}
NUM_TEST = 299  # of the 1797 digits

pytestmark = pytest.mark.timeout(600)
ELSEWHERE = pytest.mark.exhaustive(covered_by="the clusters where the job tells most")


def on(job: str) -> pytest.MarkDecorator:
    """Runs a test in each cluster that suits the job."""
    marks = {cluster: pytest.mark.slow if job in TELLING[cluster] else ELSEWHERE for cluster in SUITS[job]}
    return pytest.mark.parametrize("cluster", [pytest.param(one, marks=mark) for one, mark in marks.items()])


@functools.cache
def run(cluster: str, *, is_telling: bool) -> dict[str, list[TaskProcess]]:
    """Runs the telling jobs of a cluster, or the others, one after another in the same processes."""
    jobs = [job for job in SUITS if cluster in SUITS[job] and (job in TELLING[cluster]) == is_telling]
    calls = {job: (f"{FUNCTIONS}:run_job", {"job": job, "params": params_of(job, cluster)}) for job in jobs}
    with no_data() as environ:
        return run_in_turn(
            calls,
            CLUSTERS[cluster],
            timeout_s=400,
            environ=environ,
            profiles="monitor" in jobs,
            **OPTIONS.get(cluster, {}),
        )


def params_of(job: str, cluster: str) -> dict[str, Any]:
    params = PARAMS.get(job, {})
    # The same global batch in each cluster.
    more = {"mnist": {"batch_size_per_replica": 64 // REPLICAS.get(cluster, 1)}}
    return {**params, **more.get(job, {})}


def done(job: str, cluster: str) -> list[dict[str, Any]]:
    """Returns what a job left in each task."""
    tasks = run(cluster, is_telling=job in TELLING[cluster])[job]
    assert [task.values["error"] for task in tasks] == [None] * len(tasks)
    return [task.values for task in tasks]


def values_of(job: str, cluster: str) -> list[dict[str, float]]:
    """Returns the last value of each metric, for each task."""
    return [each["values"] for each in done(job, cluster)]


@contextmanager
def no_data() -> Iterator[dict[str, str]]:
    """Yields an environment whose Keras's cache is empty."""
    with tempfile.TemporaryDirectory(prefix="raydist-test-") as folder:
        yield {"KERAS_HOME": folder}


def close(value: float, *, within: float = 1e-4) -> Any:
    return pytest.approx(value, abs=within)


def close_all(values: Mapping[str, float], *, within: float = 1e-4) -> Any:
    return pytest.approx(dict(values), abs=within)


def training_digits() -> tuple[np.ndarray, np.ndarray]:
    """Returns what the jobs train on: pixels `[1498, 64]` in 0..1, and labels."""
    from sklearn.datasets import load_digits  # takes a second, wherever tests are collected

    digits = load_digits()
    return digits.data[NUM_TEST:] / 16, digits.target[NUM_TEST:]


def test_every_job_of_the_gallery_is_tested() -> None:
    helpers = {"cifar_images", "mnist_images"}
    elsewhere = {"cifar", "cifar_data", "digits", "imdb", "recommender", "checkpoint_and_export", "serving"}
    assert {path.stem for path in JOBS.glob("*.py")} == {*SUITS, *elsewhere, *helpers}
    assert {job for jobs in TELLING.values() for job in jobs} == set(SUITS)


@pytest.mark.parametrize("job", [*SUITS, "checkpoint_and_export"])
def test_doc_comment_has_its_command(job: str) -> None:
    text = (JOBS / f"{job}.py").read_text()
    assert f"\nraydist submit jobs/{job}.py" in text.split('"""')[1]
    assert len(text.splitlines()) <= 120


@on("mnist")
def test_mnist_trains_what_one_device_trains(cluster: str) -> None:
    (expected,) = values_of("mnist", "one device")
    assert expected["test_loss"] < 2.25  # an untrained network of ten classes has 2.3
    for values in values_of("mnist", cluster):
        assert values["global_batch_size"] == 64
        assert values == close_all(expected)


def test_mnist_has_64_examples_per_replica() -> None:
    defaults = read_job("mnist.py", cwd=JOBS).defaults
    assert defaults["params"]["batch_size_per_replica"] == 64


@on("custom_loop")
def test_custom_loop_has_the_losses_of_one_device(cluster: str) -> None:
    (expected,) = done("custom_loop", "one device")
    first, second = expected["reports"]
    assert set(first) == {"loss", "accuracy", "test_loss", "test_accuracy"}
    assert second["loss"] < first["loss"] < 2.4
    assert second["test_accuracy"] > first["test_accuracy"]
    for task in done("custom_loop", cluster):
        assert [*map(close_all, task["reports"])] == expected["reports"]


@on("replicas")
def test_replicas_share_a_batch_and_agree_on_a_variable(cluster: str) -> None:
    images, labels = training_digits()
    tasks = values_of("replicas", cluster)
    for values in tasks:
        assert values["num_replicas"] == REPLICAS[cluster]
        assert values["images_of_largest_replica"] <= -(-7 // REPLICAS[cluster])
        assert (values["num_seen"], values["num_seen_spread"]) == (7, 0)
        assert values["brightness"] == close(images[:7].sum())
        assert values["digits_sum"] == labels[:7].sum()
    assert sum(values["images_here"] for values in tasks) == 7


@on("all_reduce")
def test_all_reduce_sums_different_gradients_to_that_of_one_device(cluster: str) -> None:
    for task in done("all_reduce", cluster):
        assert len(task["reports"]) == 3
        for values in task["reports"]:
            assert values["gradient_size"] > 0.05
            # The replicas' own gradients differ by much, before; nothing differs after.
            assert (values["own_gradients_differ_by"] > 0.01) == (REPLICAS[cluster] > 1)
            assert values["reduced_gradients_differ_by"] == values["weights_differ_by"] == 0
            assert values["sum_minus_one_device"] < 1e-6
            assert values["reduced_minus_one_device"] < 1e-6


@on("scope")
def test_scope_makes_variables_of_the_strategy_and_outside_are_plain_ones(cluster: str) -> None:
    # The first replica adds 1, the second 2. A worker's own variable has what its own replicas have added.
    copies, inside, outside = {
        "one device": (1, 1, [1]),
        "2 devices": (2, 3, [3]),
        "2 workers": (1, 3, [1, 2]),
        "parameter servers": (1, 1, [0]),
    }[cluster]
    tasks = values_of("scope", cluster)
    assert [values["outside_value"] for values in tasks] == outside
    for values in tasks:
        assert (values["inside_copies"], values["outside_copies"]) == (copies, 1)
        assert values["inside_value"] == inside
        assert values["inside_model_is_distributed"] == values["mixing_is_refused"] == 1
        assert values["outside_model_is_distributed"] == 0
    output = done("scope", cluster)[0]["output"]
    host = {"2 workers": "worker", "parameter servers": "ps"}.get(cluster, "localhost")
    devices = [f"/job:{host}/replica:0/task:0/device:CPU:{index}" for index in range(copies)]
    assert re.search(rf": inside, \w*Variable on {', '.join(devices)}$", output, re.MULTILINE)
    assert re.search(r": outside, ResourceVariable on /job:\S+$", output, re.MULTILINE)


def shards(cluster: str) -> dict[str, list[set[int]]]:
    """Returns which of 48 examples, 12 in each of 4 files and in each batch, each task is to read."""
    everything = set(range(48))
    if cluster != "2 workers":
        return {name: [everything] for name in ("off", "data", "file", "by_hand")}
    first_halves = {number for number in everything if number % 12 < 6}
    first_files = {number for number in everything if number // 12 in (0, 2)}
    even = set(range(0, 48, 2))
    return {
        "off": [everything, everything],
        "data": [first_halves, everything - first_halves],
        "file": [first_files, everything - first_files],
        "by_hand": [even, everything - even],
    }


@on("input_pipeline")
def test_input_pipeline_shows_what_each_worker_saw(cluster: str) -> None:
    for index, values in enumerate(values_of("input_pipeline", cluster)):
        for name, expected in shards(cluster).items():
            found = {key.removeprefix(f"{name}/"): one for key, one in values.items() if key.startswith(name)}
            times = 2 if (name, cluster) == ("off", "2 workers") else 1  # trained on twice, without a word
            assert found == {
                "examples_here": len(expected[index]),
                "sum_of_numbers_here": sum(expected[index]),
                "seen_at_least": times,
                "seen_at_most": times,
            }


@on("batch_size")
def test_batch_size_scales_the_rate_over_the_warm_up(cluster: str) -> None:
    num_replicas = REPLICAS[cluster]
    for task in done("batch_size", cluster):
        values = task["values"]
        assert values["batch_size/global"] == 64 * num_replicas
        updates = {name: values[f"{name}/updates"] for name in ("base", "same_rate", "scaled_rate")}
        fewer = -(-1498 // (64 * num_replicas))
        assert updates == {"base": 47, "same_rate": fewer, "scaled_rate": fewer}
        rates = {
            name: [one[f"{name}/learning_rate"] for one in task["reports"] if f"{name}/learning_rate" in one]
            for name in updates
        }
        scaled = 0.05 * 2 * num_replicas
        warm_up = [0.05 + (scaled - 0.05) * step / 4 for step in range(4)]
        assert rates["scaled_rate"] == pytest.approx([*warm_up, *[scaled] * (fewer - 4)], rel=1e-5)
        assert rates["same_rate"] == pytest.approx([0.05] * fewer, rel=1e-5)
        assert values["scaled_rate/test_loss"] < values["same_rate/test_loss"] - 0.05


@on("sync_vs_async")
def test_only_asynchronous_updates_are_stale(cluster: str) -> None:
    (one_device,) = values_of("sync_vs_async", "one device")
    for values in values_of("sync_vs_async", cluster):
        assert values["updates"] == 60
        assert values["examples_per_second"] == close(64 * values["steps_per_second"], within=0.1)
        if cluster == "parameter servers":
            assert 0 < values["mean_staleness"] < 10
            assert values["test_loss"] == close(one_device["test_loss"], within=0.5)
        else:
            assert values["mean_staleness"] == 0
            assert values["test_loss"] == close(one_device["test_loss"])


@on("baseline_vs_distributed")
def test_baseline_has_the_weights_of_the_distributed_model(cluster: str) -> None:
    chief, *others = values_of("baseline_vs_distributed", cluster)
    assert others == [{}] * len(others)
    check_baseline(chief)
    assert chief["baseline/loss"] < 2.29


def check_baseline(values: Mapping[str, float]) -> None:
    assert values["weights_differ_by"] < 1e-5
    assert values["baseline/loss"] == close(values["distributed/loss"])
    assert values["baseline/accuracy"] == close(values["distributed/accuracy"])
    assert values["speed_up"] == close(values["baseline/seconds"] / values["distributed/seconds"])


@on("monitor")
def test_monitor_shows_the_replica_whose_gradient_is_too_large(cluster: str) -> None:
    num_replicas = REPLICAS[cluster]
    images, labels = training_digits()
    # Softmax of zero weights: a tenth for each class.
    errors = 0.1 - np.eye(10)[labels[:128]]
    parts = np.split(np.arange(128), num_replicas)
    norms = [np.linalg.norm(images[part].T @ errors[part] / 128) for part in parts]
    if num_replicas > 1:
        norms[1] *= 16
    tasks = done("monitor", cluster)
    for task in tasks:
        first, *_ = task["reports"]
        found = [first[f"gradient_norm/replica_{index}"] for index in range(num_replicas)]
        assert found == pytest.approx(norms, rel=1e-4)
        assert first["imbalance"] == pytest.approx(max(norms) / np.mean(norms), rel=1e-4)
        assert task["values"]["trace_files"] == 1
        assert task["values"]["trace_bytes"] > 1000
    for index, _ in enumerate(tasks):
        traces = [path for path in tasks[0]["stored"] if path.startswith(f"tensorboard/worker-{index}/")]
        assert [path for path in traces if path.endswith(".xplane.pb")]
    printed = "".join(task["output"] for task in tasks)
    host, places = ("worker", [(0, 0), (1, 0)]) if cluster == "2 workers" else ("localhost", [(0, 0), (0, 1)])
    for task, device in places[:num_replicas]:
        assert f" operations on /job:{host}/replica:0/task:{task}/device:CPU:{device}\n" in printed
    assert [printed.count(f"step 10 replica {index} loss of its part") for index in range(num_replicas)] == (
        [1] * num_replicas
    )
    assert "step 9 " not in printed


@on("tune_input")
def test_each_variant_of_an_input_pipeline_has_the_same_examples(cluster: str) -> None:
    tasks = values_of("tune_input", cluster)
    names = ("plain", "cache", "prefetch", "parallel_map", "interleave", "everything")
    for name in names:
        assert all(values[f"{name}/examples_per_second"] > 0 for values in tasks)
        assert sum(values[f"{name}/examples"] for values in tasks) == 2 * 100
        assert sum(values[f"{name}/sum_of_numbers"] for values in tasks) == 2 * sum(range(100))


@on("tpu")
def test_tpu_falls_back_and_trains_what_one_device_trains(cluster: str) -> None:
    (one_device,) = values_of("tpu", "one device")
    for task in done("tpu", cluster):
        values = task["values"]
        assert (values["is_tpu"], values["num_replicas"]) == (0, REPLICAS[cluster])
        assert (values["updates"], values["calls"]) == (30, 3)
        assert values["loss"] == close(one_device["loss"])
        assert values["test_accuracy"] > 0.5
        assert "no TPU (" in task["output"]


@on("device_choice")
def test_device_choice_agrees_with_raydist(cluster: str) -> None:
    (task,) = done("device_choice", cluster)
    kind = {1: "OneDeviceStrategy", 2: "MirroredStrategy"}[REPLICAS[cluster]]
    assert [note for note in task["notes"] if note.startswith(f"device_choice: {kind} on ")]
    values = task["values"]
    assert values["num_replicas"] == values["num_devices"] == REPLICAS[cluster]
    assert (values["agrees_with_raydist"], values["gpus_with_memory_growth"]) == (1, 0)
    assert (values["soft_placement_runs"], values["strict_placement_runs"]) == (1, 0)
    assert 0 < values["loss"] < 3


def test_device_choice_for_described_hosts() -> None:
    def host(tpus: int = 0, gpus: int = 0, cpus: int = 1) -> dict[str, list[str]]:
        counts = {"tpus": tpus, "gpus": gpus, "cpus": cpus}
        return {kind: [f"{kind}:{index}" for index in range(count)] for kind, count in counts.items()}

    hosts = {
        "laptop": host(),
        "split cpu": host(cpus=3),
        "one gpu": host(gpus=1, cpus=4),
        "two gpus": host(gpus=2),
        "tpu": host(tpus=8, gpus=1),
    }
    (task,) = run_function(f"{FUNCTIONS}:choices", Cluster(), hosts=hosts)
    assert task.values == {
        "laptop": ["OneDeviceStrategy", hosts["laptop"]["cpus"]],
        "split cpu": ["MirroredStrategy", hosts["split cpu"]["cpus"]],
        "one gpu": ["OneDeviceStrategy", hosts["one gpu"]["gpus"]],
        "two gpus": ["MirroredStrategy", hosts["two gpus"]["gpus"]],
        "tpu": ["TPUStrategyV2", hosts["tpu"]["tpus"]],
    }


@on("parameter_server_loop")
def test_parameter_server_loop_learns_with_a_table_on_two_ps(cluster: str) -> None:
    (task,) = done("parameter_server_loop", cluster)
    values = task["values"]
    assert values["shards_of_the_table"] == 2
    assert values["updates"] == 80
    assert values["loss"] < 0.69  # a coin has 0.693 and 0.5
    assert values["test_accuracy"] > 0.6


KILLED = {"epochs": 2, "kill_at_step": 20}


@pytest.mark.exhaustive(
    "2 devices", "2 workers", covered_by="[one device]; tests/training/test_several_fits.py"
)
@pytest.mark.slow
@pytest.mark.parametrize("cluster", SYNCHRONOUS)
def test_killed_run_exports_what_the_calm_run_exports(cluster: str, tmp_path: Path) -> None:
    calm_params = {**KILLED, "kill_at_step": 0}
    with no_data() as environ:
        call: dict[str, Any] = {
            "target": f"{FUNCTIONS}:run_job",
            "cluster": CLUSTERS[cluster],
            "environ": environ,
            "job": "checkpoint_and_export",
            "job_options": {"checkpoint_every": "4", "export": True},
        }
        calm = run_function(**call, params=calm_params)
        with started(**call, storage=tmp_path, params=KILLED) as tasks:
            assert tasks[-1].process.wait(timeout=120) == -9, tasks[-1].text()
        resumed = run_function(**call, storage=tmp_path, attempt=1, params=KILLED)
    for one, other in zip(calm, resumed, strict=True):
        calm_values, values = one.values["values"], other.values["values"]
        assert calm_values.pop("first_step") == 0
        # The save at step 16 has waited until that at 12 was committed.
        assert values.pop("first_step") in (12, 16)
        assert values == close_all(calm_values, within=1e-6)
        assert values["test_loss"] < 2.25
    chief = resumed[0].values
    assert chief["values"]["keras_file_differs_by"] < 1e-5
    assert chief["values"]["saved_model_differs_by"] < 1e-5
    assert {"export/model.keras", "export/saved_model/saved_model.pb"} <= set(chief["stored"])


def write_mnist(folder: Path) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = {
        "x_train": rng.integers(0, 256, (20, 28, 28), dtype=np.uint8),
        "y_train": rng.integers(0, 10, 20, dtype=np.uint8),
        "x_test": rng.integers(0, 256, (5, 28, 28), dtype=np.uint8),
        "y_test": rng.integers(0, 10, 5, dtype=np.uint8),
    }
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "mnist.npz", **arrays)
    return arrays


def write_photographs(folder: Path) -> None:
    from tests.support.image_files import png

    rng = np.random.default_rng(0)
    for name, level in (("daisy", 60), ("tulips", 190)):
        (folder / name).mkdir(parents=True)
        for number in range(16):
            pixels = np.clip(rng.normal(level, 40, (20, 30, 3)), 0, 255).astype("uint8")
            (folder / name / f"{number}.png").write_bytes(png(pixels))


@pytest.mark.slow
def test_data_that_is_there_is_used(tmp_path: Path) -> None:
    """MNIST from `data_dir` and from Keras's cache, flower photographs, and what is none of them."""
    arrays = write_mnist(tmp_path / "keras" / "datasets")
    write_mnist(tmp_path / "mnist")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "mnist.npz").write_bytes(b"PK")
    write_photographs(tmp_path / "flowers")
    photographs = {"image_size": 16, "epochs": 4, "batch_size": 8, "learning_rate": 0.01}
    asked: dict[str, tuple[str, Mapping[str, Any]]] = {
        "cache": ("replicas", {}),
        "data_dir": ("replicas", {"data_dir": str(tmp_path / "mnist")}),
        "missing": ("replicas", {"data_dir": str(tmp_path)}),
        "broken": ("replicas", {"data_dir": str(tmp_path / "broken")}),
        "flowers": ("baseline_vs_distributed", {"data_dir": str(tmp_path / "flowers"), **photographs}),
    }
    target = f"{FUNCTIONS}:run_job"
    calls = {name: (target, {"job": job, "params": params}) for name, (job, params) in asked.items()}
    found = run_in_turn(calls, Cluster(), environ={"KERAS_HOME": str(tmp_path / "keras")})
    done = {name: tasks[0].values for name, tasks in found.items()}
    for name in ("cache", "data_dir"):
        assert done[name]["error"] is None
        assert done[name]["values"]["brightness"] == close(arrays["x_train"][:6].sum() / 255, within=0.05)
        assert done[name]["values"]["digits_sum"] == arrays["y_train"][:6].sum()
        assert done[name]["notes"] == []
    assert done["missing"]["error"] == f"param data_dir is {str(tmp_path)!r}, which has no mnist.npz"
    assert "mnist.npz is not Keras's mnist.npz: " in done["broken"]["error"]
    assert done["flowers"]["error"] is None
    check_baseline(done["flowers"]["values"])
    assert done["flowers"]["values"]["baseline/accuracy"] > 0.9  # of two classes


@pytest.mark.slow
def test_without_data_the_digits_are_taken_and_that_is_said() -> None:
    for task in done("replicas", "2 workers"):
        assert [note for note in task["notes"] if note.startswith("data: scikit-learn's digits; for MNIST")]
