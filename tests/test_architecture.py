"""The rooms of raydist and the arrows between them, as the guide's development page draws them."""

from __future__ import annotations

import ast
import collections
import functools
import graphlib
import importlib
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import raydist
from raydist import errors

PACKAGE = Path(raydist.__file__).parent

# The rooms from the bottom to the top, each with what it may import of raydist beside itself. A room is a
# folder or a module; a module belongs to the room with the longest name that fits.
ROOMS: dict[str, set[str]] = {
    "errors": set(),
    "known_versions": set(),
    "private_folders": {"errors"},
    # Pure data, and how a person's words become it.
    "spec": {"errors"},
    "spec.settings": {"errors", "spec"},
    "outcome": {"errors", "spec"},
    # Reads the user's files.
    "entry": {"errors", "spec", "spec.settings"},
    "data.order": set(),
    "planning": {"errors", "spec", "spec.settings", "data.order"},
    "stragglers": {"spec", "outcome"},
    "storage.layout": {"errors", "spec"},
    "storage": {"private_folders", "errors", "spec", "outcome", "storage.layout"},
    "metrics": {"errors", "spec", "outcome", "storage"},
    "op_types": set(),
    "tf_private": {"errors", "spec", "op_types"},
    "data": {"errors", "private_folders", "data.order", "op_types", "tf_private"},
    "data.sources": {"errors", "spec", "storage", "data.order", "data"},
    "data.__init__": {"data", "data.sources"},
    "page": {"errors", "spec", "outcome", "stragglers", "storage", "metrics"},
    "board": {"errors", "spec", "storage", "storage.layout", "page"},
    "tracking": {"errors", "spec", "outcome", "storage", "metrics"},
    "train_context": {"spec"},
    # Runs TensorFlow in a task.
    "training.lazy_imports": set(),
    "training.reporting": {
        *("errors", "spec", "outcome", "planning", "storage", "metrics", "tf_private"),
    },
    "training.cluster": {
        *("errors", "spec", "outcome", "planning", "data.order", "data", "tf_private"),
        "training.reporting",
    },
    "training.user_code": {"op_types", "tf_private"},
    "training.replicas": {
        *("errors", "op_types", "tf_private", "training.reporting", "training.cluster"),
        "training.user_code",
    },
    "training.checks": {
        *("errors", "spec", "op_types", "tf_private", "training.reporting"),
        *("training.cluster", "training.user_code", "training.replicas"),
    },
    "training.input": {
        *("errors", "spec", "data", "data.sources", "op_types", "tf_private"),
        *("training.reporting", "training.cluster", "training.user_code", "training.replicas"),
    },
    "training.stepping": {
        *("errors", "spec", "outcome", "tf_private", "training.reporting", "training.cluster"),
        *("training.user_code", "training.replicas", "training.checks", "training.input"),
    },
    "training.checkpointing": {
        *("errors", "spec", "outcome", "storage", "tf_private", "training.reporting"),
        *("training.cluster", "training.user_code", "training.replicas"),
    },
    "training.keras_patches.replacement": {"errors", "known_versions"},
    "training.keras_patches.keras3": {
        *("errors", "known_versions", "tf_private", "training.cluster", "training.user_code"),
        *("training.replicas", "training.checks", "training.input", "training.stepping"),
        *("training.keras_patches.replacement", "train_context"),
    },
    "training.keras_patches.tf_keras": {
        *("errors", "tf_private", "training.cluster", "training.user_code", "training.replicas"),
        *("training.input", "training.stepping", "training.keras_patches.replacement"),
    },
    "training.keras_patches": {
        *("errors", "training.input", "training.stepping", "training.keras_patches.keras3"),
        "training.keras_patches.tf_keras",
    },
    "training.trainers": {
        *("errors", "spec", "outcome", "planning", "storage", "data", "tf_private"),
        *("training.reporting", "training.cluster", "training.user_code", "training.replicas"),
        *("training.checks", "training.input", "training.stepping", "training.checkpointing"),
        *("training.keras_patches.keras3", "training.keras_patches"),
    },
    "training.parameter_server": {
        *("errors", "spec", "planning", "data", "data.__init__", "tf_private"),
        *("training.reporting", "training.cluster", "training.replicas", "training.checks"),
        *("training.input", "training.stepping", "training.checkpointing", "training.keras_patches"),
        "training.trainers",
    },
    "training.context": {
        *("errors", "spec", "planning", "train_context", "training.reporting", "training.cluster"),
        *("training.input", "training.trainers"),
    },
    "training.session": {
        *("errors", "spec", "outcome", "planning", "storage", "metrics", "data", "train_context"),
        *("tf_private", "training.reporting", "training.cluster", "training.replicas"),
        *("training.checks", "training.stepping", "training.checkpointing"),
        *("training.keras_patches.keras3", "training.keras_patches.tf_keras", "training.trainers"),
        *("training.parameter_server", "training.context"),
    },
    "task": {
        *("errors", "known_versions", "spec", "entry", "outcome", "planning", "data"),
        "training.lazy_imports",
        *("training.reporting", "training.cluster", "training.parameter_server", "training.session"),
        "tf_private",
    },
    # Decides, and does nothing itself; `task_group` is what it asks of the runtime.
    "controller.task_group": {"spec", "outcome", "planning"},
    "controller": {
        *("errors", "spec", "outcome", "planning", "stragglers", "storage.layout", "controller.task_group")
    },
    # Acts. `runtime.host` is what a host knows of itself, without Ray.
    "runtime.host": {"private_folders", "errors", "known_versions", "spec", "storage", "storage.layout"},
    "runtime.cluster": {"errors", "spec", "planning", "runtime.host"},
    "runtime.doctor": {"errors", "known_versions", "storage", "runtime.host", "runtime.cluster"},
    "runtime.task": {"private_folders", "errors", "spec", "outcome", "planning", "storage", "runtime.host"},
    "runtime.group": {
        *("errors", "spec", "outcome", "planning", "storage", "controller.task_group", "runtime.host"),
        *("runtime.cluster", "runtime.doctor", "runtime.task"),
    },
    "runtime.detach": {
        "private_folders",
        *("errors", "spec", "planning", "runtime.host", "runtime.cluster", "runtime.task", "runtime.group"),
    },
    "inference.parts": {"errors"},
    "inference": {
        *("errors", "spec", "outcome", "storage", "data.order", "data", "data.sources", "runtime.cluster"),
        "inference.parts",
    },
    # Stays when Ray is gone.
    "watch": {"errors", "spec", "outcome", "storage", "runtime.host"},
    "runs.handle": {"errors", "spec", "outcome", "storage", "controller"},
    # Joins what decides with what acts.
    "runs": {
        *("errors", "spec", "outcome", "planning", "storage", "tracking", "controller.task_group"),
        "controller",
        *("runtime.host", "runtime.cluster", "runtime.task", "runtime.group", "runtime.detach"),
    },
    "api": {
        *("errors", "spec", "spec.settings", "entry", "outcome", "planning", "storage", "tracking"),
        "controller",
        "train_context",
        *(
            "runtime.host",
            "runtime.cluster",
            "runtime.task",
            "runtime.group",
            "runtime.detach",
            "watch",
            "runs.handle",
        ),
        "runs",
    },
    # Runs as trials of Ray Tune.
    "tune": {
        *("errors", "spec", "spec.settings", "entry", "outcome", "planning", "storage", "metrics"),
        "runtime.host",
        *("runtime.cluster", "watch", "api"),
    },
    "tune.__init__": {"tune"},
    "__init__": {
        *("errors", "spec", "spec.settings", "outcome", "planning", "data.__init__", "train_context"),
        "runs.handle",
        *("api", "tune.__init__"),
    },
    "cli.job_options": {"errors", "spec", "spec.settings"},
    "cli.screen": {"errors", "spec", "outcome", "storage", "cli.job_options"},
    "cli.run_argument": {"errors", "storage", "cli.job_options", "cli.screen"},
    "cli": {
        *("errors", "spec", "spec.settings", "entry", "outcome", "storage", "runtime.host", "watch", "api"),
        *("__init__", "cli.screen"),
    },
    "cli.commands": {
        *("errors", "known_versions", "spec", "spec.settings", "entry", "outcome", "planning", "storage"),
        *("metrics", "page", "board", "runtime.host", "runtime.doctor", "runtime.task", "runtime.detach"),
        *("inference", "runs", "api", "tune", "__init__", "cli.job_options", "cli.screen"),
        *("cli.run_argument", "cli"),
    },
}

