from __future__ import annotations

import os
from pathlib import Path

import pytest

from raydist.errors import StorageError
from raydist.runtime.host import task_files
from raydist.runtime.host.log_capture import LogTarget
from raydist.runtime.host.task_files import TaskFiles
from raydist.spec.tasks import TaskId
from raydist.storage.run_storage import RunStorage, open_run


@pytest.fixture(params=["folder", "s3"])
def storage_uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    uri: str = request.getfixturevalue("s3_uri") if request.param == "s3" else str(tmp_path / "my 'runs'")
    return uri


@pytest.fixture
def storage(storage_uri: str) -> RunStorage:
    return open_run(storage_uri, run="run")


def target(uri: str, task: str = "worker/0", *, attempt: int = 0) -> LogTarget:
    return LogTarget(storage_uri=uri, run="run", task=TaskId.parse(task), attempt=attempt)


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def read(storage: RunStorage, key: str = "run/output") -> dict[str, str]:
    found = storage.list_files(key)
    return {file.key.removeprefix(f"{key}/"): storage.read_text(file.key) for file in found}


def scratch(tmp_path: Path, name: str = "scratch") -> Path:
    (tmp_path / name / "code").mkdir(parents=True)
    return tmp_path / name


class TestOutput:
    @pytest.mark.slow
    def test_storage_gets_what_has_changed_and_loses_what_was_deleted(
        self, tmp_path: Path, storage_uri: str, storage: RunStorage
    ) -> None:
        files = TaskFiles(scratch(tmp_path), target(storage_uri), is_chief=True)
        write(files.output_dir, {"log.csv": "epoch", "ckpt/1": "old", "was-a-file": "x", "empty": ""})
        files.store_output()
        assert read(storage) == {"log.csv": "epoch", "ckpt/1": "old", "was-a-file": "x", "empty": ""}

        (files.output_dir / "ckpt" / "1").unlink()
        (files.output_dir / "was-a-file").unlink()
        write(files.output_dir, {"log.csv": "epoch,loss", "ckpt/2": "new", "was-a-file/inside": "y"})
        told: list[None] = []
        files.store_output(on_file=lambda: told.append(None))
        assert read(storage) == {
            "log.csv": "epoch,loss",
            "ckpt/2": "new",
            "was-a-file/inside": "y",
            "empty": "",
        }
        assert len(told) == 3

    def test_each_task_has_a_place_of_its_own_and_finds_it_again(
        self, tmp_path: Path, storage_uri: str, storage: RunStorage
    ) -> None:
        for task in ("worker/0", "worker/1"):
            files = TaskFiles(scratch(tmp_path, task), target(storage_uri, task), is_chief=task == "worker/0")
            write(files.output_dir, {"log.csv": task, "step-3/weights": task})
            files.store_output()
        storage.write_text(f"{storage.working_files}/model.keras", "model")
        storage.write_text(f"{storage.earlier_files}/old.keras", "old")
        assert set(read(storage)) == {
            *("log.csv", "step-3/weights", "working_dir/model.keras", "earlier_attempts/old.keras"),
            *("worker-1/log.csv", "worker-1/step-3/weights"),
        }
        for task in ("worker/0", "worker/1"):
            again = TaskFiles(
                scratch(tmp_path, f"{task}-again"),
                target(storage_uri, task, attempt=1),
                is_chief=task == "worker/0",
            )
            found = {path.name: path.read_text() for path in again.output_dir.rglob("*") if path.is_file()}
            assert found == {"log.csv": task, "weights": task}
            (again.output_dir / "log.csv").unlink()
            again.store_output()
        assert set(read(storage)) == {
            *("step-3/weights", "working_dir/model.keras", "earlier_attempts/old.keras"),
            "worker-1/step-3/weights",
        }

    def test_folder_is_not_made_unless_it_is_asked_for(self, tmp_path: Path) -> None:
        files = TaskFiles(scratch(tmp_path), target("s3://nowhere/runs"), is_chief=True)
        files.store_output()
        assert files.store_rest() is None

    def test_it_is_stored_while_the_task_goes_on(
        self,
        tmp_path: Path,
        storage_uri: str,
        storage: RunStorage,
        monkeypatch: pytest.MonkeyPatch,
        wait_until,
    ) -> None:
        monkeypatch.setattr(task_files, "STORE_INTERVAL_S", 0.05)
        storage = open_run(str(tmp_path / "runs"), run="run")
        files = TaskFiles(scratch(tmp_path), target(str(tmp_path / "runs")), is_chief=True)
        write(files.output_dir, {"log.csv": "epoch"})
        wait_until(lambda: read(storage) == {"log.csv": "epoch"})

    def test_storage_that_cannot_take_it_is_an_error(self, tmp_path: Path) -> None:
        files = TaskFiles(scratch(tmp_path), target(str(tmp_path / "runs")), is_chief=True)
        write(files.output_dir, {"log.csv": "epoch"})
        write(tmp_path, {"runs/run/output": "a file in the way"})
        with pytest.raises(StorageError, match=r"run/output"):
            files.store_output()


