"""Options that are gone: wherever they are written, a sentence says what replaces them."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import raydist as package
from raydist.cli.commands import rerun
from raydist.cli.kept_job import kept_settings, submit_line
from raydist.errors import SpecError
from raydist.planning.describe import describe_job
from raydist.spec.settings.options import OPTIONS
from raydist.spec.settings.removed import OF_ROLES, REMOVED
from raydist.spec.settings.resolution import typed_values
from raydist.storage.run_record import RunRecordStore
from raydist.storage.run_storage import open_run
from tests.cli.conftest import Run
from tests.support.records import make_record

SET = "other"  # the value that an older run had set; nothing reads it any more


@pytest.mark.parametrize("name", REMOVED)
@pytest.mark.parametrize("place", ["command line", "config", "decorator", "Python"])
def test_removed_option_is_refused_with_what_replaces_it(
    name: str, place: str, raydist: Run, job_file: Callable[..., Path]
) -> None:
    job_file(f"@raydist.job({name}=1)" if place == "decorator" else "@raydist.job")
    sentence = f"option '{name}' was removed; {REMOVED[name].remedy}"
    assert name not in {option.name for option in OPTIONS}
    if place == "Python":
        with pytest.raises(SpecError) as caught:
            package.plan("job.py", address="local", **{name: 1})
        assert str(caught.value) == sentence
        return
    Path("config.yaml").write_text(f"{name}: 1\n" if place == "config" else "")
    given = [f"--{name.replace('_', '-')}"] if place == "command line" else []
    code, out, err = raydist("plan", "job.py", "-c", "config.yaml", "--address", "local", *given)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert sentence in err


@pytest.mark.parametrize("name", REMOVED)
def test_older_run_that_had_set_it_is_shown_and_continued_with_a_note(
    name: str, raydist: Run, job_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = describe_job(package.plan(str(job_file()), address="local", name="old").job)
    defaults = {one: removed.default for one, removed in REMOVED.items()}
    for run, value in (("old", SET), ("plain", REMOVED[name].default)):
        storage = open_run("raydist_runs", run=run)
        kept = {**spec, "name": run, **defaults, name: value}
        RunRecordStore(storage).replace(make_record(storage, state="FAILED", attempts=1, spec=kept))
    given: list[Any] = []
    monkeypatch.setattr(rerun.running, "run_job", lambda *_, **options: given.append(options) or 0)
    for arguments in (["list"], ["status", "old"], ["status", "old", "--all"], ["diff", "old", "plain"]):
        code, out, err = raydist(*arguments)
        assert (code, err) == (0, "")
        assert "old" in out
    notes = []
    for run in ("old", "plain"):
        code, _, err = raydist("resume", run)
        assert code == 0
        assert name not in given[-1]["config"]
        notes.append(err)
    assert f"the run had {name} {SET}" in notes[0]
    assert REMOVED[name].remedy in notes[0]
    assert notes[1] == ""


AMOUNTS = {"cpus": 4, "memory": "8GiB", "gpus": 1, "resources": {"ssd": 1}}


@pytest.mark.parametrize("name", OF_ROLES)
@pytest.mark.parametrize("place", ["command line", "config", "decorator", "Python"])
def test_amount_of_a_role_is_taken_and_the_line_to_write_is_told(
    name: str, place: str, raydist: Run, job_file: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    role, amount = OF_ROLES[name]
    value = AMOUNTS[amount]
    Path("config.yaml").write_text("")

    def plan(*given: str, job: str = "") -> tuple[int, str, str]:
        job_file(f"@raydist.job({job})")
        caplog.clear()
        code, out, err = raydist("plan", "job.py", "-c", "config.yaml", "--address", "local", *given)
        return code, out, err + caplog.text

    if place == "Python":
        with caplog.at_level("WARNING"):
            old = typed_values({name: value})
        line = caplog.records[0].getMessage().partition(" is now written ")[2]
        assert old == typed_values(eval(f"dict({line})"))
        return
    if place == "command line":
        flag = f"--{name.replace('_', '-')}"
        old = plan(flag, "ssd=1" if amount == "resources" else str(value))
    elif place == "config":
        Path("config.yaml").write_text(yaml.safe_dump({name: value}))
        old = plan()
    else:
        old = plan(job=f"{name}={value!r}")
    line = old[2].partition(" is now written ")[2].splitlines()[0]
    assert role in line
    if place == "config":
        Path("config.yaml").write_text(line)
    words = shlex.split(line) if place == "command line" else []
    new = plan(*words, job=line if place == "decorator" else "")
    assert new[:2] == old[:2]
    assert new[0] in (0, 2, 3), line  # a machine without GPUs, or a run without an evaluator
    assert "now written" not in new[2]


def test_amounts_of_several_roles_are_one_line(
    raydist: Run, job_file: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    job_file()
    Path("config.yaml").write_text(
        "cpus_per_ps: 2\nmemory_per_ps: 8GiB\nresources: {ps: {cpus: 1}, worker: {cpus: 3}}\n"
    )
    code, _, _ = raydist(
        *("plan", "job.py", "-c", "config.yaml", "--address", "local", "--json"),
        *("--cpus-per-chief=2", "--resources-per-worker", "a=1", "--workers", "2"),
    )
    assert code in (0, 3)
    assert (
        "config.yaml: cpus_per_ps, memory_per_ps are now written "
        'resources: {ps: {cpus: 1, memory: "8GiB"}, worker: {cpus: 3}}'
    ) in caplog.text
    raydist("plan", "job.py", "--cpus-per-ps=2", "--resources-per-worker", "a=1")
    told = "--cpus-per-ps, --resources-per-worker are now written --cpus ps=2 --resources worker=a:1"
    assert told in caplog.text
    config = typed_values({"cpus_per_ps": 2, "resources": {"ps": {"cpus": 1}, "worker": {"cpus": 3}}})
    assert config["resources"] == {"ps": {"cpus": 1.0}, "worker": {"cpus": 3.0}}


def test_amount_that_only_a_run_of_the_file_tells_is_taken(
    raydist: Run, job_file: Callable[..., Path]
) -> None:
    job_file("@raydist.job(cpus_per_worker=int('2'))")
    code, out, _ = raydist("plan", "job.py", "--address", "local", "--json")
    assert code == 0
    assert '"cpus": 2.0' in out


def test_older_run_with_amounts_of_roles_is_shown_and_continued(
    raydist: Run, job_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = describe_job(package.plan(str(job_file()), address="local", name="old").job)
    del spec["resources"]
    unset = {"cpus": 1.0, "memory": None, "gpus": None, "resources": {}}
    spec.update({name: unset[amount] for name, (_, amount) in OF_ROLES.items()} | {"gpus_per_evaluator": 0})
    spec.update({"cpus_per_worker": 2.0, "memory_per_ps": 1 << 30, "resources_per_worker": {"ssd": 1.0}})
    for run, kept in (("old", spec), ("new", kept_settings({**spec, "cpus_per_worker": 1.0}))):
        storage = open_run("raydist_runs", run=run)
        RunRecordStore(storage).replace(make_record(storage, state="FAILED", attempts=1, spec=kept))
    given: list[Any] = []
    monkeypatch.setattr(rerun.running, "run_job", lambda *_, **options: given.append(options) or 0)
    code, _, err = raydist("resume", "old", "--cpus", "ps=3")
    assert (code, err) == (0, "")
    kept = given[-1]["config"]
    assert kept["resources"]["worker"] == {**unset, "cpus": 2.0, "resources": {"ssd": 1.0}}
    assert kept["resources"]["ps"]["memory"] == 1 << 30
    assert given[-1]["resources"] == {"ps": {"cpus": "3"}}
    _, out, _ = raydist("status", "old", "--all")
    assert "worker.cpus" in out
    assert "chief.cpus" not in out
    _, out, _ = raydist("diff", "old", "new")
    assert [line.split() for line in out.splitlines() if "worker.cpus" in line] == [
        ["options", "worker.cpus", "2", "1"]
    ]
    words = " --cpus worker=2 --memory ps=1073741824 --resources worker=ssd:1"
    assert words in submit_line("job.py", kept_settings(spec), defaults={})
