"""What makes objects of bytes: each place in the package, and why nobody else can have written the bytes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import raydist

PACKAGE = Path(raydist.__file__).parent

# By module and function: what is called, and where the bytes come from. Ray itself unpickles what its own
# processes send each other; guide/security.md says so.
KNOWN = {
    ("data.shared", "divided", "pickle.loads"): "left by a task of the same attempt with the chief's agent",
    ("data.sources.ray_blocks", "__setstate__", "ray.cloudpickle.loads"): "a part of a pickle that Ray loads",
    ("entry.entry_point", "load_object", "pickle.loads"): "the job's function, in the plan that Ray brought",
    ("entry.entry_point", "_run_notebook", "exec"): "the job's own notebook",
    ("runs.detached", "__init__", "pickle.loads"): "the launch, an argument of the controller's actor in Ray",
    ("runtime.task.child", "_loaded", "pickle.loads"): "shares of datasets, from the agent of the task",
    ("runtime.task.child", "run_task", "recv"): "the socket pair of a task's process and its agent",
    ("runtime.task.child", "_listen", "recv"): "the same",
    ("runtime.task.process", "_listen", "recv"): "the same, from the process that runs the user's job",
    ("training.parameter_server.sources", "load", "pickle.loads"): "left by the chief; its digest is checked",
    ("tune.search", "run", "ray.tune.Tuner.restore"): "--resume, asked for by name: Tune's own state",
}

LOADERS = frozenset(
    {
        *(f"{name}.{verb}" for name in ("pickle", "_pickle", "marshal") for verb in ("load", "loads")),
        *(f"{name}.{verb}" for name in ("cloudpickle", "ray.cloudpickle") for verb in ("load", "loads")),
        *(f"{name}.{verb}" for name in ("dill", "jsonpickle") for verb in ("load", "loads", "decode")),
        *("pickle.Unpickler", "joblib.load", "torch.load", "pandas.read_pickle", "shelve.open"),
        *("pickle._Unpickler", "_pickle.Unpickler", "ray.tune.Tuner.restore", "runpy.run_code"),
        *(
            "yaml.unsafe_load",
            "yaml.full_load",
            "yaml.load_all",
            "yaml.unsafe_load_all",
            "yaml.full_load_all",
        ),
        *("multiprocessing.connection.Client", "multiprocessing.connection.Listener"),
        *("numpy.lib.format.read_array", "numpy.fromregex"),
        *("eval", "exec", "__import__", "builtins.eval", "builtins.exec"),
    }
)
# Safe with one argument, which has to be there: its name and the names of its safe values.
GUARDED = {"numpy.load": ("allow_pickle", {"False"}), "yaml.load": ("Loader", {"Yaml12Loader"})}
_NAMED = {*LOADERS, *GUARDED}

# A program for another process; what only speaks of pickles imports nothing.
_PROGRAM = re.compile(r"import pickle\b.*pickle\.loads?\b", re.DOTALL)

# To parse the modules without any of them would take most of the time.
_WORDS = re.compile(
    rf"\b(?:recv|{'|'.join({name.rpartition('.')[2] for name in (*LOADERS, *GUARDED)})})\b|import pickle"
)


def loaders_in(source: str) -> Iterator[tuple[str, str]]:
    """Yields the function and the name of each loader that a module uses, called or handed on."""
    if not _WORDS.search(source):
        return
    tree = ast.parse(source)
    names = {
        alias.asname or alias.name.partition(".")[0]: alias.name
        if alias.asname
        else alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    } | {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    # `recv()` of sockets takes a size, and that of a pipe of multiprocessing, which unpickles, does not.
    yield from _used(tree, names, "", has_pipes="multiprocessing" in source)


def _used(
    node: ast.AST, names: dict[str, str], function: str, *, has_pipes: bool
) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        function = node.name
    if isinstance(node, ast.Call):
        called = _dotted(node.func, names)
        if called in GUARDED:
            argument, safe = GUARDED[called]
            given = {one.arg: ast.unparse(one.value) for one in node.keywords}
            if given.get(argument) not in safe:
                yield function, called
            node = ast.Tuple([*node.args, *node.keywords])  # its own name is told
        if has_pipes and called.endswith(".recv") and not node.args:
            yield function, "recv"
    elif isinstance(node, ast.Attribute | ast.Name) and (named := _dotted(node, names)) in {
        *LOADERS,
        *GUARDED,
    }:
        yield function, named
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _PROGRAM.search(node.value):
        yield function, "a program in a text"
    for child in ast.iter_child_nodes(node):
        yield from _used(child, names, function, has_pipes=has_pipes)


def _dotted(node: ast.AST, names: dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value, names)}.{node.attr}"
    return ""


def test_each_place_that_makes_objects_of_bytes_is_known() -> None:
    found = {
        (".".join(path.relative_to(PACKAGE).with_suffix("").parts), *place)
        for path in PACKAGE.rglob("*.py")
        for place in loaders_in(path.read_text())
    }
    assert found - KNOWN.keys() == set(), "say in KNOWN where the bytes come from, or keep them as JSON"
    assert KNOWN.keys() - found == set(), "is in KNOWN, and not in the package any more"


@pytest.mark.parametrize(
    ("source", "loader"),
    [
        ("import pickle\npickle.loads(b)", "pickle.loads"),
        ("import pickle as p\np.load(b)", "pickle.load"),
        ("from pickle import loads as decode\nlist(map(decode, b))", "pickle.loads"),
        ("from ray import cloudpickle\ncloudpickle.loads(b)", "ray.cloudpickle.loads"),
        ("import ray\nray.cloudpickle.loads(b)", "ray.cloudpickle.loads"),
        ("import numpy as np\nnp.load(b)", "numpy.load"),
        ("import numpy as np\nnp.load(b, allow_pickle=True)", "numpy.load"),
        ("import numpy as np\nlist(map(np.load, b))", "numpy.load"),
        ("import yaml\nyaml.load(b, Loader=yaml.Loader)", "yaml.load"),
        ("from multiprocessing.connection import Connection\nlink.recv()", "recv"),
        ("run('python', '-c', 'import pickle; pickle.load(f)')", "a program in a text"),
        ("eval(text)", "eval"),
    ],
)
def test_loader_is_found(source: str, loader: str) -> None:
    assert [name for _, name in loaders_in(source)] == [loader]


@pytest.mark.parametrize(
    "source",
    ["import numpy as np\nnp.load(b, allow_pickle=False)", "import json\njson.loads(b)", "socket.recv(4)"],
)
def test_what_reads_data_alone_is_no_loader(source: str) -> None:
    assert not list(loaders_in(source))
