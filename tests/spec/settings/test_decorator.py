from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import cloudpickle
import pytest

import raydist
from raydist.entry.definition import define_from_object
from raydist.entry.entry_point import load_function
from raydist.errors import JobFileError, SpecError
from raydist.spec.job import EntryPoint, Strategy
from raydist.spec.settings.decorator import Job
from raydist.spec.settings.resolution import JobDefinition
from tests.spec import importable_jobs

ROOT = Path(__file__).parents[3]


def define(job: object, working_dir: str | None = None) -> JobDefinition:
    return define_from_object(job, pickle=cloudpickle.dumps, working_dir=working_dir)


def test_job_is_called_and_shown_as_its_function() -> None:
    job = importable_jobs.train
    assert job("here") == "trained here"
    assert (job.name, job.__doc__, job.defaults) == ("train", "Trains.", {"ps": 1, "params": {"lr": 1e-3}})


def test_decorator_without_parentheses_has_no_defaults() -> None:
    @raydist.job
    def train(ctx: object) -> None: ...

    assert isinstance(train, Job)
    assert train.defaults == {}


def test_job_survives_cloudpickle() -> None:
    @raydist.job(strategy="mirrored")
    def double(value: int) -> int:
        return 2 * value

    copy = cloudpickle.loads(cloudpickle.dumps(double))
    assert (copy(21), copy.defaults) == (42, {"strategy": Strategy.MIRRORED})


def test_unknown_keyword_is_refused_when_decorating() -> None:
    with pytest.raises(
        SpecError, match=r"test_decorator\.py, line \d+: there is no option 'worker'; did you"
    ):
        raydist.job(worker=2)


def test_decorating_what_is_no_function_is_refused() -> None:
    with pytest.raises(SpecError, match=r"^@raydist\.job is given 2; use @raydist\.job or"):
        raydist.job(2)  # type: ignore[call-overload]


def test_job_of_an_importable_module_travels_by_name() -> None:
    assert define(importable_jobs.train) == JobDefinition(
        name="importable_jobs",
        entry_point=EntryPoint(module="tests.spec.importable_jobs", function="train"),
        working_dir=ROOT,
        defaults={"ps": 1, "params": {"lr": 1e-3}},
        where="the job train",
    )


def test_plain_function_travels_by_name_without_defaults() -> None:
    definition = define(importable_jobs.plain)
    assert (definition.entry_point.function, definition.defaults) == ("plain", {})


def test_closure_is_pickled_and_its_modules_root_travels() -> None:
    definition = define(importable_jobs.make_closure(7))
    assert definition.working_dir == ROOT
    assert load_function(definition.entry_point, working_dir=None)(None) == 7


def test_partial_is_named_and_travels_as_its_function() -> None:
    definition = define(functools.partial(importable_jobs.make_closure(7)))
    assert (definition.name, definition.working_dir) == ("importable_jobs", ROOT)
    assert load_function(definition.entry_point, working_dir=None)(None) == 7


def test_asked_working_dir_that_cannot_import_the_module_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=f"but the module .* lies in {ROOT}; give that folder"):
        define(importable_jobs.train, working_dir=str(tmp_path))


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(JobFileError, match=r"^the job is 3; give a function"):
        define(3)


def test_job_of_a_script_is_pickled_and_the_scripts_folder_travels(tmp_path: Path) -> None:
    script = tmp_path / "my_script.py"
    script.write_text(
        "import cloudpickle, raydist\n"
        "from raydist.entry.definition import define_from_object\n"
        "@raydist.job(ps=2)\n"
        "def train(ctx):\n"
        "    import tf_keras\n"
        "    return 5\n"
        "d = define_from_object(train, pickle=cloudpickle.dumps)\n"
        "print(d.name, d.working_dir, d.defaults, d.source.legacy_keras_reason, d.entry_point.module)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == f"my_script {tmp_path} {{'ps': 2}} the job's source imports tf_keras None\n"


def test_entry_point_of_a_file_loads_the_function_without_its_job(tmp_path: Path) -> None:
    (tmp_path / "random.py").write_text("import raydist\n@raydist.job\ndef train(ctx): return __name__\n")
    function = load_function(EntryPoint(file="random.py", function="train"), working_dir=tmp_path)
    import random

    assert (function(None), hasattr(random, "randint")) == ("raydist_job_random", True)


def test_job_file_below_the_working_dir_imports_its_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", sys.path[:])
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "neighbour_of_job.py").write_text("answer = 7\n")
    (tmp_path / "jobs" / "below_job.py").write_text(
        "from neighbour_of_job import answer\ndef train(ctx): return answer\n"
    )
    function = load_function(EntryPoint(file="jobs/below_job.py", function="train"), working_dir=tmp_path)
    assert function(None) == 7


def test_entry_point_without_the_function_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty_job.py").write_text("")
    with pytest.raises(JobFileError, match=r"empty_job\.py:train does not exist once the file has run"):
        load_function(EntryPoint(file="empty_job.py", function="train"), working_dir=tmp_path)


def test_import_of_raydist_and_reading_a_job_load_neither_ray_nor_tensorflow_nor_yaml() -> None:
    code = "import raydist, raydist.entry.definition, sys; raydist.job; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert {"ray", "tensorflow", "yaml", "numpy"} & set(done.stdout.split()) == set()
