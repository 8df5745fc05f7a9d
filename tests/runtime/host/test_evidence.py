"""What a host tells of itself: its git commit, what it is made of, and what is installed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import pytest

from raydist.runtime.host.git import GitQuestion, GitState
from raydist.runtime.host.hardware import read_machine
from raydist.runtime.host.software import package_versions


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.email=a@b", "-c", "user.name=n")
    command = ("git", "-C", str(folder), *identity, *arguments)
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "re po"
    (folder / "jobs").mkdir(parents=True)
    (folder / "jobs/job.py").write_text("x = 1\n")
    git(folder, "init", "-q", "-b", "trunk")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "one")
    return folder


def state_of(folder: Path, *, timeout_s: float = 20.0) -> GitState | None:
    return GitQuestion.ask(str(folder)).answer(timeout_s=timeout_s)


def test_commit_and_branch_of_a_folder_are_found(repository: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    assert state_of(repository / "jobs") == GitState(commit=commit, branch="trunk", is_dirty=False)


def test_changed_and_new_files_make_it_dirty_and_run_folders_do_not(repository: Path) -> None:
    for name in ("raydist_runs/first/run.json", "jobs/__pycache__/job.pyc"):
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text("x")
    state = state_of(repository)
    assert not state.is_dirty
    (repository / "jobs/new.py").write_text("")
    state = state_of(repository)
    assert state.is_dirty


def test_detached_head_has_no_branch(repository: Path) -> None:
    git(repository, "checkout", "-q", "--detach")
    state = state_of(repository)
    assert state.branch is None


def test_folder_without_a_repository_or_a_commit_has_no_state(tmp_path: Path) -> None:
    assert state_of(tmp_path) is None
    git(tmp_path, "init", "-q")
    assert state_of(tmp_path) is None


def test_machine_without_git_has_no_state(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(repository))
    assert state_of(repository) is None


def test_hooks_are_not_run(repository: Path) -> None:
    hook = repository / "hook.sh"
    hook.write_text(f"#!/bin/sh\ntouch '{repository}/ran'\n")
    hook.chmod(0o755)
    git(repository, "config", "core.fsmonitor", f"'{hook}'")
    assert state_of(repository) is not None
    assert not (repository / "ran").exists()


def test_git_that_hangs_is_ended(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    slow = tmp_path / "bin/git"
    slow.write_text(f"#!{sys.executable}\nimport time; time.sleep(60)\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    begun_s = time.monotonic()
    assert state_of(repository, timeout_s=0.2) is None
    assert time.monotonic() - begun_s < 20


def test_repository_of_a_hook_that_runs_us_is_not_taken_for_ours(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    assert state_of(repository) is not None


def test_machine_is_read_from_proc(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Some CPU @ 2GHz\n")
    (tmp_path / "meminfo").write_text("MemTotal:       16316412 kB\nMemFree: 1 kB\n")
    for index in (0, 1):
        folder = tmp_path / f"driver/nvidia/gpus/0000:0{index}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text("Model: \t\t NVIDIA A100\nIRQ: 1\n")
    machine = read_machine(tmp_path)
    assert (machine.cpu, machine.memory_bytes) == ("Some CPU @ 2GHz", 16 * 2**30)
    assert machine.gpus == ("NVIDIA A100", "NVIDIA A100")


def test_host_that_tells_nothing_has_a_machine_too(tmp_path: Path) -> None:
    machine = read_machine(tmp_path)
    assert (machine.cpu, machine.memory_bytes, machine.gpus) == (None, None, ())
    assert machine.system.startswith("Linux ")


def test_versions_are_those_that_the_metadata_has() -> None:
    found = package_versions()
    for name in ("tensorflow", "keras", "tf-keras", "ray", "raydist", "numpy"):
        assert found[name] == metadata.version(name)
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    named = {
        (one.name.lower().replace("_", "-").replace(".", "-"), one.version)
        for one in metadata.distributions()
    }
    assert set(found.items()) >= named


def test_first_folder_of_the_path_wins(tmp_path: Path) -> None:
    for place, name in (("a", "Some_Pkg-2.0.dist-info"), ("b", "some.pkg-1.0-py3.11.egg-info")):
        (tmp_path / place / name).mkdir(parents=True)
    path = [str(tmp_path / "none"), str(tmp_path / "a"), str(tmp_path / "b")]
    assert package_versions(path)["some-pkg"] == "2.0"
    assert package_versions(path[2:])["some-pkg"] == "1.0"
