from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from raydist import api
from raydist.cli.commands.submit import show
from raydist.planning.inventory import Host, Inventory
from raydist.planning.this_machine import this_machine
from raydist.spec.job import Strategy, WorkerRange
from tests.cli.conftest import Run
from tests.planning.plans import plan

Write = Callable[..., Path]
CONFIGS = sorted((Path(__file__).parents[3] / "cluster_configs").glob("*.yaml"))


def test_plan_prints_a_tf_config_for_each_worker(raydist: Run, job_file: Write) -> None:
    code, out, _ = raydist("plan", str(job_file()), "--workers", "2", "--address", "local")
    assert code == 0
    lines = [line for line in out.splitlines() if line.startswith("worker/")]
    assert [line.split(" ", 1)[0] for line in lines] == ["worker/0", "worker/1"]
    for index, line in enumerate(lines):
        tf_config = json.loads(line.partition("TF_CONFIG=")[2])
        assert tf_config["cluster"] == {"worker": ["worker-0:0", "worker-1:0"]}
        assert tf_config["task"] == {"type": "worker", "index": index}
    assert "multi_worker_mirrored: workers is 2" in out


def test_plan_prints_roles_and_a_tf_config_for_every_task_under_parameter_server(
    raydist: Run, job_file: Write
) -> None:
    options = ("--strategy", "parameter_server", "--workers", "3", "--ps", "2", "--evaluator")
    options += ("--cpus", "worker=1", "--cpus", "ps=0.5", "--address", "local")
    code, out, _ = raydist("plan", str(job_file()), *options)
    assert code == 0
    assert [line for line in out.splitlines() if line.startswith(("role", "placement"))] == [
        "role       1 x chief, 1 CPU, 1 thread",
        "role       3 x worker, 1 CPU each, 1 thread",
        "role       2 x ps, 0.5 CPUs each, 1 thread",
        "role       1 x evaluator, 1 CPU, 1 thread",
        "placement  ps on as many hosts as there are, all tasks or none",
    ]
    lines = [line.split(" TF_CONFIG=") for line in out.splitlines() if " TF_CONFIG=" in line]
    assert [task for task, _ in lines] == [
        *("chief/0", "worker/0", "worker/1", "worker/2", "ps/0", "ps/1", "evaluator/0")
    ]
    for task, text in lines:
        tf_config = json.loads(text)
        num_addresses = {name: len(addresses) for name, addresses in tf_config["cluster"].items()}
        assert num_addresses == {"chief": 1, "worker": 3, "ps": 2}
        assert f"{tf_config['task']['type']}/{tf_config['task']['index']}" == task


def test_plan_for_hosts_that_are_described(raydist: Run, job_file: Write) -> None:
    address = "simulated:hosts=8,cpus=8,memory=64GiB"
    code, out, _ = raydist("plan", str(job_file()), "--workers", "64", "--address", address)
    assert code == 0
    assert "inventory  a simulated cluster: 8 hosts, 64 CPUs, 0 GPUs" in out
    assert "cost       an all-reduce on CPUs takes 126 messages one after the other" in out
    code, _, err = raydist("submit", str(job_file()), "--address", address)
    assert code == 2
    assert "only described" in err