# The most modules that a folder may have.
MAX_MODULES = 25

# What an import inside a function may be for: one of these, or a module of raydist that loads one of these.
LATE: dict[str, str] = {
    "google": "protobuf's errors, which only reading TFRecord needs; TensorFlow brings them",
    "mlflow": "seconds; and only runs with --mlflow need it, which may not be installed",
    "numpy": "0.1 s, which `raydist plan` does without",
    "onnxruntime": "only `export` to ONNX needs it, which may not be installed",
    "plotext": "only `metrics --plot` draws",
    "pyarrow": "0.3 s, which what reads no storage does without",
    "ray": "a second; and it reads its environment when it is imported",
    "rich": "0.1 s, which what prints no progress does without",
    "subprocess": "0.01 s, which a command with a supervisor does without",
    "tensorboard": "a second; and only `raydist tensorboard` needs it, which may not be installed",
    "tf_keras": "0.1 s, which jobs with Keras 3 do without",
    "tensorflow": "seconds; and it reads its environment when it is imported",
    "yaml": "0.05 s, which a job without a config file does without",
}

# Who unpickles, and what. Nothing of it has been on storage: whoever writes there could have it run code.
UNPICKLING: dict[str, str] = {
    "data.shared": "what tasks of a run found out about their input, which comes from a peer through Ray",
    "data.sources.ray_blocks": "ObjectRefs of a recipe, which came as the next one says",
    "runtime.task.child": "shares of datasets, which came to the agent through Ray; its link is a socketpair",
    "training.parameter_server.sources": "recipes, which come from the chief through Ray",
    "runs.detached": "the launch, which comes from the submitter through Ray",
    "entry.entry_point": "a function from a notebook, which comes from the driver through Ray",
}

