"""The rooms of raydist and the arrows between them, as DESIGN's "Architecture" draws them."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import raydist
from raydist import errors

PACKAGE = Path(raydist.__file__).parent

# What each room may import of raydist, beside itself.
ROOMS: dict[str, set[str]] = {
    "errors": set(),
    "spec": {"errors"},
    "planning": {"errors", "spec"},
    "storage": {"errors", "spec"},
    "metrics": {"errors", "spec", "storage"},
    "data": {"errors", "spec", "storage"},
    "train_context": {"spec"},
    "strategies": {"errors", "spec", "planning", "storage", "metrics", "data", "train_context"},
    "controller": {"errors", "spec", "planning"},
    # `task` is what the actor imports once its environment is set.
    "runtime": {"errors", "spec", "planning", "controller", "storage", "task"},
    "task": {"errors", "spec", "planning", "storage", "metrics", "data", "strategies", "train_context"},
    "run_handle": {"errors", "spec", "storage", "controller"},
    # Stays when Ray is gone: of the runtime it may import what needs no Ray.
    "watch": {"errors", "spec", "storage", "controller"},
    # These four join what decides with what acts.
    "assembly": {"spec", "planning", "storage", "controller", "runtime"},
    "detached": {"errors", "spec", "planning", "storage", "controller", "runtime", "assembly"},
    "attached": {"errors", "spec", "storage", "controller", "runtime"},
    "api": {
        *("errors", "spec", "planning", "storage", "metrics", "controller", "runtime"),
        *("train_context", "run_handle", "assembly", "detached", "attached", "watch", "__init__"),
    },
    "chaos": {"errors", "spec", "storage", "runtime"},
    "cli": {
        *("errors", "spec", "planning", "storage", "metrics", "controller"),
        *("api", "attached", "chaos", "watch", "__init__"),
    },
    "__init__": {"errors", "spec", "planning", "controller", "api", "run_handle", "train_context"},
}

# Of the runtime, what imports no ray: where one may run, which versions are installed, and what is left
# on a host.
RAY_FREE = {
    "raydist.runtime.host.address",
    "raydist.runtime.host.leftovers",
    "raydist.runtime.host.session",
    "raydist.runtime.host.sweeping",
    "raydist.runtime.host.versions",
}

# Who may import the heavy or the replaceable ones.
THIRD_PARTY: dict[str, set[str]] = {
    "ray": {"runtime", "data"},
    "tensorflow": {"strategies", "task", "data"},
    "keras": {"strategies", "task", "data"},
    "tf_keras": {"strategies", "task", "data"},
    "pyarrow": {"storage", "metrics", "data"},
    "yaml": {"spec"},
    "click": {"cli"},
    "rich": {"cli"},
}

PUBLIC = [
    "CheckpointError",
    "ClusterError",
    "DataError",
    "InvalidTransitionError",
    "Job",
    "JobFileError",
    "JobSpec",
    "MistakeError",
    "Plan",
    "RaydistError",
    "RunHandle",
    "RunResult",
    "SpecError",
    "StartTimeoutError",
    "StorageError",
    "TaskFailedError",
    "TrainContext",
    "TrainingError",
    "UnsupportedError",
    "__version__",
    "attach",
    "job",
    "plan",
    "run",
    "submit",
]


def room_of(module: Path) -> str:
    return module.relative_to(PACKAGE).with_suffix("").parts[0]


def imports_of(module: Path) -> Iterator[tuple[str, int]]:
    """Yields (dotted module, line) of every import, those inside functions included."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno} imports relatively"
            for alias in node.names:
                # `from raydist import spec` goes to the room, `from raydist.spec import x` to its module.
                is_room = node.module == "raydist" and alias.name in ROOMS
                yield f"raydist.{alias.name}" if is_room else str(node.module), node.lineno


