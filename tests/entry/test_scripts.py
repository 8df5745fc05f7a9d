"""Which targets are scripts, and what of a notebook is Python."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from raydist.entry.definition import read_job
from raydist.entry.entry_point import ScriptExit, run_script
from raydist.entry.notebook import read_cells
from raydist.entry.request import read_request
from raydist.errors import JobFileError, SpecError
from raydist.spec.job import EntryPoint
from raydist.spec.settings.resolution import JobDefinition, resolve, typed_values

MAIN = "from absl import app\ndef main(_): ...\nif __name__ == '__main__':\n    app.run(main)\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = tmp_path / "package"
    package.mkdir()
    for name, source in {
        "main.py": MAIN,
        "legacy.py": "import os\nos.environ['TF_USE_LEGACY_KERAS'] = '1'\n",
        "job.py": "import raydist\n@raydist.job(params={'n': 1})\ndef train(ctx): ...\nprint('at import')\n",
        "imports.py": "import package.train\n",
        "package/__init__.py": "",
        "package/__main__.py": "print('as a program')\n",
        "package/train.py": MAIN,
        "guide.ipynb": notebook("!pip install x\nimport tensorflow as tf\ntf.constant(1)\n"),
    }.items():
        (tmp_path / name).write_text(source)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def notebook(*cells: str, **metadata: Any) -> str:
    code = [{"cell_type": "code", "source": cell} for cell in cells]
    return json.dumps({"cells": [{"cell_type": "markdown", "source": "text"}, *code], "metadata": metadata})


def read(folder: Path, target: str) -> JobDefinition:
    return read_job(target, cwd=folder)


@pytest.mark.parametrize(
    ("target", "entry_point", "name"),
    [
        ("main.py", EntryPoint(function="", file="main.py"), "main"),
        ("imports.py", EntryPoint(function="", file="imports.py"), "imports"),
        ("guide.ipynb", EntryPoint(function="", file="guide.ipynb"), "guide"),
        ("package.train", EntryPoint(function="", module="package.train"), "train"),
        ("-m package.train", EntryPoint(function="", module="package.train"), "train"),
        ("-m package", EntryPoint(function="", module="package"), "package"),
        ("-m json.tool", EntryPoint(function="", module="json.tool"), "tool"),
    ],
)
def test_program_without_a_job_is_a_script(
    folder: Path, target: str, entry_point: EntryPoint, name: str
) -> None:
    definition = read(folder, target)
    assert (definition.entry_point, definition.name, definition.defaults) == (entry_point, name, {})
    assert definition.entry_point.is_script
    assert str(entry_point) in (target, f"-m {target}")


def test_module_in_packages_without_init_files_is_found(folder: Path) -> None:
    (folder / "outer" / "inner").mkdir(parents=True)
    (folder / "outer" / "inner" / "train.py").write_text(MAIN)
    found = read(folder, "-m outer.inner.train")
    assert (found.entry_point.module, found.working_dir) == ("outer.inner.train", folder)
    with pytest.raises(JobFileError, match=r"^there is no module outer\.inner\.tain in "):
        read(folder, "-m outer.inner.tain")


def test_module_of_python_itself_ships_no_folder(folder: Path) -> None:
    assert read(folder, "-m json.tool").working_dir is None
    assert read(folder, "-m package").working_dir == folder


def test_job_is_a_job_whatever_else_its_file_does(folder: Path) -> None:
    assert read(folder, "job.py").entry_point == EntryPoint(file="job.py", function="train")
    assert read(folder, "legacy.py").source.legacy_keras_reason is not None


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("-m main.py", "-m is given 'main.py', which is not a module name; write -m package.module"),
        ("-m email", "the package email has no __main__.py; give a module in it: -m email.NAME"),
        ("guide.ipynb:train", "guide.ipynb is a notebook, which runs as a whole; drop :train"),
    ],
)
def test_target_that_is_none_is_refused(folder: Path, target: str, message: str) -> None:
    with pytest.raises(JobFileError) as raised:
        read(folder, target)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not a notebook of format 4: JSONDecodeError"),
        ('{"worksheets": []}', "not a notebook of format 4: KeyError: 'cells'"),
        (notebook("x = 1", kernelspec={"language": "julia"}), "written in julia; give a notebook in Python"),
        (notebook("x = 1\n", "x = (\n"), "n.ipynb, cell 2, line 1: '(' was never closed; correct"),
    ],
)
def test_notebook_that_cannot_run_is_refused(content: str, message: str) -> None:
    with pytest.raises(JobFileError) as raised:
        read_cells(content.encode(), shown="n.ipynb")
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("cell", "source", "left_out"),
    [
        ("%matplotlib inline\nx = 1\n", "pass\nx = 1\n", ("%matplotlib inline",)),
        ("if True:\n    !ls\nfiles = !ls\n", "if True:\n    pass\npass\n", ("!ls", "files = !ls")),
        ("%%time\nx = 1\n", "\nx = 1\n", ("%%time",)),
        ("\n%%writefile a.py\nx = 1\n", "\n\n\n", ("%%writefile a.py",)),
        ("help?\n", "pass\n", ("help?",)),
        # What looks like a magic, and is Python.
        ("x = (7\n  % 4)\ny = '''\n!no\n'''\n", "x = (7\n  % 4)\ny = '''\n!no\n'''\n", ()),
    ],
    ids=["line", "shell", "timed", "cell", "help", "python"],
)
def test_magics_are_left_out_and_lines_keep_their_numbers(
    cell: str, source: str, left_out: tuple[str, ...]
) -> None:
    [found] = read_cells(notebook(cell).encode(), shown="n.ipynb")
    assert (found.source, found.left_out) == (source, left_out)


def definition_of(entry_point: EntryPoint, **defaults: Any) -> JobDefinition:
    return JobDefinition(name="a", entry_point=entry_point, defaults=defaults)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"args": ["--epochs", "3"]},
            "args are '--epochs 3', but job.py:train is a job, which takes params (n); write -p KEY=VALUE in "
            "place of --, or submit a script",
        ),
        (
            {"run_on": "all"},
            "run_on is all, but job.py:train is a job, whose workers and ps serve its chief; drop --run-on, "
            "or submit a script",
        ),
        ({"args": "--epochs 3"}, "args is '--epochs 3'; write a list of texts, such as ['--epochs', '3']"),
        ({"args": [None]}, "args has None; write text, in quotes"),
    ],
)
def test_what_only_scripts_have_is_refused_for_a_job(overrides: dict[str, Any], message: str) -> None:
    definition = definition_of(EntryPoint(file="job.py", function="train"), params={"n": 1})
    with pytest.raises(SpecError) as raised:
        resolve(definition, overrides=typed_values(overrides), now=datetime(2026, 1, 1))
    assert str(raised.value) == message


def test_arguments_of_a_script_are_text(tmp_path: Path) -> None:
    definition = definition_of(EntryPoint(file="main.py", function=""))
    overrides = typed_values({"args": ["--n", 3, tmp_path], "params": {"any": 1}})
    job = resolve(definition, overrides=overrides, now=datetime(2026, 1, 1)).job
    assert (job.args, job.params) == (("--n", "3", str(tmp_path)), {"any": 1})


@pytest.mark.parametrize(
    ("exit", "message"),
    [
        ("3", "main.py ended with exit code 3"),
        ("'no data'", "main.py ended with exit code 1: no data"),
        ("True", "main.py ended with exit code 1"),
        ("0", None),
        ("", None),
    ],
)
def test_exit_code_of_a_script(tmp_path: Path, exit: str, message: str | None) -> None:
    (tmp_path / "main.py").write_text(f"import sys\nsys.exit({exit})\n")
    before = sys.argv, list(sys.path), sys.modules["__main__"]
    entry_point = EntryPoint(file="main.py", function="")

    def run() -> None:
        run_script(entry_point, args=("a",), working_dir=tmp_path)

    if message is None:
        run()
    else:
        with pytest.raises(ScriptExit) as raised:
            run()
        assert str(raised.value) == message
    assert (sys.argv, sys.path, sys.modules["__main__"]) == before


def test_traceback_of_a_notebook_shows_cell_and_line(tmp_path: Path) -> None:
    import traceback

    cells = ("def broken():\n    raise ValueError('in a cell')\n", "%time\nbroken()\n")
    (tmp_path / "n.ipynb").write_text(notebook(*cells))
    notes: list[str] = []
    run: Callable[[], None] = lambda: run_script(  # noqa: E731
        EntryPoint(file="n.ipynb", function=""), args=(), working_dir=tmp_path, note=notes.append
    )
    with pytest.raises(ValueError, match="in a cell") as raised:
        run()
    shown = "".join(traceback.format_exception(raised.value))
    assert 'File "n.ipynb, cell 2", line 2, in <module>\n    broken()' in shown
    assert "File \"n.ipynb, cell 1\", line 2, in broken\n    raise ValueError('in a cell')" in shown
    assert notes == ["left out of n.ipynb, as it is not Python: '%time' (cell 2)"]


@pytest.mark.parametrize("value", ["0", "1"])
def test_variable_of_the_shell_chooses_the_keras_of_a_script_that_leaves_it_open(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", value)
    script = tmp_path / "main.py"
    script.write_text("import tensorflow as tf\n")
    request = read_request(str(script), params=None, config=None, overrides={}, pickle=lambda value: b"")
    reason = request.source.legacy_keras_reason
    assert reason == ("TF_USE_LEGACY_KERAS is 1" if value == "1" else None)