# Who may import the heavy or the replaceable ones.
THIRD_PARTY: dict[str, set[str]] = {
    "ray": {"runtime", "data", "inference", "tune"},
    "tensorflow": {"tf_private", "training", "task", "data", "inference"},
    "keras": {"training", "task", "data", "inference"},
    "tf_keras": {"training", "task", "data", "inference"},
    "pyarrow": {"storage", "metrics", "data", "inference", "runtime.cluster"},
    "pathspec": {"runtime"},
    "mlflow": {"tracking"},
    "tensorboard": {"board"},
    "wrapt": {"training", "runtime.task"},
    "yaml": {"spec", "entry"},
    "click": {"cli"},
    "rich": {"cli"},
}

PUBLIC = [
    "CheckpointError",
    "ClusterError",
    "DataError",
    "DeviceError",
    "FinalError",
    "Job",
    "JobFileError",
    "JobSpec",
    "MistakeError",
    "NonFiniteError",
    "Plan",
    "RaydistError",
    "RetryableError",
    "RunCancelledError",
    "RunHandle",
    "RunResult",
    "RunState",
    "RunTimeoutError",
    "SpecError",
    "StartTimeoutError",
    "StorageError",
    "TaskFailedError",
    "TrainContext",
    "TrainingError",
    "UnsupportedError",
    "__version__",
    "attach",
    "context",
    "data",
    "job",
    "plan",
    "run",
    "submit",
    "tune",
]


