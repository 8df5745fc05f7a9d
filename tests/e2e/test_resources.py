"""The same command on a laptop: an embedded Ray has the memory and the resources that the tasks ask for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import Ended, status_of

SCRIPT = """
import json
import ray

ray.init()
free = ray.available_resources()
reserved = {name: amount - free.get(name, 0.0) for name, amount in ray.cluster_resources().items()}
print("resources", json.dumps({name: reserved.get(name) for name in ("CPU", "memory", "ssd", "tape")}))
"""


@pytest.mark.slow
def test_embedded_ray_has_what_its_tasks_ask_for(raydist: Callable[..., Ended], tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(SCRIPT)
    asked = ("--memory", "worker=256MiB", "--resources", "worker=ssd:1")
    config = tmp_path / "config.yaml"
    config.write_text("resources: {worker: {cpus: 0.5, memory: 99GiB, resources: {tape: 1}}}\n")
    ended = raydist(
        *("submit", "main.py", "--address", "local", "-c", str(config), "--name", "r", "--json", *asked)
    )
    assert ended.code == 0, ended.out + ended.err
    [role] = status_of(tmp_path, "r")["plan"]["roles"]
    assert (role["memory_bytes"], role["resources"]) == (256 << 20, {"ssd": 1.0})
    lines = raydist("logs", "r").out.splitlines()
    [told] = [line.partition("resources ")[2] for line in lines if "resources {" in line]
    assert json.loads(told) == {"CPU": 0.5, "memory": 256.0 * (1 << 20), "ssd": 1.0, "tape": None}


@pytest.mark.slow
def test_machine_without_what_is_asked_for_is_exit_3(raydist: Callable[..., Ended], tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(SCRIPT)
    for asked, lacks in (
        (("--memory", "worker=90000GiB"), "needs 9e+04 GiB of memory, has "),
        (("--label-selector", "zone=a"), "needs label zone=a, has none"),
        (("--accelerator-type", "H100"), "needs H100, has none"),
    ):
        ended = raydist("submit", "main.py", "--address", "local", *asked)
        assert (ended.code, lacks in ended.err) == (3, True), ended.err
        assert "Traceback" not in ended.err
