"""The pages for those who come from elsewhere: what they say to write starts the same tasks."""

from __future__ import annotations

import ast
import copy
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from raydist import api
from raydist.entry.tfjob import convert, main as tfjob_main
from raydist.planning.inventory import Host, Inventory
from raydist.planning.plan import Plan
from raydist.spec.quantities import parse_bytes, parse_duration
from raydist.spec.tasks import TaskType
from tests.cli.conftest import Run
from tests.support.guide import FOLDER, blocks

PAGE = FOLDER / "coming-from.md"
TYPES = {"Chief": "chief", "Worker": "worker", "PS": "ps", "Evaluator": "evaluator"}
_OF_DETERMINED, *_BLOCKS = blocks(PAGE, "yaml")
EXPERIMENT = yaml.safe_load(_OF_DETERMINED)
PAIRS = [
    pytest.param(manifest, config, id=f"{manifest['metadata']['name']}-{kind}")
    for manifest, after in zip(map(yaml.safe_load, _BLOCKS[::2]), _BLOCKS[1::2], strict=True)
    for kind, config in (("guide", after), ("converted", convert(manifest).text))
]


@pytest.fixture
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has plans made for a host with room for whatever the guide asks for."""
    host = Host(name="big", num_cpus=64, num_gpus=8, memory_bytes=1 << 40)
    monkeypatch.setattr(api, "this_machine", lambda: Inventory(hosts=(host,), is_embedded=True))


def planned(config: str, tmp_path: Path) -> Plan:
    (tmp_path / "main.py").write_text("print('a script')\n")
    (tmp_path / "config.yaml").write_text(config)
    return api.plan(str(tmp_path / "main.py"), config=str(tmp_path / "config.yaml"), address="local")


def replicas_of(manifest: dict[str, Any]) -> dict[str, int]:
    """Returns the number of tasks by type; without parameter servers the chief is one of the workers."""
    specs = manifest["spec"]["tfReplicaSpecs"]
    found = {TYPES[name]: spec["replicas"] for name, spec in specs.items()}
    if "ps" not in found:
        found["worker"] += found.pop("chief", 0)
    return found


@pytest.mark.usefixtures("roomy")
@pytest.mark.parametrize(("manifest", "config"), PAIRS)
def test_config_starts_the_tasks_of_the_tfjob(manifest: dict[str, Any], config: str, tmp_path: Path) -> None:
    plan = planned(config, tmp_path)
    roles = {role.task_type.value: role for role in plan.roles}
    assert {name: role.num_tasks for name, role in roles.items()} == replicas_of(manifest)
    for name, spec in manifest["spec"]["tfReplicaSpecs"].items():
        [container] = spec["template"]["spec"]["containers"]
        limits = container["resources"]["limits"]
        resources = roles.get(TYPES[name], roles["worker"]).resources
        assert resources.num_cpus == limits["cpu"]
        assert resources.memory_bytes == parse_bytes(name, f"{limits['memory']}B")
        assert resources.num_gpus == limits.get("nvidia.com/gpu", 0)
        assert {each["name"]: each["value"] for each in container.get("env", ())} == plan.job.env
        assert [*plan.job.args] == container["command"][2:]


@pytest.mark.usefixtures("roomy")
@pytest.mark.parametrize(("manifest", "config"), PAIRS)
def test_config_has_the_limits_of_the_tfjob(manifest: dict[str, Any], config: str, tmp_path: Path) -> None:
    job, policy = planned(config, tmp_path).job, manifest["spec"].get("runPolicy", {})
    never = {each["restartPolicy"] for each in manifest["spec"]["tfReplicaSpecs"].values()} == {"Never"}
    assert job.max_failures == policy.get("backoffLimit", 0 if never else 3)
    seconds = policy.get("activeDeadlineSeconds")
    assert job.timeout == (None if seconds is None else parse_duration("timeout", seconds))


def test_fields_without_a_counterpart_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = yaml.safe_load(_BLOCKS[0])
    manifest["spec"]["runPolicy"]["ttlSecondsAfterFinished"] = 60
    manifest["spec"]["successPolicy"] = ""
    pod = manifest["spec"]["tfReplicaSpecs"]["Worker"]["template"] = copy.deepcopy(
        manifest["spec"]["tfReplicaSpecs"]["Worker"]["template"]
    )
    pod["spec"]["tolerations"] = []
    container = pod["spec"]["containers"][0]
    container["args"] = ["--worker"]
    container["resources"]["limits"]["cpu"] = "500m"
    container["env"].append({"name": "TOKEN", "valueFrom": {}})
    converted = convert(manifest)
    assert (converted.program, converted.name) == (["main.py"], "digits")
    assert converted.config["success"] == "chief"
    assert [one.partition(":")[0] for one in converted.missing] == [
        "spec.runPolicy.ttlSecondsAfterFinished",
        "template.spec.containers[0].image",
        "template.spec.tolerations",
        "args of Worker",
        "env of Worker",
        "resources of Worker",
    ]
    path = tmp_path / "tfjob.yaml"
    path.write_text(_BLOCKS[0])
    assert tfjob_main([str(path)]) == 0
    assert capsys.readouterr().out == convert(yaml.safe_load(_BLOCKS[0])).text
    path.write_text("kind: Job\n")
    assert tfjob_main([str(path)]) == 2
    assert capsys.readouterr().err == f"error: {path}: its kind is Job; give a manifest of the kind TFJob\n"


SHELL = ["sh", "-c", "python /app/train.py"]
NO_SCRIPT = "command sh -c 'python /app/train.py': name the script in place of main.py"


@pytest.mark.parametrize(
    ("changes", "found", "missing"),
    [
        (
            {"command": ["python3.11", "-u", "-W", "ignore", "-m", "pkg.train", "-m", "resnet"]},
            "-m pkg.train",
            (),
        ),
        ({"command": ["python", "train.py", "-m", "resnet"]}, "train.py", ()),
        ({"command": ["/app/train.py", "-m"]}, "/app/train.py", ()),
        ({"command": SHELL}, "main.py", (NO_SCRIPT,)),
        (
            {"command": ["nice", "python", "a.py"]},
            "a.py",
            ("command nice, before python: see raydist guide scripts",),
        ),
        ({"args": ["--to=$(B)", "$$(C)"]}, "main.py", ("$(B) in --to=$(B): the value itself",)),
        ({"env": [{"name": "A", "value": "x/$(B)"}]}, "main.py", ("$(B) in env A=x/$(B): the value itself",)),
    ],
)
def test_commands_and_variables_of_a_tfjob(
    changes: dict[str, Any], found: str, missing: tuple[str, ...]
) -> None:
    manifest = yaml.safe_load(_BLOCKS[0])
    container = manifest["spec"]["tfReplicaSpecs"]["Chief"]["template"]["spec"]["containers"][0]
    container.update(changes)
    converted = convert(manifest)
    command = converted.text.splitlines()[0]
    assert command == f"# raydist submit {found} -c digits.yaml --name digits --detach"
    assert [one for one in converted.missing if "image" not in one] == [*missing]


@pytest.mark.parametrize(
    ("replicas", "policy", "resources", "config", "missing"),
    [
        ({"Chief": 1, "Worker": 2}, None, {}, {"workers": 3, "success": "chief"}, []),
        ({"Chief": 1, "Worker": 2}, "", {}, {"workers": 3, "success": "chief"}, []),
        ({"Chief": 1, "Worker": 2}, "AllWorkers", {}, {"workers": 3, "success": "chief"}, []),
        ({"Worker": 2}, None, {}, {"workers": 2, "success": "chief"}, []),
        ({"Worker": 2}, "AllWorkers", {}, {"workers": 2, "success": "all"}, []),
        ({"Worker": 1}, None, {}, {"workers": 1}, []),
        ({"Worker": 1, "Evaluator": 1}, None, {}, {"workers": 1}, ["Evaluator without PS"]),
        (
            {"Worker": 1},
            None,
            {"cpu": 2, "ephemeral-storage": "1Gi", "hugepages-2Mi": "4Mi", "amd.com/gpu": 1},
            {"workers": 1, "resources": {"worker": {"cpus": 2, "gpus": 0}}},
            ["resources ephemeral-storage", "resources hugepages-2Mi", "resources amd.com/gpu"],
        ),
    ],
)
def test_tasks_of_a_tfjob(
    replicas: dict[str, int],
    policy: str | None,
    resources: dict[str, Any],
    config: dict[str, Any],
    missing: list[str],
) -> None:
    container = {"command": ["python", "main.py"], "resources": {"limits": resources}}
    template = {"spec": {"containers": [container]}}
    specs = {name: {"replicas": number, "template": template} for name, number in replicas.items()}
    spec = {"tfReplicaSpecs": specs, **({} if policy is None else {"successPolicy": policy})}
    converted = convert({"kind": "TFJob", "spec": spec})
    assert converted.config == {"address": "auto", **config}
    assert [one.partition(":")[0] for one in converted.missing] == missing


@pytest.mark.usefixtures("roomy")
def test_parameter_servers_run_the_script_as_under_a_tfjob(tmp_path: Path) -> None:
    plan = planned(_BLOCKS[3], tmp_path)
    assert plan.job.run_on.value == "all"
    assert TaskType.EVALUATOR in {role.task_type for role in plan.roles}


def test_tf_config_of_the_page_is_what_plan_prints(raydist: Run, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("print('a script')\n")
    [told] = blocks(PAGE, "json")
    code, out, _ = raydist(
        "plan", "main.py", "--workers", "2", "--tf-config", "worker/1", "--address", "local"
    )
    assert (code, json.loads(out.partition("TF_CONFIG=")[2])) == (0, json.loads(told))


def test_programs_for_others_are_python() -> None:
    horovod, elastic, determined, ray_train = map(ast.parse, blocks(PAGE, "py"))
    for program in (horovod, elastic):
        assert "hvd" in {node.id for node in ast.walk(program) if isinstance(node, ast.Name)}
    assert "det" in {node.id for node in ast.walk(determined) if isinstance(node, ast.Name)}
    [function] = [node for node in ray_train.body if isinstance(node, ast.FunctionDef)]
    assert function.name == "train"


def test_job_has_the_settings_of_the_experiment() -> None:
    [source] = [code for code in blocks(PAGE, "python") if "keep_best" in code]
    names: dict[str, Any] = {"make_dataset": None}
    exec(source, names)
    job, storage = names["train"].defaults, EXPERIMENT["checkpoint_storage"]
    rate = EXPERIMENT["hyperparameters"]["learning_rate"]
    assert str(job["workers"]) == str(EXPERIMENT["resources"]["slots_per_trial"])
    assert job["max_failures"] == EXPERIMENT["max_restarts"]
    assert job["storage"] == "{type}://{bucket}/{prefix}".format(**storage)
    assert job["keep"] == storage["save_trial_latest"]
    assert job["keep_best"] == f"val_{EXPERIMENT['searcher']['metric']}"
    assert job["params"]["batch_size"] == EXPERIMENT["hyperparameters"]["global_batch_size"]
    assert 10 ** rate["minval"] <= job["params"]["learning_rate"] <= 10 ** rate["maxval"]


def test_search_is_that_of_the_experiment() -> None:
    [line] = [line for block in blocks(PAGE, "bash") for line in block.splitlines() if " search " in line]
    words = shlex.split(line)
    asked = dict(zip(words[3::2], words[4::2], strict=True))
    searcher, rate = EXPERIMENT["searcher"], EXPERIMENT["hyperparameters"]["learning_rate"]
    assert asked == {
        "-p": f"learning_rate=log:1e{rate['minval']}..1e{rate['maxval']}",
        "--num": str(searcher["max_trials"]),
        "--metric": f"val_{searcher['metric']}",
        "--scheduler": searcher["name"].removeprefix("adaptive_"),
        "--study": EXPERIMENT["name"],
    }