def name_of(path: Path) -> str:
    """Returns `data.order.steps` for a module; for a package `data.__init__`."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def room_of(module: str) -> str:
    """Returns the room of a module, or its own name where it has none."""
    return max((room for room in ROOMS if f"{module}.".startswith(f"{room}.")), key=len, default=module)


class Import(NamedTuple):
    """One import: of a module of raydist, named as in MODULES, or of another package."""

    target: str
    is_own: bool
    is_late: bool
    is_for_types: bool
    line: int


LATE_NODES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
# Of importlib, however it is imported, and the built-in function.
IMPORTING_CALL = re.compile(r"(^|\.)(_*import_module|__import__)$")


def imports_of(source: str) -> Iterator[Import]:
    """Yields every import, also inside functions, under TYPE_CHECKING and by `import_module("…")`."""
    ahead: list[tuple[ast.AST, bool, bool]] = [(ast.parse(source), False, False)]
    while ahead:
        parent, is_late, is_for_types = ahead.pop()
        is_late = is_late or isinstance(parent, LATE_NODES)
        is_for_types = is_for_types or (isinstance(parent, ast.If) and is_type_checking(parent.test))
        for node in ast.iter_child_nodes(parent):
            ahead.append((node, is_late, is_for_types))
            for name in imported_by(node):
                is_own = name.partition(".")[0] == "raydist"
                target = own_module(name) if is_own else name
                yield Import(target, is_own, is_late, is_for_types, getattr(node, "lineno", 0))


def imported_by(node: ast.AST) -> list[str]:
    """Returns what a statement or a call imports, by the full names."""
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom():
            assert node.level == 0, f"line {node.lineno} imports relatively"
            return [f"{node.module}.{alias.name}" for alias in node.names]
        case ast.Call() if IMPORTING_CALL.search(ast.unparse(node.func)):
            given = [*node.args[:1], *(one.value for one in node.keywords if one.arg == "name")]
            return [
                one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, str)
            ]
    return []


def is_type_checking(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def own_module(name: str) -> str:
    """Returns the module that has a name: the name itself, or that of something in it."""
    inner = name.partition(".")[2]
    outer = inner.rpartition(".")[0]
    candidates = (inner, f"{inner}.__init__", outer, f"{outer}.__init__")
    return next(found for one in candidates if (found := one.lstrip(".")) in MODULES)


@functools.cache
def imports() -> dict[str, list[Import]]:
    """Returns the imports of each module; read once, by the first test of this process that asks."""
    return {name: list(imports_of(path.read_text())) for name, path in MODULES.items()}


@pytest.mark.parametrize(
    ("source", "is_late"),
    [
        ("import raydist.errors", False),
        ("from raydist import errors", False),
        ("from raydist.errors import SpecError", False),
        ("def f():\n    import raydist.errors", True),
        ("async def f():\n    from raydist import errors", True),
        ("class A:\n    import raydist.errors", False),
        ('import importlib\nimportlib.import_module("raydist.errors")', False),
        ('import importlib as il\nil.import_module("raydist.errors")', False),
        ('from importlib import import_module\nimport_module("raydist.errors")', False),
        ('from importlib import import_module as _import_module\n_import_module("raydist.errors")', False),
        ('import_module(name="raydist.errors")', False),
        ('__import__("raydist.errors")', False),
        ('f = lambda: __import__("raydist.errors")', True),
        ('import importlib\nf = lambda: importlib.import_module("raydist.errors").SpecError', True),
        ('def f():\n    return importlib.import_module("raydist.errors")', True),
    ],
)
def test_import_is_found_however_it_is_written(source: str, is_late: bool) -> None:
    found = [(one.target, one.is_late) for one in imports_of(source) if one.is_own]
    assert found == [("errors", is_late)]


@pytest.mark.parametrize("source", ["import_module(name)", 'imported("raydist.errors")', '"raydist.errors"'])
def test_what_imports_no_module_that_is_known_is_no_import(source: str) -> None:
    assert list(imports_of(source)) == []


def arrow_is_allowed(room: str, found: Import) -> bool:
    if found.is_own:
        return room_of(found.target) in {room, *ROOMS.get(room, ())}
    allowed = THIRD_PARTY.get(found.target.partition(".")[0])
    return allowed is None or any(f"{room}.".startswith(f"{one}.") for one in allowed)


def test_each_room_has_its_line() -> None:
    rooms = {room_of(module) for module in MODULES if imports()[module]}
    assert rooms - ROOMS.keys() == set(), "a new room needs a line in ROOMS"


def test_modules_import_only_along_the_arrows() -> None:
    forbidden = [
        f"{module}:{found.line} imports {found.target}"
        for module in MODULES
        for found in imports()[module]
        if not arrow_is_allowed(room_of(module), found)
    ]
    assert forbidden == []


def test_arrows_go_down() -> None:
    below: set[str] = set()
    for room, allowed in ROOMS.items():
        assert allowed - below == set(), f"{room} may import what is not below it"
        below.add(room)


PRIVATE = re.compile(r"_[a-z]\w*")
# Overrides methods of a strategy of TensorFlow's, which are private, and asks its own ones.
OWN_STRATEGY = "training.cluster.virtual_strategy"
# Names that a named tuple, and a layer of tf_keras, have too.
AMBIGUOUS = {"_replace", "_generator"}


def private_names_of(module: str) -> Iterator[str]:
    """Yields the private names of others that a module has: attributes, and strings that name one."""
    tree = list(ast.walk(ast.parse(MODULES[module].read_text())))
    own = {node.name for node in tree if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    own |= {node.id for node in tree if isinstance(node, ast.Name)}
    own |= {node.attr for node in tree if isinstance(node, ast.Attribute) and is_of_self(node)}
    for node in tree:
        name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "value", None)
        if isinstance(name, str) and PRIVATE.fullmatch(name) and name not in own:
            yield name


def is_of_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def test_private_parts_of_tensorflow_stand_in_one_room() -> None:
    def is_inside(module: str) -> bool:
        return room_of(module) == "tf_private"

    private = ("tensorflow.python", "tensorflow.core", "tensorflow.compiler")
    imported = [
        f"{module}:{one.line} imports {one.target}"
        for module in MODULES
        for one in imports()[module]
        if one.target.startswith(private) and not is_inside(module)
    ]
    assert imported == []
    inside = {
        name for module in MODULES if is_inside(module) for name in private_names_of(module)
    } - AMBIGUOUS
    assert "_aggregation" in inside
    used = {
        f"{module} uses {name}"
        for module in MODULES
        if module.startswith("training.") and not is_inside(module) and module != OWN_STRATEGY
        for name in private_names_of(module)
        if name in inside
    }
    assert used == set()


def test_one_module_reads_bytecode() -> None:
    reading = re.compile(r"^import dis$|\bco_(?!filename|name\b)[a-z]+|getclosurevars", re.MULTILINE)
    found = {module for module, path in MODULES.items() if reading.search(path.read_text())}
    own = "training.user_code.bytecode"
    # Which looks into a function of TensorFlow's, not of the user's.
    assert {one for one in found if one.startswith(("training.", "tf_private."))} == {
        own,
        "tf_private.datasets",
    }


def test_only_what_came_through_ray_is_unpickled() -> None:
    found = {
        module
        for module, path in MODULES.items()
        if re.search(
            r"(pickle|dill|marshal|shelve|joblib)\.(loads?\(|Unpickler|open\()|allow_pickle=True",
            path.read_text(),
        )
    }
    assert found == UNPICKLING.keys()


def test_no_modules_import_each_other() -> None:
    graph = {module: {one.target for one in found if one.is_own} for module, found in imports().items()}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_no_folder_is_crowded() -> None:
    folders = [module.rpartition(".")[0] for module in MODULES if not module.endswith("__init__")]
    sizes = collections.Counter(folders)
    assert {folder: size for folder, size in sizes.items() if size > MAX_MODULES} == {}


def loads_heavy(found: Import) -> bool:
    """Whether an import loads one of LATE, if only by what that module imports at its top."""
    if not found.is_own:
        return found.target.partition(".")[0] in LATE
    seen, ahead = {found.target}, [found.target]
    while ahead:
        loaded = [one for one in imports()[ahead.pop()] if not (one.is_late or one.is_for_types)]
        if any(not one.is_own and loads_heavy(one) for one in loaded):
            return True
        new = {one.target for one in loaded if one.is_own} - seen
        seen |= new
        ahead += new
    return False


def test_only_what_is_heavy_is_imported_inside_functions() -> None:
    light = [
        f"{module}:{found.line} imports {found.target}"
        for module in MODULES
        if module != "__init__"  # which imports each public name when it is asked for
        for found in imports()[module]
        if found.is_late and not loads_heavy(found)
    ]
    assert light == []


def test_runtime_takes_only_its_contract_from_the_controller() -> None:
    taken = {
        one.target
        for module, found in imports().items()
        if module.startswith("runtime.")
        for one in found
        if one.target.startswith("controller.")
    }
    assert taken <= {"controller.task_group"}


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


def loaded_with(*rooms: str, suspects: tuple[str, ...]) -> list[str]:
    """Returns which of `suspects` a fresh process has loaded after all modules of some rooms."""
    modules = [f"raydist.{name}" for name in MODULES if name.startswith(rooms) and "__init__" not in name]
    return loaded_after("import " + ", ".join(modules), suspects=suspects)


def test_what_is_on_a_host_needs_no_ray() -> None:
    assert loaded_with("runtime.host.", suspects=("ray", "tensorflow", "pyarrow")) == []


@pytest.mark.parametrize("room", ["spec.", "planning.", "controller."])
def test_deciding_rooms_load_neither_ray_nor_tensorflow(room: str) -> None:
    assert loaded_with(room, suspects=("ray", "tensorflow", "keras", "pyarrow")) == []


def test_public_names_are_pinned_and_sorted() -> None:
    assert raydist.__all__ == PUBLIC
    assert sorted(PUBLIC) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_public_name_can_be_used(name: str) -> None:
    assert getattr(raydist, name) is not None
    assert name in dir(raydist)


@pytest.mark.parametrize("module", ["raydist", "raydist.data"])
def test_dir_shows_the_public_names_and_no_others(module: str) -> None:
    public = importlib.import_module(module)
    shown = [name for name in dir(public) if not (name.startswith("__") and name.endswith("__"))]
    assert shown == [name for name in public.__all__ if name != "__version__"]


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