def arrow_is_allowed(room: str, target: str) -> bool:
    if room in ("cli", "watch") and target in RAY_FREE:
        return True
    top, *rest = target.split(".")
    if top != "raydist":
        return room in THIRD_PARTY.get(top, {room})
    target_room = rest[0] if rest else "__init__"
    return target_room == room or target_room in ROOMS[room]


MODULES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_module_imports_only_along_the_arrows(module: Path) -> None:
    room = room_of(module)
    assert room in ROOMS, f"{room} is a new room: give it a line in ROOMS and in DESIGN's tree"
    forbidden = [
        f"{module.relative_to(PACKAGE)}:{line} imports {target}"
        for target, line in imports_of(module)
        if not arrow_is_allowed(room, target)
    ]
    assert forbidden == []


def test_runtime_takes_only_its_contract_from_the_controller() -> None:
    taken = {
        target
        for module in MODULES
        if room_of(module) == "runtime"
        for target, _ in imports_of(module)
        if target.startswith("raydist.controller")
    }
    assert taken <= {"raydist.controller.task_group"}


def loaded_after(statement: str, *, suspects: tuple[str, ...]) -> list[str]:
    """Returns which of `suspects` a fresh process has loaded after `statement`."""
    code = f"{statement}\nimport sys\nprint(*[m for m in {suspects!r} if m in sys.modules])"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return output.stdout.split()


HEAVY = ("ray", "tensorflow", "keras", "tf_keras", "numpy", "pyarrow", "click", "rich", "yaml", "cloudpickle")


def test_import_raydist_loads_nothing_heavy() -> None:
    assert loaded_after("import raydist", suspects=HEAVY) == []


def test_import_api_loads_neither_ray_nor_pyarrow() -> None:
    assert (
        loaded_after("import raydist.api", suspects=("ray", "tensorflow", "keras", "pyarrow", "click")) == []
    )


def test_annotating_and_decorating_a_job_loads_nothing_heavy() -> None:
    statement = "import raydist\n@raydist.job(workers=2)\ndef train(ctx: raydist.TrainContext): ...\n"
    assert loaded_after(statement, suspects=("ray", "tensorflow", "keras", "pyarrow", "click")) == []


@pytest.mark.parametrize("module", sorted(RAY_FREE))
def test_ray_free_module_loads_no_ray(module: str) -> None:
    assert loaded_after(f"import {module}", suspects=("ray", "tensorflow", "pyarrow")) == []


@pytest.mark.parametrize("room", ["spec", "planning", "controller"])
def test_deciding_rooms_load_neither_ray_nor_tensorflow(room: str) -> None:
    names = [
        ".".join(["raydist", *module.relative_to(PACKAGE).with_suffix("").parts])
        for module in MODULES
        if room_of(module) == room
    ]
    statement = "import " + ", ".join(names)
    assert loaded_after(statement, suspects=("ray", "tensorflow", "keras", "pyarrow")) == []


def test_public_names_are_pinned_and_sorted() -> None:
    assert raydist.__all__ == PUBLIC
    assert sorted(PUBLIC) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_public_name_can_be_used(name: str) -> None:
    assert getattr(raydist, name) is not None
    assert name in dir(raydist)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'ran'"):
        raydist.ran  # noqa: B018 - the access is what is tested


@pytest.mark.parametrize("name", errors.__all__)
def test_error_survives_pickling_with_its_fields(name: str) -> None:
    error_class = getattr(errors, name)
    error = error_class("what, where, remedy", task="worker/1", attempt=2, log="s3://runs/r/logs")
    loaded = pickle.loads(pickle.dumps(error))
    assert type(loaded) is error_class
    assert (str(loaded), loaded.task, loaded.attempt, loaded.log) == (
        "what, where, remedy",
        "worker/1",
        2,
        "s3://runs/r/logs",
    )


def test_every_error_of_the_module_is_public() -> None:
    defined = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.RaydistError)
    }
    assert defined == set(errors.__all__)


def test_import_data_loads_no_source() -> None:
    assert loaded_after("import raydist.data", suspects=("ray", "tensorflow", "pyarrow", "numpy")) == []