def test_plan_shows_variables_without_their_secrets(
    raydist: Run, job_file: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FROM_SHELL", "s")
    (tmp_path / ".env").write_text("HF_TOKEN=hush\nOPEN=1\n")
    (tmp_path / "ray.yaml").write_text("pip: [einops]\n")
    options = ("--env-file", ".env", "--env", "OPEN=a b", "--env", "FROM_SHELL", "--runtime-env", "ray.yaml")
    code, out, _ = raydist("plan", str(job_file()), *options, "--address", "local")
    assert (code, "hush" in out) == (0, False)
    assert "env        'HF_TOKEN=***' 'OPEN=a b' FROM_SHELL=s\nruntime    Ray's runtime_env with pip\n" in out
    _, out, _ = raydist("plan", str(job_file()), *options, "--address", "local", "--json")
    assert "hush" not in out
    assert json.loads(out)["env"] == {"HF_TOKEN": "***", "OPEN": "a b", "FROM_SHELL": "s"}


def test_plan_says_which_host_fits_which_role_and_why_not(capsys: pytest.CaptureFixture[str]) -> None:
    hosts = (
        Host(name="10.0.0.1", num_cpus=8, num_gpus=2, memory_bytes=32 << 30, labels={"zone": "a"}),
        Host(name="10.0.0.2", num_cpus=4, memory_bytes=16 << 30),
    )
    made = plan(
        Inventory(hosts=hosts, source="Ray at 10.0.0.1:6379"),
        strategy=Strategy.PARAMETER_SERVER,
        workers=WorkerRange(minimum=2, maximum=2),
        ps=3,
        resources={"worker": {"gpus": 1}, "ps": {"memory": 12 << 30}},
        label_selector={"worker:zone": "a"},
    )
    show(made, is_json=False)
    out = capsys.readouterr().out
    assert "role       2 x worker, 1 CPU, 1 GPU, zone=a each, " in out
    assert "role       3 x ps, 1 CPU, 12 GiB of memory each, 1 thread\n" in out
    assert (
        "host       10.0.0.1: 1 x chief or 2 x worker or 2 x ps\n"
        "host       10.0.0.2: 1 x chief or 1 x ps, no worker (needs 1 GPU, has 0 GPUs; needs label zone=a, "
        "has none)\n"
    ) in out


def test_function_without_params_takes_any_as_yaml(raydist: Run, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("def train(ctx): ...\n")
    code, out, _ = raydist(
        *("plan", "job.py:train", "-p", "n=20", "-p", "flag=yes", "--address", "local", "--json")
    )
    assert (code, json.loads(out)["params"]) == (0, {"n": 20, "flag": "yes"})


def test_partitioner_of_the_job_brings_tf_keras_and_can_be_taken_back(raydist: Run, job_file: Write) -> None:
    job = job_file('@raydist.job(ps=2, workers=2, partitioner="min_size:1024")')
    _, out, _ = raydist("plan", str(job), "--address", "local")
    assert "keras      legacy: a partitioner is asked for, and Keras 3 has no sharded variables" in out
    code, out, _ = raydist(
        "plan", str(job), "--address", "local", "--partitioner", "none", "--keras", "3", "--json"
    )
    assert (code, json.loads(out)["keras"]) == (0, "3")


def test_plan_json_is_one_object_with_reasons_and_roles(raydist: Run, job_file: Write) -> None:
    code, out, err = raydist(
        "plan", str(job_file()), "--strategy", "mirrored", "--address", "local", "--json"
    )
    printed = json.loads(out)
    assert (code, err) == (0, "")
    assert printed["strategy"] == "mirrored"
    assert printed["reason"]
    none = {"threads": this_machine().num_cpus, "memory_bytes": 0, "resources": {}, "labels": {}}
    assert printed["roles"] == [
        {"task_type": "worker", "num_tasks": 1, "cpus": 1.0, "gpus": 0, "tpus": 0.0, **none}
    ]
    assert printed["hosts"] == [{"host": "this machine", "roles": {"worker": {"fits": 1, "lacks": None}}}]
    assert printed["devices"] == 2
    assert printed["tasks"] == [{"task": "worker/0", "tf_config": None}]


def test_precedence_is_command_line_then_config_then_job(
    raydist: Run, job_file: Write, tmp_path: Path
) -> None:
    job = job_file('@raydist.job(workers=2, params={"epochs": 1, "rate": 0.5, "data": "auto"})')
    config = tmp_path / "config.yaml"
    config.write_text("address: local\nworkers: 3\nkeras: legacy\nparams: {epochs: 2, rate: 1e-3}\n")
    _, out, _ = raydist("plan", str(job), "-c", str(config), "--keras", "3", "-p", "epochs=7", "--json")
    printed = json.loads(out)
    assert len(printed["tasks"]) == 3
    assert printed["keras"] == "3"
    assert printed["params"] == {"epochs": 7, "rate": 0.001, "data": "auto"}


def test_plan_loads_neither_ray_nor_tensorflow_even_when_the_job_imports_them(job_file: Write) -> None:
    job = job_file("@raydist.job(workers=2)", top="import ray, tensorflow")
    code = (
        "import sys\nfrom raydist.cli import main\n"
        f"assert main.run(['plan', {str(job)!r}, '--address', 'local']) == 0\n"
        "print([name for name in ('ray', 'tensorflow', 'keras', 'pyarrow', 'rich') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_shipped_config_says_when_to_use_it_and_loads(config: Path) -> None:
    from raydist.entry.config_file import read_config

    assert config.read_text().startswith("# ")
    assert "Use it " in config.read_text()
    assert read_config(config)


def test_every_promised_config_is_shipped() -> None:
    assert {path.stem for path in CONFIGS} == {
        *("local", "two-workers", "parameter-servers", "single-host-gpu", "tpu", "existing-ray")
    }


@pytest.mark.parametrize(
    ("name", "strategy", "num_tasks"),
    [
        ("local", "one_device", 1),
        ("two-workers", "multi_worker_mirrored", 2),
        ("parameter-servers", "parameter_server", 6),
    ],
)
def test_local_config_gives_the_plan_that_it_describes(
    raydist: Run, job_file: Write, name: str, strategy: str, num_tasks: int
) -> None:
    config = next(path for path in CONFIGS if path.stem == name)
    printed = json.loads(raydist("plan", str(job_file()), "-c", str(config), "--json")[1])
    assert (printed["strategy"], len(printed["tasks"])) == (strategy, num_tasks)


def test_plan_shows_the_batch_of_each_replica_and_the_scaled_rate(raydist: Run, job_file: Write) -> None:
    job = job_file(
        '@raydist.job(workers=3, params={"batch_size": 64, "base_batch_size": 64, "learning_rate": 0.1})'
    )
    _, out, _ = raydist("plan", str(job), "--address", "local", "-p", "batch_size=128")
    assert "batch      128 examples a step: uneven, 43 on 2 replicas, 42 on 1\n" in out
    assert "rate       0.2: 0.1 for batches of 64, scaled by the linear rule to 128\n" in out


def test_plan_shows_the_arguments_of_a_script(raydist: Run, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("print('trains')\n")
    command = ("plan", "main.py", "--address", "local", "--workers", "2")
    code, out, err = raydist(*command, "--", "--epochs", "3", "--name", "a b", "--")
    assert code == 0, err
    assert out.startswith("job        main.py -- --epochs 3 --name 'a b' --\n")
    assert "multi_worker_mirrored: workers is 2" in out
    code, out, _ = raydist(*command, "--json", "--", "--epochs", "3")
    assert (json.loads(out)["job"], json.loads(out)["args"]) == ("main.py", ["--epochs", "3"])
    code, out, _ = raydist("plan", "main.py", "--address", "local")
    assert "one_device: one worker" in out
    assert "worker/0 without TF_CONFIG" in out


MANY = ("--workers", "1000", "--cpus", "worker=0.001", "--address", "local")


def test_plan_of_many_tasks_prints_the_cluster_once(raydist: Run, job_file: Write) -> None:
    code, out, _ = raydist("plan", str(job_file()), *MANY)
    assert code == 0
    assert "cluster    1000 x worker: worker-0:0, worker-1:0, …, worker-999:0" in out
    assert "--tf-config worker/999 prints that of one task" in out
    assert "TF_CONFIG={" not in out
    assert len(out.splitlines()) < 15
    described = json.loads(raydist("plan", str(job_file()), *MANY, "--json")[1])
    assert len(described["cluster"]["worker"]) == len(described["tasks"]) == 1000
    assert described["tasks"][999] == {"task": "worker/999", "tf_config": None}


@pytest.mark.parametrize("num_workers", ["2", "1000"])
def test_tf_config_of_one_task_is_printed(raydist: Run, job_file: Write, num_workers: str) -> None:
    arguments = ("plan", str(job_file()), *MANY, "--workers", num_workers, "--tf-config", "worker/1")
    code, out, _ = raydist(*arguments)
    name, _, text = out.partition(" TF_CONFIG=")
    assert (code, name, out.count("\n")) == (0, "worker/1", 1)
    assert json.loads(text)["task"] == {"type": "worker", "index": 1}
    assert len(json.loads(text)["cluster"]["worker"]) == int(num_workers)
    assert json.loads(raydist(*arguments, "--json")[1]) == {"task": "worker/1", "tf_config": text.strip()}


@pytest.mark.parametrize(
    ("task", "sentence"),
    [("worker/2", "the plan has no task worker/2; it has 2 workers"), ("x", "'x' is not a task")],
)
def test_tf_config_of_no_task_is_exit_2(raydist: Run, job_file: Write, task: str, sentence: str) -> None:
    code, out, err = raydist(
        "plan", str(job_file()), "--workers", "2", "--address", "local", "--tf-config", task
    )
    assert (code, out) == (2, "")
    assert sentence in err


def test_plan_shows_roles_with_a_command_of_their_own(raydist: Run, job_file: Write, tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(
        "roles:\n  features: {command: serve --token hush, count: 2, memory: 1GiB, may_fail: true}\n"
    )
    code, out, _ = raydist("plan", str(job_file()), "-c", str(config), "--address", "local")
    assert code == 0
    assert (
        "role       2 x features, 1 CPU, 1 GiB of memory each, may fail: serve --token '***'"
        in out.splitlines()
    )
    code, out, _ = raydist("plan", str(job_file()), "-c", str(config), "--address", "local", "--json")
    assert code == 0
    [role] = json.loads(out)["extra_roles"]
    assert (role["name"], role["command"]) == ("features", ["serve", "--token", "***"])
    assert role["may_fail"]


def test_mistake_in_a_role_is_one_sentence_and_exit_2(raydist: Run, job_file: Write, tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("workers: 2\nroles:\n  ps: {command: serve}\n")
    code, out, err = raydist("plan", str(job_file()), "-c", str(config), "--address", "local")
    assert (code, out) == (2, "")
    assert f"{config}, line 2: roles has ps, which is a task type of raydist; choose another name" in err
    assert "Traceback" not in err


def test_roles_are_a_keyword_and_no_option(raydist: Run, job_file: Write) -> None:
    roles = {"features": {"command": ["serve", "--port", "7000"]}}
    made = api.plan(job_file(), roles=roles, address="local")
    assert made.job.roles["features"].command == ("serve", "--port", "7000")
    code, _, err = raydist("plan", str(job_file()), "--roles", "x")
    assert code == 2
    assert "No such option" in err
