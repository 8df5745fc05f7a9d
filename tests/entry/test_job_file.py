from __future__ import annotations

import gc
import math
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from raydist.entry.definition import read_job
from raydist.entry.job_probe import probe_defaults
from raydist.errors import JobFileError, RaydistError, SpecError
from raydist.spec.job import CheckpointEvery, EntryPoint, RunOn, Strategy, WorkerRange
from raydist.spec.settings.resolution import JobDefinition

Read = Callable[..., JobDefinition]
RAISES = "raise RuntimeError('the job file was run')\n"
TWO_JOBS = "import raydist\n@raydist.job\ndef train(ctx): ...\n@raydist.job(workers=2)\ndef tune(ctx): ...\n"


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Writes a job file and reads the job in it."""

    def read(source: str, target: str = "jobs/a.py", **keywords: Any) -> JobDefinition:
        file = tmp_path / "jobs/a.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(source)
        return read_job(target, cwd=tmp_path, **keywords)

    return read


def error_of(call: Callable[[], object], kind: type[RaydistError] = JobFileError) -> str:
    with pytest.raises(kind) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("imports", "decorator", "defaults"),
    [
        ("import raydist", "@raydist.job", {}),
        ("import raydist", "@raydist.job()", {}),
        ("import raydist as rd", "@rd.job(ps=2)", {"ps": 2}),
        ("from raydist import job", "@job(ps=2)", {"ps": 2}),
        ("from raydist import TrainContext, job as j", "@j", {}),
        ("from raydist import *", "@job(ps=2)", {"ps": 2}),
        (
            "import raydist",
            "@raydist.job(workers='2:4', strategy='auto', params={'lr': -1e-3, 'layers': [1, None]})",
            {
                "workers": WorkerRange(minimum=2, maximum=4),
                "strategy": Strategy.AUTO,
                "params": {"lr": -1e-3, "layers": [1, None]},
            },
        ),
    ],
    ids=str,
)
def test_decorator_is_read_without_running_the_file(
    read: Read, tmp_path: Path, imports: str, decorator: str, defaults: dict[str, Any]
) -> None:
    assert read(f"{RAISES}{imports}\n{decorator}\ndef train(ctx): ...\n") == JobDefinition(
        name="a",
        entry_point=EntryPoint(file="a.py", function="train"),
        working_dir=tmp_path / "jobs",
        defaults=defaults,
        where="jobs/a.py, line 3",
    )


def test_decorator_of_another_package_is_no_job(read: Read) -> None:
    message = error_of(lambda: read("import dagster\n@dagster.job\ndef train(ctx): ...\n"))
    assert message == (
        "jobs/a.py has no job; decorate its train function with @raydist.job, or name one: jobs/a.py:train"
    )


def test_train_function_that_a_program_never_calls_lacks_its_decorator(read: Read) -> None:
    program = "x = load()\ndef build(size): ...\ndef train(ctx): build(1)\n"
    assert error_of(lambda: read(program)) == (
        "jobs/a.py has no job; decorate its train function with @raydist.job, or name one: jobs/a.py:train"
    )
    assert read(f"{program}train(None)\n").entry_point.is_script


def test_job_within_if_and_try_is_found_and_main_guard_is_not(read: Read) -> None:
    source = (
        "import raydist\ntry:\n    if True:\n        @raydist.job\n        def train(ctx): ...\n"
        "finally:\n    pass\nif __name__ == '__main__':\n    @raydist.job\n    def other(ctx): ...\n"
    )
    assert read(source).entry_point.function == "train"


def test_function_without_decorator_is_a_job_when_named(read: Read) -> None:
    job = read("def train(ctx): ...\n", "jobs/a.py:train")
    assert (job.entry_point, job.defaults) == (EntryPoint(file="a.py", function="train"), {})


def test_two_jobs_are_told_apart_by_name(read: Read) -> None:
    job = read(TWO_JOBS, "jobs/a.py:tune")
    assert (job.name, job.defaults) == ("a-tune", {"workers": WorkerRange(minimum=2, maximum=2)})


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (TWO_JOBS, "jobs/a.py", "jobs/a.py has 2 jobs; say which: jobs/a.py:train or jobs/a.py:tune"),
        (TWO_JOBS, "jobs/a.py:trian", "jobs/a.py has no function 'trian'; did you mean train?"),
        ("", "jobs/a.py", "jobs/a.py has no job; decorate its train function with @raydist.job"),
        ("", "jobs/a.py::train", "jobs/a.py::train has too many colons; write jobs/a.py:train"),
        ("", "jobs/a.py:", "'jobs/a.py:' names no function after ':'; write FILE.py:FUNCTION"),
        ("x = (\n", "jobs/a.py", "jobs/a.py, line 1: '(' was never closed; fix the syntax error there"),
        (
            "x = 1\nreturn\n",
            "jobs/a.py",
            "jobs/a.py, line 2: 'return' outside function; fix the syntax error there",
        ),
        ("", "jobs/b.py", "there is no job file jobs/b.py; did you mean a.py?"),
        (
            "",
            "jobs/zzzzzz.py",
            "there is no job file jobs/zzzzzz.py; give path/to/file.py or package.module:function",
        ),
        ("", "jobs", "jobs is a directory; give a .py file in it"),
        ("", "jobs/", "jobs/ is a directory; give a .py file in it"),
        ("", "/dev/null", "/dev/null is not a Python file; give a file that ends in .py or .ipynb"),
        ("", "", "the empty path is a directory; give a .py file in it"),
    ],
    ids=lambda text: text[:20],
)
def test_target_without_one_job_is_refused(read: Read, source: str, target: str, message: str) -> None:
    assert error_of(lambda: read(source, target)) == message


def test_threads_read_jobs_at_the_same_time(read: Read, tmp_path: Path) -> None:
    """Python 3.11 parses in one thread at a time, but goes on with another one in a garbage collection."""
    read(f"import raydist\n@raydist.job\ndef train(ctx): return [{'(1 + ctx) * 2, ' * 2000}]\n")

    def switch(phase: str, info: object) -> None:
        time.sleep(0.0001)

    gc.callbacks.append(switch)
    try:
        with ThreadPoolExecutor(4) as pool:
            found = pool.map(lambda _: read_job("jobs/a.py", cwd=tmp_path).name, range(8))
            names = [*found]
    finally:
        gc.callbacks.remove(switch)
    assert names == ["a"] * 8


def test_file_that_is_no_python_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    message = error_of(lambda: read_job("a.txt", cwd=tmp_path))
    assert message == "a.txt is not a Python file; give a file that ends in .py or .ipynb"


@pytest.mark.parametrize("source", [b"\x00", b"\xff\xfe", b"# coding: no-such\n"], ids=repr)
def test_file_that_holds_no_text_is_refused(tmp_path: Path, source: bytes) -> None:
    (tmp_path / "a.py").write_bytes(source)
    assert error_of(lambda: read_job("a.py", cwd=tmp_path)).startswith("a.py")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("wrokers=2", "jobs/a.py, line 3: there is no option 'wrokers'; did you mean workers?"),
        ("wrokers=N", "jobs/a.py, line 3: there is no option 'wrokers'; did you mean workers?"),
        ("workers=0", "jobs/a.py, line 3: workers is 0; need at least 1"),
        ("params=[1]", "jobs/a.py, line 3: params is [1]; write a mapping of names to values"),
        ("params={'a': b'x'}", "jobs/a.py, line 3: params.a is of type bytes; "),
    ],
)
def test_ill_argument_of_the_decorator_is_refused_with_its_line(
    read: Read, arguments: str, message: str
) -> None:
    source = f"import raydist\n@raydist.job(\n    {arguments},\n)\ndef train(ctx): ...\n"
    assert error_of(lambda: read(source), SpecError).startswith(message)


def test_arguments_that_are_no_literals_are_read_in_another_process(read: Read, tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/settings.py").write_text("EPOCHS = 7\n")
    job = read(
        "import os, raydist\nfrom raydist.spec.job import Strategy\nfrom settings import EPOCHS\n"
        "os.write(1, b'noise'); print('more')\n"
        "@raydist.job(strategy=Strategy.MIRRORED, workers='1:2', params={'epochs': EPOCHS, 'lr': 1e-3})\n"
        "def train(ctx): ...\n"
    )
    assert job.defaults == {
        "strategy": Strategy.MIRRORED,
        "workers": WorkerRange(minimum=1, maximum=2),
        "params": {"epochs": 7, "lr": 1e-3},
    }
    assert "settings" not in sys.modules


def test_arguments_that_are_no_literals_mean_what_literals_mean(read: Read) -> None:
    """They are typed from what is written, once, wherever the file is run."""
    roles = "{'feat': {'command': ['serve', '--port', '1'], 'cpus': 1, 'resources': {'ssd': 0.5}}}"
    others = "env={'A': None, 'B': 3}, timeout='2h', partitioner='min_size:1024', checkpoint_every='5m'"
    params = "params={'shape': (2, 3), 'text': '.inf', 'word': 'a'}"
    source = (
        f"import raydist\n@raydist.job(stall_timeout='30m', workers=2, roles={roles}, {others}, {params})\n"
        "def train(ctx): ...\n"
    )
    literal = read(source)
    found = read(source.replace("workers=2", "workers=1 + 1").replace("'a'", "float('inf')"))
    assert found.defaults["stall_timeout"] == 30 * 60
    assert found.defaults == {**literal.defaults, "params": {**literal.defaults["params"], "word": math.inf}}


def test_arguments_of_each_type_come_through_the_probe(read: Read) -> None:
    job = read(
        "import pathlib, raydist\nfrom raydist.spec.job import WorkerRange, CheckpointEvery\n"
        "from raydist.spec.job import RunOn\n"
        "@raydist.job(workers=WorkerRange(minimum=1, maximum=3), checkpoint_every=CheckpointEvery(),\n"
        "  env_file=pathlib.Path('a.env'), run_on=RunOn.ALL, keep=None)\n"
        "def train(ctx): ...\n"
    )
    assert job.defaults == {
        "workers": WorkerRange(minimum=1, maximum=3),
        "checkpoint_every": CheckpointEvery(),
        "env_file": "a.env",
        "run_on": RunOn.ALL,
        "keep": None,
    }


def test_job_made_by_a_call_is_read_in_another_process(read: Read) -> None:
    job = read("import raydist\ndef f(ctx): ...\ntrain = raydist.job(ps=1)(f)\n")
    assert (job.entry_point.function, job.defaults) == ("train", {"ps": 1})


def test_file_that_fails_in_the_probe_is_refused_with_its_last_line(read: Read) -> None:
    source = "import raydist\nN = 1 / 0\n@raydist.job(workers=N)\ndef train(ctx): ...\n"
    assert error_of(lambda: read(source)) == (
        "jobs/a.py:train failed when it was run for the job's defaults, which are not literals: "
        "ZeroDivisionError: division by zero"
    )


def test_file_that_hangs_in_the_probe_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import time\ntime.sleep(600)\n")
    entry_point = EntryPoint(file="a.py", function="train")
    message = error_of(
        lambda: probe_defaults(entry_point, working_dir=tmp_path, shown="a.py:train", timeout_s=1)
    )
    assert message.startswith(
        "a.py:train was run for the job's defaults, which are not literals, and took over 1 s"
    )


@pytest.mark.parametrize(
    ("source", "is_legacy"),
    [
        ("import tf_keras", True),
        ("import tf_keras.layers as L", True),
        ("from tf_keras import layers", True),
        ("def f():\n    from tf_keras.layers import Dense", True),
        ("import importlib\nk = importlib.import_module('tf_keras')", True),
        ("k = __import__('tf_keras.models')", True),
        ("from tensorflow import keras as tf_keras", False),
        ("from .tf_keras import x", False),
        ("name = 'tf_keras'", False),
        ("import keras", False),
    ],
)
def test_import_of_tf_keras_in_any_form_needs_it(read: Read, source: str, is_legacy: bool) -> None:
    reason = read(f"{source}\ndef train(ctx): ...\n", "jobs/a.py:train").source.legacy_keras_reason
    assert reason == ("the job's source imports tf_keras" if is_legacy else None)


def test_asked_working_dir_holds_the_file(read: Read, tmp_path: Path) -> None:
    job = read(TWO_JOBS, "jobs/a.py:train", working_dir=".")
    assert (job.working_dir, job.entry_point.file) == (tmp_path, "jobs/a.py")


def test_working_dir_of_the_decorator_starts_at_the_file(read: Read, tmp_path: Path) -> None:
    job = read("import raydist\n@raydist.job(working_dir='..')\ndef train(ctx): ...\n")
    assert (job.working_dir, job.entry_point.file) == (tmp_path, "jobs/a.py")


def test_working_dir_without_the_file_is_refused(read: Read, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    message = error_of(lambda: read(TWO_JOBS, "jobs/a.py:train", working_dir="other"), SpecError)
    assert message == (
        f"working_dir is '{tmp_path}/other', which does not hold the job {tmp_path}/jobs/a.py; "
        "give a folder above it"
    )


def test_missing_working_dir_is_refused(read: Read) -> None:
    message = error_of(lambda: read(TWO_JOBS, working_dir="nowhere"), SpecError)
    assert message == "working_dir is 'nowhere'; there is no such folder, give one that holds the job"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder with the package `pack`, which must not be imported."""
    for folder in ("pack", "pack/sub"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text(RAISES)
    (tmp_path / "pack/sub/jobs.py").write_text(f"{RAISES}{TWO_JOBS}")
    return tmp_path


def test_module_is_found_from_the_current_folder_without_import(package: Path) -> None:
    job = read_job("pack.sub.jobs:tune", cwd=package)
    assert job.entry_point == EntryPoint(module="pack.sub.jobs", function="tune")
    assert (job.working_dir, job.where) == (package, "pack.sub.jobs, line 5")


def test_module_is_found_on_sys_path(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(package))
    assert read_job("pack.sub.jobs:tune", cwd=Path("/")).working_dir == package


def test_installed_module_ships_nothing(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = package / "lib/site-packages"
    installed.parent.mkdir()
    (package / "pack").rename(package / "moved")
    installed.mkdir()
    (package / "moved").rename(installed / "pack")
    monkeypatch.syspath_prepend(str(installed))
    assert read_job("pack.sub.jobs:train", cwd=package).working_dir is None


@pytest.mark.parametrize("module", ["pack.sub.job", "pack.no.jobs", "nopack", "pack.sub.jobs.deeper"])
def test_missing_module_is_refused(package: Path, module: str) -> None:
    assert error_of(lambda: read_job(f"{module}:train", cwd=package)) == (
        f"there is no module {module} in {package} or on sys.path; "
        "give path/to/file.py or package.module:function"
    )


def test_module_in_another_working_dir_is_refused(package: Path) -> None:
    (package / "other").mkdir()
    message = error_of(lambda: read_job("pack.sub.jobs:tune", cwd=package, working_dir="pack"))
    assert message.startswith(f"there is no module pack.sub.jobs in {package}/pack or on sys.path")


def test_built_in_module_is_refused(tmp_path: Path) -> None:
    message = error_of(lambda: read_job("math:sqrt", cwd=tmp_path))
    assert message == "the module math has no Python source file; give a module with the train function"


def test_name_that_no_file_system_takes_is_refused(tmp_path: Path) -> None:
    message = error_of(lambda: read_job("x" * 5000 + ".py", cwd=tmp_path))
    assert message.startswith("there is no job file xxx")
