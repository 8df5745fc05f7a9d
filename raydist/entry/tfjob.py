"""TFJob: the config file and the command that start what a manifest of Kubeflow's TFJob does.

    python -m raydist.entry.tfjob tfjob.yaml > digits.yaml

It is a module, not a subcommand, because it is used once.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from raydist.errors import SpecError

_ROLES = {"Chief": "chief", "Master": "chief", "Worker": "worker", "PS": "ps", "Evaluator": "evaluator"}
# Fields that need nothing in raydist, or that are looked at where they are.
_KNOWN = {
    "spec": {"tfReplicaSpecs", "runPolicy", "successPolicy"},
    "spec.runPolicy": {"backoffLimit", "activeDeadlineSeconds", "cleanPodPolicy", "schedulingPolicy"},
    "replicas": {"replicas", "restartPolicy", "template"},
    "pod": {"containers", "nodeSelector", "restartPolicy"},
    "container": {"name", "command", "args", "env", "resources", "ports"},
}
_REFERENCE = re.compile(r"(?<!\$)\$\([\w.-]+\)")  # which Kubernetes replaces by the variable's value
_INTERPRETER = re.compile(r"(.*/)?python[\d.]*")
# What takes the place of a field that no config file has.
_INSTEAD = {
    "image": "the image of the Ray cluster's pods; the code travels with the run",
    "volumes": "those of the Ray cluster's pods",
    "volumeMounts": "those of the Ray cluster's pods",
    "tolerations": "those of the Ray cluster's pods",
    "affinity": "those of the Ray cluster's pods, and label_selector",
    "envFrom": "env_file, a file of NAME=value lines",
    "ttlSecondsAfterFinished": "raydist delete --older-than 30d",
    "suspend": "raydist stop, and raydist resume",
}


@dataclass(frozen=True, kw_only=True)
class Converted:
    """What a manifest is in raydist.

    Attributes:
      name: Of the run and of the config file.
      config: Options, as a config file has them.
      program: What `raydist submit` runs.
      missing: A sentence for each field that has no counterpart.
    """

    name: str
    config: Mapping[str, Any]
    program: Sequence[str]
    missing: Sequence[str]

    @property
    def text(self) -> str:
        """The content of the config file, with the rest in comments."""
        command = shlex.join(
            ["raydist", "submit", *self.program, "-c", f"{self.name}.yaml", "--name", self.name]
        )
        lines = [
            f"# {command} --detach",
            "# storage: a URI that all hosts can write, such as s3://bucket/runs",
        ]
        lines += [f"# without a counterpart: {one}" for one in self.missing]
        return "\n".join(lines) + "\n" + yaml.safe_dump(dict(self.config), sort_keys=False)


def convert(manifest: Any) -> Converted:
    """Returns what a TFJob is in raydist; raises SpecError for another manifest."""
    kind = manifest.get("kind") if isinstance(manifest, Mapping) else None
    if kind != "TFJob":
        raise SpecError(f"its kind is {kind}; give a manifest of the kind TFJob")
    spec = manifest["spec"]
    replicas: Mapping[str, Any] = spec["tfReplicaSpecs"]
    if unknown := [name for name in replicas if name not in _ROLES]:
        raise SpecError(f"tfReplicaSpecs has {unknown[0]}; a TFJob has {', '.join(_ROLES)}")
    missing: list[str] = []
    _look_for_others(spec, "spec", "spec", missing)
    policy = spec.get("runPolicy") or {}
    _look_for_others(policy, "spec.runPolicy", "spec.runPolicy", missing)
    by_role = {_ROLES[name]: (name, one) for name, one in replicas.items()}
    if "ps" not in by_role and "evaluator" in by_role:
        del by_role["evaluator"]
        missing.append("Evaluator without PS: validation_data in the script's model.fit")
    config = {"address": "auto", **_tasks({role: one for role, (_, one) in by_role.items()})}
    resources: dict[str, Any] = {}
    first: dict[str, Any] = {}
    for role, (name, one) in by_role.items():
        _look_for_others(one, "replicas", "tfReplicaSpecs", missing)
        pod = one["template"]["spec"]
        _look_for_others(pod, "pod", "template.spec", missing)
        container, *others = pod["containers"]
        missing += [f"container {each.get('name')}: a role in roles, with its command" for each in others]
        _look_for_others(container, "container", "template.spec.containers[0]", missing)
        first = first or {"container": container, "pod": pod}
        for field in ("command", "args", "env"):
            if container.get(field) != first["container"].get(field):
                missing.append(
                    f"{field} of {name}: all tasks have one; the script finds its own in TF_CONFIG"
                )
        amounts = _amounts(container.get("resources") or {}, missing)
        role = "worker" if role == "chief" and "ps" not in by_role else role  # its worker/0
        if resources.setdefault(role, amounts) != amounts:
            missing.append(f"resources of {name}: all workers have those of the first")
    if any(resources.values()):
        config["resources"] = {role: amounts for role, amounts in resources.items() if amounts}
    if {one.get("restartPolicy") for one in replicas.values()} == {"Never"}:
        config["max_failures"] = 0
    for name, option in {"backoffLimit": "max_failures", "activeDeadlineSeconds": "timeout"}.items():
        if policy.get(name) is not None:
            config[option] = policy[name]
    if "ps" not in by_role and config["workers"] > 1:  # where a chief, if there is one, decides alone
        is_all = spec.get("successPolicy") == "AllWorkers" and "chief" not in by_role
        config["success"] = "all" if is_all else "chief"
    if selector := first["pod"].get("nodeSelector"):
        config["label_selector"] = dict(selector)
    env = first["container"].get("env") or []
    missing += [f"env {one['name']}, which has no value: env_file" for one in env if "value" not in one]
    if values := {one["name"]: one["value"] for one in env if "value" in one}:
        config["env"] = values
    words = [*first["container"].get("command", ()), *first["container"].get("args", ())]
    words = list(map(str, words))
    for text in (*words, *(f"env {name}={value}" for name, value in values.items())):
        missing += [f"{one} in {text}: the value itself" for one in _REFERENCE.findall(text)]
    program, args = _program(words, missing)
    if args:
        config["args"] = args
    name = manifest.get("metadata", {}).get("name") or "job"
    return Converted(name=name, config=config, program=program, missing=tuple(dict.fromkeys(missing)))


def _tasks(replicas: Mapping[str, Any]) -> dict[str, Any]:
    counts = {role: int(one.get("replicas", 1)) for role, one in replicas.items()}
    if "ps" not in counts:
        return {"workers": counts.get("worker", 0) + counts.get("chief", 0)}
    return {
        "strategy": "parameter_server",
        "workers": counts.get("worker", 1),
        "ps": counts["ps"],
        **({"evaluator": True} if counts.get("evaluator") else {}),
        "run_on": "all",
    }


def _look_for_others(given: Mapping[str, Any], kind: str, where: str, missing: list[str]) -> None:
    """Adds each field that has no counterpart to `missing`."""
    for name in given:
        if name not in _KNOWN[kind]:
            missing.append(f"{where}.{name}: {_INSTEAD.get(name, 'see the Ray cluster, and raydist guide')}")


def _amounts(resources: Mapping[str, Any], missing: list[str]) -> dict[str, Any]:
    """Returns a container's resources as those of a task."""
    given = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    found: dict[str, Any] = {}
    if (cpu := given.pop("cpu", None)) is not None:
        cores = float(str(cpu).removesuffix("m")) / (1000 if str(cpu).endswith("m") else 1)
        found["cpus"] = int(cores) if cores.is_integer() else cores
    if (memory := given.pop("memory", None)) is not None:
        found["memory"] = f"{memory}B"
    if found or given:
        found["gpus"] = int(given.pop("nvidia.com/gpu", 0))
    missing += [f"resources {name}: resources, under the name that Ray's hosts declare" for name in given]
    return found