class TestWorkingFolder:
    def test_new_and_changed_files_of_the_chief_are_kept(
        self, tmp_path: Path, storage_uri: str, storage: RunStorage
    ) -> None:
        folder = scratch(tmp_path)
        code = folder / "code"
        write(code, {"job.py": "code", "config.yaml": "a: 1", "data/train.csv": "1,2"})
        files = TaskFiles(folder, target(storage_uri), is_chief=True)
        files.watch_working_folder(code)
        write(code, {"model.keras": "model", "config.yaml": "a: 22", "data/more.csv": "3,4"})
        write(code, {"__pycache__/job.pyc": "x", "sub/x.pyc": "x", ".git/HEAD": "x", "env/pyvenv.cfg": "x"})
        (code / "far").symlink_to(tmp_path)
        sentence = files.keep_working_files()
        assert read(storage, storage.working_files) == {
            "model.keras": "model",
            "config.yaml": "a: 22",
            "data/more.csv": "3,4",
        }
        assert sentence == (
            "the run keeps 3 files (13 B) that the job wrote into its working folder, in output/working_dir: "
            "data/ (1 file, 3 B), config.yaml, model.keras"
        )
        assert files.store_rest() == sentence

    def test_what_only_an_earlier_attempt_wrote_is_set_aside_and_named(
        self, tmp_path: Path, storage_uri: str, storage: RunStorage
    ) -> None:
        for attempt, written in enumerate(
            (
                {"log.csv": "0", "logs/events.0": "x", "later": "0"},
                {"log.csv": "1"},
                {"later": "2", "new": "2"},
            )
        ):
            folder = scratch(tmp_path, f"attempt-{attempt}")
            files = TaskFiles(folder, target(storage_uri, attempt=attempt), is_chief=True)
            files.watch_working_folder(folder / "code")
            write(folder / "code", written)
            sentence = files.keep_working_files()
            assert files.store_rest() == sentence
            assert read(storage, storage.working_files) == written
        assert read(storage, storage.earlier_files) == {"log.csv": "1", "logs/events.0": "x"}
        assert sentence.endswith(
            "; output/earlier_attempts holds what only earlier attempts wrote: log.csv, logs/ (1 file, 1 B)"
        )

    def test_other_tasks_keep_none(self, tmp_path: Path) -> None:
        folder = scratch(tmp_path)
        files = TaskFiles(folder, target(str(tmp_path / "runs"), "worker/1"), is_chief=False)
        files.watch_working_folder(folder / "code")
        write(folder / "code", {"model.keras": "model"})
        assert files.keep_working_files() is None
        assert not (tmp_path / "runs").exists()

    def test_job_that_wrote_nothing_has_no_note(self, tmp_path: Path) -> None:
        folder = scratch(tmp_path)
        write(folder / "code", {"job.py": "code"})
        files = TaskFiles(folder, target(str(tmp_path / "runs")), is_chief=True)
        files.watch_working_folder(folder / "code")
        assert files.keep_working_files() is None

    @pytest.mark.parametrize(("num_bytes", "num_files"), [(10, 1000), (100, 4)], ids=["bytes", "files"])
    def test_what_is_more_than_the_limit_is_left_out_whole_and_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_bytes: int, num_files: int
    ) -> None:
        monkeypatch.setattr(task_files, "MAX_WORKING_BYTES", num_bytes)
        monkeypatch.setattr(task_files, "MAX_WORKING_FILES", num_files)
        folder = scratch(tmp_path)
        storage = open_run(str(tmp_path / "runs"), run="run")
        files = TaskFiles(folder, target(str(tmp_path / "runs")), is_chief=True)
        files.watch_working_folder(folder / "code")
        write(folder / "code", {"log.csv": "epoch", **{f"images/{index}": "four" for index in range(4)}})
        sentence = files.keep_working_files()
        assert read(storage, storage.working_files) == {"log.csv": "epoch"}
        assert sentence.startswith(
            "the run keeps 1 file (5 B) that the job wrote into its working folder, in output/working_dir: "
            "log"
        )
        assert "the run does not keep images/ (4 files, 16 B) of the working folder" in sentence

    def test_storage_that_cannot_take_them_is_a_note(self, tmp_path: Path) -> None:
        folder = scratch(tmp_path)
        files = TaskFiles(folder, target(str(tmp_path / "runs")), is_chief=True)
        files.watch_working_folder(folder / "code")
        write(folder / "code", {"log.csv": "epoch"})
        write(tmp_path, {"runs/run/output": "a file in the way"})
        sentence = files.keep_working_files()
        assert sentence.startswith("what the job has written into its working folder is not kept: cannot")


def test_files_of_a_dead_process_are_stored_as_far_as_they_were_not(
    tmp_path: Path, storage_uri: str, storage: RunStorage
) -> None:
    folder = scratch(tmp_path)
    files = TaskFiles(folder, target(storage_uri), is_chief=True)
    files.watch_working_folder(folder / "code")
    write(files.output_dir, {"log.csv": "epoch", "old": "1"})
    files.store_output()
    storage.write_text("run/output/log.csv", "not written again")
    (files.output_dir / "old").unlink()
    write(files.output_dir, {"new": "2"})
    write(folder / "code", {"model.keras": "model"})

    left = TaskFiles.left_in(folder, target(storage_uri))
    left.store_rest()
    assert read(storage) == {"log.csv": "not written again", "new": "2", "working_dir/model.keras": "model"}


@pytest.mark.parametrize("state", [None, b"{half"], ids=["none", "damaged"])
def test_process_that_had_none_leaves_none(tmp_path: Path, state: bytes | None) -> None:
    folder = scratch(tmp_path)
    if state is not None:
        (folder / "task_files.json").write_bytes(state)
    assert TaskFiles.left_in(folder, target(str(tmp_path))) is None


def test_name_that_is_not_utf8_does_not_keep_the_others_from_being_stored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = TaskFiles(scratch(tmp_path), target(str(tmp_path / "runs")), is_chief=True)
    write(files.output_dir, {"log.csv": "epoch"})
    Path(os.fsdecode(os.fsencode(files.output_dir) + b"/\xff")).write_text("x")
    files.store_output()
    assert set(read(open_run(str(tmp_path / "runs"), run="run"))) == {"log.csv"}
    assert "'\\udcff' is not kept: its name is not UTF-8" in caplog.messages
