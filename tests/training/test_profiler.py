"""Profiles of a task's steps: what is kept, what is refused, and that training does not notice."""

from __future__ import annotations

import dataclasses
import functools
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raydist.spec.tasks import TaskId
from raydist.storage import profile_mail
from raydist.storage.profile_mail import ProfileAnswer, ProfileRequest
from raydist.storage.run_storage import RunStorage, open_run
from tests.support.late import LateModule
from tests.support.processes import DISTRIBUTED, Cluster, run_function
from tests.support.profiles import events_of, steps_of

tf = LateModule("tensorflow")
profiler = LateModule("raydist.training.reporting.profiler")

TASK = TaskId.parse("worker/0")


@pytest.fixture(params=["folder", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> RunStorage:
    uri: str = str(tmp_path / "runs") if request.param == "folder" else request.getfixturevalue("s3_uri")
    return open_run(uri, run="digits-1")


@pytest.fixture
def folder(tmp_path: Path) -> RunStorage:
    return open_run(str(tmp_path / "runs"), run="digits-1")


@functools.cache
def multiply() -> Any:
    return tf.function(lambda value: tf.linalg.matmul(value, value))


class Task:
    """A task that trains: a profiler, and steps that multiply matrices."""

    def __init__(self, storage: RunStorage) -> None:
        self.storage = storage
        self.is_asked = threading.Event()
        self.notes: list[str] = []
        self.now_s = 0.0
        self.profiler = profiler.Profiler(
            storage, TASK, is_asked=self.is_asked, note=self.notes.append, clock=lambda: self.now_s
        )

    def ask(self, steps: int = 3, *, timeout_s: float = 60) -> str:
        name = profile_mail.write_request(
            self.storage, TASK, ProfileRequest(steps=steps, timeout_s=timeout_s)
        )
        self.is_asked.set()
        self.profiler.tick()
        return name

    def train(self, *steps: int) -> None:
        for step in steps:
            multiply()(tf.ones([8, 8]))
            self.now_s += 1.0
            self.profiler.stepped(step)

    def answer(self, name: str) -> ProfileAnswer | None:
        self.profiler.tick()
        return profile_mail.read_answer(self.storage, TASK, name)

    def files(self) -> list[str]:
        return [file.key for file in self.storage.list_files(self.storage.tensorboard)]


def is_profiling() -> bool:
    """Whether anybody does, in this process."""
    try:
        tf.profiler.experimental.start("")
    except tf.errors.AlreadyExistsError:
        return True
    tf.profiler.experimental.stop(save=False)
    return False


@pytest.mark.slow
def test_profile_has_the_steps_after_the_request(storage: RunStorage) -> None:
    task = Task(storage)
    task.train(1, 2)
    name = task.ask(steps=3)
    task.train(3, 4, 5, 5)
    assert task.answer(name) is None
    task.train(6, 7)
    answer = task.answer(name)
    assert answer.error is None
    assert (answer.first_step, answer.last_step, answer.calls, answer.seconds) == (4, 6, 3, 4.0)
    assert not answer.is_cut
    assert steps_of(storage, TASK) == [4, 5, 6]
    events = events_of(storage, TASK)
    # The fourth belongs to step 5, after which the task reported twice.
    assert sum(len(found) for name, found in events.items() if name.startswith("MatMul")) == 4
    [profile] = task.files()
    assert profile.startswith("digits-1/tensorboard/worker-0/plugins/profile/")
    assert answer.profile == storage.uri(profile.rpartition("/")[0])
    profile_mail.delete_mail(storage, TASK, name)
    assert storage.list_files(storage.profile_mail) == []
    assert not is_profiling()


def test_packed_steps_are_counted_as_they_are(folder: RunStorage) -> None:
    task = Task(folder)
    name = task.ask(steps=20)
    task.train(16, 32, 48, 64)
    answer = task.answer(name)
    assert (answer.first_step, answer.last_step, answer.calls) == (17, 48, 2)


def test_second_profile_at_once_is_refused_and_a_later_one_is_taken(folder: RunStorage) -> None:
    task = Task(folder)
    first = task.ask()
    waiting = task.answer(task.ask())
    task.train(1, 2)
    running = task.answer(task.ask())
    for refused in (waiting, running):
        assert refused.error.startswith("is being profiled already")
    task.train(3, 4)
    assert getattr(task.answer(first), "error", "") is None
    later = task.ask()
    task.train(5, 6, 7, 8)
    answer = task.answer(later)
    assert (answer.error, answer.first_step) == (None, 6)


def test_request_that_nobody_waits_for_any_more_is_forgotten(folder: RunStorage) -> None:
    task = Task(folder)
    task.ask(timeout_s=0.01)
    task.now_s = 40.0
    time.sleep(0.02)
    task.train(1, 2, 3, 4)
    assert task.files() == []
    abandoned = task.ask(steps=1)
    task.train(5, 6)
    profile_mail.delete_mail(folder, TASK, abandoned)
    assert task.answer(abandoned) is None  # the profile is kept, but there is nobody to tell
    assert len(task.files()) == 1
    [left] = folder.list_files(folder.profile_mail)  # of the one that was killed before it deleted it
    assert left.key.endswith(".request.json")


def test_profile_that_takes_too_long_makes_way_for_the_next_one(folder: RunStorage) -> None:
    task = Task(folder)
    name = task.ask(steps=1000, timeout_s=3.5)
    task.train(1, 2, 3)
    assert is_profiling()
    profile_mail.delete_mail(folder, TASK, name)  # as the command does when its time is up
    task.train(4, 5, 6)
    assert not is_profiling()
    later = task.ask(steps=1)
    task.train(7, 8)
    answer = task.answer(later)
    assert (answer.error, answer.first_step, len(task.files())) == (None, 8, 1)


def test_profiler_that_is_busy_costs_a_note_and_no_step(folder: RunStorage, tmp_path: Path) -> None:
    task = Task(folder)
    tf.profiler.experimental.start(str(tmp_path / "own"))
    try:
        name = task.ask()
        task.train(1, 2, 3)
    finally:
        tf.profiler.experimental.stop(save=False)
    answer = task.answer(name)
    sentence = "could not be profiled: TensorFlow's profiler failed with AlreadyExistsError: Another profiler"
    assert answer.error.startswith(sentence)
    assert [note.startswith(f"worker/0 {sentence}") for note in task.notes] == [True]
    assert task.files() == []


def test_profile_that_somebody_else_has_ended_costs_a_note_and_no_step(folder: RunStorage) -> None:
    task = Task(folder)
    name = task.ask(steps=2)
    task.train(1)
    tf.profiler.experimental.stop(save=False)
    task.train(2, 3, 4)
    answer = task.answer(name)
    assert answer is not None
    assert "UnavailableError" in (answer.error or "")
    assert len(task.notes) == 1


def test_training_that_ends_keeps_what_was_profiled(folder: RunStorage) -> None:
    task = Task(folder)
    name = task.ask(steps=20)
    task.train(1, 2, 3)
    task.profiler.close(has_failed=False)
    answer = task.answer(name)
    assert (answer.first_step, answer.last_step, answer.is_cut) == (2, 3, True)
    assert steps_of(folder, TASK)[:2] == [2, 3]
    assert not is_profiling()


@pytest.mark.parametrize(
    ("steps", "has_failed", "error"),
    [((), False, "ended before"), ((1,), False, "took no step"), ((1, 2), True, "failed before")],
)
def test_training_that_ends_before_a_step_or_fails_says_so_and_leaves_no_profile(
    folder: RunStorage, steps: tuple[int, ...], has_failed: bool, error: str
) -> None:
    task = Task(folder)
    name = task.ask()
    task.train(*steps)
    task.profiler.close(has_failed=has_failed)
    assert (task.answer(name).error or "").startswith(error)
    assert task.files() == []
    assert not is_profiling()


def test_storage_that_fails_is_tried_again(
    folder: RunStorage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = Task(folder)
    name = task.ask(steps=1)
    task.train(1, 2)
    (tmp_path / "runs").rename(tmp_path / "away")
    (tmp_path / "runs").write_text("no folder")
    task.profiler.tick()
    task.profiler.tick()
    assert len(caplog.records) == 1
    (tmp_path / "runs").unlink()
    (tmp_path / "away").rename(tmp_path / "runs")
    assert getattr(task.answer(name), "error", "") is None
    assert steps_of(folder, TASK)[0] == 2


@pytest.mark.exhaustive(
    "legacy", "multi_worker_mirrored", "parameter_server", covered_by="[mirrored-3]; e2e/test_profile.py"
)
@pytest.mark.slow
@pytest.mark.parametrize("keras", ["3", "legacy"])
@pytest.mark.parametrize("cluster", DISTRIBUTED, ids=lambda cluster: cluster.strategy)
def test_profiled_training_ends_with_the_same_weights(tmp_path: Path, cluster: Cluster, keras: str) -> None:
    cluster = dataclasses.replace(cluster, keras=keras)
    target = "tests.support.profiles:fit"
    [plain, *_] = run_function(target, cluster, storage=tmp_path / "plain", keras=keras, profiled_steps=0)
    tasks = run_function(target, cluster, storage=tmp_path / "profiled", keras=keras, profiled_steps=5)
    for task in tasks:
        np.testing.assert_array_equal(task.arrays["weights"], plain.arrays["weights"])
        [run] = (tmp_path / "profiled").iterdir()
        storage, task_id = open_run(str(run.parent), run=run.name), TaskId.parse(task.name)
        [name] = {name.partition(".")[0] for name in storage.list_names(storage.task_profile_mail(task_id))}
        answer = profile_mail.read_answer(storage, task_id, name)
        assert answer.error is None
        assert answer.last_step - answer.first_step + 1 >= 5
        marks = steps_of(storage, task_id)
        assert marks or keras == "legacy"
        assert marks == [] or keras == "legacy" or marks[0] == answer.first_step
