"""The folder that TensorBoard reads, and who gets an answer of TensorBoard's."""

from __future__ import annotations

from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from raydist.board import Mirror, running_tensorboard
from raydist.errors import StorageError
from raydist.storage.filesystem import Storage
from raydist.storage.run_storage import RunStorage


@pytest.fixture(params=["folder", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    uri: str = str(tmp_path / "runs") if request.param == "folder" else request.getfixturevalue("s3_uri")
    return Storage.open(uri)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mirror").mkdir()
    return tmp_path / "mirror"


def store(storage: Storage, run: str, seq: int = 0, content: bytes = b"x") -> None:
    opened = RunStorage(storage, run=run)
    opened.write_bytes(opened.tensorboard_segment("chief/train", attempt=0, seq=seq), content)


def shown(folder: Path) -> dict[str, bytes]:
    """Returns the files of each run."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for run in folder.iterdir()
        for path in run.rglob("*")
        if path.is_file()
    }


def test_folder_follows_the_runs(storage: Storage, folder: Path) -> None:
    now_s = [0.0]
    mirror = Mirror(storage, folder, clock=lambda: now_s[0])
    store(storage, "a")
    storage.write_text("b/run.json", "{}")  # has nothing for TensorBoard yet
    mirror.refresh()
    name = "chief/train/events.out.tfevents.000000-000000.raydist"
    assert shown(folder) == {f"a/{name}": b"x"}
    store(storage, "a", seq=1)
    store(storage, "b", content=b"y")
    now_s[0] = 5.0
    mirror.refresh()
    mirror.refresh()
    assert shown(folder) == {
        f"a/{name}": b"x",
        "a/chief/train/events.out.tfevents.000000-000001.raydist": b"x",
        f"b/{name}": b"y",
    }


def test_file_that_tensorboard_keeps_open_grows_in_its_place(storage: Storage, folder: Path) -> None:
    now_s = [0.0]
    mirror = Mirror(storage, folder, clock=lambda: now_s[0])
    key = RunStorage(storage, run="a").tensorboard_segment("chief/train", attempt=0, seq=0)
    storage.write_bytes(key, b"one ")
    mirror.refresh()
    with (folder / "a" / key.removeprefix("a/tensorboard/")).open() as reader:
        if not storage.append(key, b"two"):
            storage.write_bytes(key, b"one two")
        now_s[0] = 5.0
        mirror.refresh()
        assert reader.read() == "one two"


def test_profiles_and_event_files_of_callbacks_are_copies(storage: Storage, folder: Path) -> None:
    now_s = [0.0]
    mirror = Mirror(storage, folder, clock=lambda: now_s[0])
    store(storage, "a")
    mirror.refresh()
    storage.write_bytes("a/output/logs/train/events.out.tfevents.1.host.v2", b"of a callback")
    storage.write_bytes("a/output/logs/weights.txt", b"of the job")
    for task, content in (("worker-0", b"p"), ("worker-1", b"q")):
        storage.write_bytes(f"a/tensorboard/{task}/plugins/profile/2026_01_01/host.xplane.pb", content)
    store(storage, "a", seq=1)
    now_s[0] = 5.0
    mirror.refresh()
    mirror.refresh()
    name = "a/chief/train/events.out.tfevents.000000-00000"
    profiles = {
        "a/worker-0/plugins/profile/2026_01_01/host.xplane.pb": b"p",
        "a/worker-1/plugins/profile/2026_01_01/host.xplane.pb": b"q",
    }
    events = {f"{name}{seq}.raydist": b"x" for seq in (0, 1)}
    own = {"a/output/logs/train/events.out.tfevents.1.host.v2": b"of a callback"}
    assert shown(folder) == {**profiles, **events, **own}
    (folder / "a/worker-0/plugins/profile/2026_01_01/cache").write_text("of the plugin")
    mirror.refresh()
    assert storage.list_names("a/tensorboard/worker-0/plugins/profile/2026_01_01") == ["host.xplane.pb"]
    assert sorted(path.name for path in folder.iterdir()) == ["a"]


def test_only_the_runs_that_are_named_are_there(storage: Storage, folder: Path) -> None:
    for run in ("a", "b", "c"):
        store(storage, run)
    Mirror(storage, folder, runs=["a", "c"]).refresh()
    assert sorted(path.name for path in folder.iterdir()) == ["a", "c"]


def test_run_that_is_deleted_goes(storage: Storage, folder: Path) -> None:
    now_s = [0.0]
    store(storage, "a")
    mirror = Mirror(storage, folder, runs=["a"], clock=lambda: now_s[0])
    mirror.refresh()
    storage.delete("a")
    now_s[0] = 5.0
    mirror.refresh()
    assert list(folder.iterdir()) == []


def test_links_and_the_files_that_tensorboard_takes_paths_from_are_not_shown(
    tmp_path: Path, folder: Path
) -> None:
    storage, secret = Storage.open(str(tmp_path / "runs")), tmp_path / "victim"
    (secret / "2026").mkdir(parents=True)
    (secret / "2026" / "id_rsa").write_text("of the victim")
    store(storage, "a")
    board = tmp_path / "runs" / "a" / "tensorboard"
    (board / "projector_config.pbtxt").write_text(f'embeddings {{ metadata_path: "{secret}/2026/id_rsa" }}')
    (board / "events.out.tfevents.0").symlink_to(secret / "2026" / "id_rsa")
    (board / "worker-0/plugins").mkdir(parents=True)
    (board / "worker-0/plugins/profile").symlink_to(secret)
    (board / "worker-1/plugins/profile").mkdir(parents=True)
    (board / "worker-1/plugins/profile/2026").symlink_to(secret / "2026")
    Mirror(storage, folder).refresh()
    assert shown(folder) == {"a/chief/train/events.out.tfevents.000000-000000.raydist": b"x"}
    assert not any(path.is_symlink() for path in folder.rglob("*"))


def test_run_that_cannot_be_read_hides_no_other(
    tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = Storage.open(str(tmp_path / "runs"))
    store(storage, "a")
    (tmp_path / "runs" / "b").mkdir()
    (tmp_path / "runs" / "b" / "tensorboard").symlink_to("/etc")
    mirror = Mirror(storage, folder)
    for _ in range(2):
        mirror.refresh()
    assert shown(folder) == {"a/chief/train/events.out.tfevents.000000-000000.raydist": b"x"}
    [told] = caplog.messages
    assert f"{tmp_path}/runs/b/tensorboard: a symbolic link there leads out of" in told


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of TensorBoard's own modules
def test_tensorboard_answers_only_with_its_secret_and_its_own_name(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    (tmp_path / "runs").mkdir()
    storage = Storage.open(str(tmp_path / "runs"))
    with running_tensorboard(storage, runs=None, host="127.0.0.1", port=None) as url:
        server, _, secret = url.rpartition("/")

        def status(address: str, **headers: str) -> int:
            try:
                with urlopen(Request(address, headers=headers)) as answer:
                    return int(answer.status)
            except HTTPError as error:
                with error:
                    return error.code

        assert len(secret) >= 20
        assert server.startswith("http://127.0.0.1:")
        asked = [f"{url}/data/runs", f"{server}/data/runs", f"{server}/{secret[:-1]}/data/runs"]
        assert [status(each) for each in asked] == [200, 404, 404]
        assert status(f"{url}/data/runs", Host="evil.example") == 403


def test_quiet_run_is_looked_at_less_often(s3_uri: str, folder: Path) -> None:
    storage, now_s = Storage.open(s3_uri), [0.0]
    store(storage, "a")
    mirror = Mirror(storage, folder, clock=lambda: now_s[0])
    mirror.refresh()
    seen_at_s = []
    for seq, second in enumerate((5, 10, 400, 405, 10_000), start=1):
        now_s[0] = float(second)
        if second in (5, 405):
            store(storage, "a", seq=seq)
        before = len(shown(folder))
        mirror.refresh()
        seen_at_s += [second] * (len(shown(folder)) - before)
    assert seen_at_s == [5, 10_000]  # at 400 s it was put off, to 497 s


def test_storage_that_is_away_is_an_error(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "runs").write_text("no folder")
    with pytest.raises(StorageError, match="cannot list"):
        Mirror(Storage.open(str(tmp_path / "runs")), folder).refresh()