def _program(words: list[str], missing: list[str]) -> tuple[list[str], list[str]]:
    """Returns what `raydist submit` runs, and its arguments."""
    interpreters = (number for number, word in enumerate(words) if _INTERPRETER.fullmatch(word))
    begin = next(interpreters, -1)
    at = begin + 1
    while begin >= 0 and at < len(words) and words[at].startswith("-") and words[at] != "-m":
        at += 2 if words[at] in ("-W", "-X") else 1
    if begin > 0:
        missing.append(
            f"command {shlex.join(words[:begin])}, before {words[begin]}: see raydist guide scripts"
        )
    if begin >= 0 and words[at : at + 1] == ["-m"] and at + 1 < len(words):
        return words[at : at + 2], words[at + 2 :]
    if at < len(words) and words[at].endswith(".py") and " " not in words[at]:
        return [words[at]], words[at + 1 :]
    missing.append(f"command {shlex.join(words)}: name the script in place of main.py")
    return ["main.py"], []


def main(arguments: Sequence[str]) -> int:
    """Prints the config file of the manifest in a file; returns the exit code."""
    if len(arguments) != 1:
        print("usage: python -m raydist.entry.tfjob tfjob.yaml", file=sys.stderr)
        return SpecError.exit_code
    path = Path(arguments[0])
    try:
        converted = convert(yaml.safe_load(path.read_text()))
    except (SpecError, OSError, yaml.YAMLError) as error:
        print(f"error: {path}: {error}", file=sys.stderr)
        return SpecError.exit_code
    except (KeyError, TypeError, ValueError) as error:
        print(f"error: {path} is not a whole TFJob: {type(error).__name__}: {error}", file=sys.stderr)
        return SpecError.exit_code
    print(converted.text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
