"""Nothing committed is lost, and nothing half-written or damaged is read."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from raydist.errors import CheckpointError, StorageError
from raydist.storage.checkpoint_marker import STATE_FILE, decode_state, encode_state
from raydist.storage.checkpoints import CheckpointStore
from raydist.storage.filesystem import Storage
from raydist.storage.run_storage import RunStorage

FILES = {"optimizer.npz": b"momenta" * 100, STATE_FILE: b'{"epoch": 1}', "weights.npz": b"weights" * 1000}


@pytest.fixture
def store(local_storage: RunStorage) -> CheckpointStore:
    return CheckpointStore(local_storage)


def _names(store: CheckpointStore) -> list[str]:
    return [f"{checkpoint.step}-a{checkpoint.attempt}" for checkpoint in store.committed()]


def test_committed_files_and_info_are_read_back(storage: RunStorage, tmp_path: Path) -> None:
    store = CheckpointStore(storage)
    big = tmp_path / "big.npz"
    big.write_bytes(bytes(range(256)) * 50_000)
    store.commit(step=10, attempt=2, files={"big.npz": big, **FILES}, info={"epoch": 1, "loss": math.inf})
    (checkpoint,) = store.committed()
    assert (checkpoint.step, checkpoint.attempt, checkpoint.info) == (10, 2, {"epoch": 1, "loss": math.inf})
    assert checkpoint.uri == storage.uri("first/checkpoints/step-10-a2")
    assert store.read(checkpoint) == {"big.npz": big.read_bytes(), **FILES}


def test_fetched_files_equal_the_committed(storage: RunStorage, tmp_path: Path) -> None:
    store = CheckpointStore(storage)
    checkpoint = store.commit(step=1, attempt=0, files={"sub/a.bin": b"nested", **FILES})
    store.fetch(checkpoint, tmp_path / "new" / "folder")
    fetched = {name: (tmp_path / "new" / "folder" / name).read_bytes() for name in ("sub/a.bin", *FILES)}
    assert fetched == {"sub/a.bin": b"nested", **FILES}


def test_committed_is_highest_step_first_then_highest_attempt(store: CheckpointStore) -> None:
    for step, attempt in ((9, 0), (10, 0), (100, 0), (10, 2), (10, 10)):
        store.commit(step=step, attempt=attempt, files=FILES)
    assert _names(store) == ["100-a0", "10-a10", "10-a2", "10-a0", "9-a0"]


def test_run_without_checkpoints_has_no_restore_point(storage: RunStorage) -> None:
    store = CheckpointStore(storage)
    assert store.committed() == []
    assert store.latest_whole().checkpoint is None
    store.prune(keep=1)


def test_step_that_is_committed_already_is_left_as_it_is(store: CheckpointStore) -> None:
    store.commit(step=1, attempt=0, files=FILES, info={"epoch": 1})
    again = store.commit(step=1, attempt=0, files={"other": b"content"}, info={"epoch": 2})
    assert again.info == {"epoch": 1}
    assert store.read(again) == FILES


def test_numpy_numbers_in_info_become_json_numbers(store: CheckpointStore) -> None:
    info = {"accuracy": np.float32(0.5), "epoch": np.int64(3), "by_epoch": {1: 0.25}}
    assert store.commit(step=1, attempt=0, files={}, info=info).info == {
        "accuracy": 0.5,
        "epoch": 3,
        "by_epoch": {"1": 0.25},
    }


def test_state_comes_back_as_it_was() -> None:
    state = {"epoch": np.int64(3), "best": math.inf, "history": {"loss": [0.1, 0.2]}, "name": "ünï"}
    assert decode_state(encode_state(state)) == {**state, "epoch": 3}


def test_state_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(TypeError, match="ndarray"):
        encode_state({"weights": np.zeros(3)})


@pytest.mark.parametrize("num_files", range(len(FILES) + 1))
def test_commit_cut_off_after_any_file_is_never_seen(
    store: CheckpointStore, local_storage: RunStorage, num_files: int
) -> None:
    store.commit(step=10, attempt=0, files=FILES)
    for name, content in sorted(FILES.items())[:num_files]:
        local_storage.write_bytes(f"{local_storage.checkpoint(step=20, attempt=0)}/{name}", content)
    assert _names(store) == ["10-a0"]
    restore_point = store.latest_whole()
    assert (restore_point.checkpoint.step, restore_point.damaged) == (10, ())


Damage = Callable[[Storage, str], None]


def _flip(position: float) -> Damage:
    """Flips a bit of the byte at that part of the file, from 0 to 1."""

    def damage(storage: Storage, key: str) -> None:
        content = bytearray(storage.read_bytes(key))
        content[round(position * (len(content) - 1))] ^= 1
        storage.write_bytes(key, bytes(content))

    return damage


def _cut(end: Callable[[int], int]) -> Damage:
    """Leaves the first bytes, as many as `end` says of the file's size."""

    def damage(storage: Storage, key: str) -> None:
        content = storage.read_bytes(key)
        storage.write_bytes(key, content[: end(len(content))])

    return damage


def _lengthen(storage: Storage, key: str) -> None:
    storage.write_bytes(key, storage.read_bytes(key) + b"\0")


def _remove(storage: Storage, key: str) -> None:
    storage.delete(key)


_flip_a_byte, _truncate = _flip(0.5), _cut(lambda size: size - 1)

SIZE, CHECKSUM = "bytes instead of", "has a wrong checksum"
DAMAGES = [
    pytest.param(_flip(0.0), CHECKSUM, id="first_byte_flipped"),
    pytest.param(_flip(0.5), CHECKSUM, id="middle_byte_flipped"),
    pytest.param(_flip(1.0), CHECKSUM, id="last_byte_flipped"),
    pytest.param(_cut(lambda size: 0), SIZE, id="cut_to_nothing"),
    pytest.param(_cut(lambda size: size // 2), SIZE, id="cut_in_half"),
    pytest.param(_cut(lambda size: size - 1), SIZE, id="cut_by_a_byte"),
    pytest.param(_lengthen, SIZE, id="one_byte_more"),
    pytest.param(_remove, "is missing", id="missing"),
]


@pytest.mark.parametrize(("damage", "reason"), DAMAGES)
def test_damage_of_each_kind_is_told(
    local_storage: RunStorage, tmp_path: Path, damage: Damage, reason: str
) -> None:
    check_damage(local_storage, tmp_path, "weights.npz", damage, reason)


@pytest.mark.parametrize(
    ("name", "damage", "reason"),
    [
        ("optimizer.npz", _flip_a_byte, CHECKSUM),
        (STATE_FILE, _truncate, SIZE),
        ("weights.npz", _remove, "is missing"),
    ],
    ids=["flipped", "truncated", "missing"],
)
def test_damaged_file_is_named_and_the_one_before_is_restored(
    storage: RunStorage, tmp_path: Path, name: str, damage: Damage, reason: str
) -> None:
    check_damage(storage, tmp_path, name, damage, reason)


def check_damage(storage: RunStorage, tmp_path: Path, name: str, damage: Damage, reason: str) -> None:
    store = CheckpointStore(storage)
    for step in (10, 20):
        store.commit(step=step, attempt=0, files=FILES, info={"step": step})
    damage(storage, f"{storage.checkpoint(step=20, attempt=0)}/{name}")
    restore_point = store.latest_whole(fetch_to=tmp_path / "restored")
    assert restore_point.checkpoint.info == {"step": 10}
    assert {file.name: file.read_bytes() for file in (tmp_path / "restored").iterdir()} == FILES
    (damaged,) = restore_point.damaged
    assert (damaged.step, damaged.attempt, damaged.uri) == (
        20,
        0,
        storage.uri("first/checkpoints/step-20-a0"),
    )
    assert "step-20-a0" in damaged.reason
    assert f"{name} " in damaged.reason
    assert reason in damaged.reason
    assert store.latest_whole() == restore_point


@pytest.mark.parametrize("access", ["read", "verify", "fetch"])
def test_every_way_to_read_refuses_damage_and_leaves_no_file(
    store: CheckpointStore, local_storage: RunStorage, tmp_path: Path, access: str
) -> None:
    checkpoint = store.commit(step=20, attempt=0, files=FILES)
    _flip_a_byte(local_storage, f"{local_storage.checkpoint(step=20, attempt=0)}/weights.npz")
    arguments = [tmp_path / "fetched"] if access == "fetch" else []
    with pytest.raises(CheckpointError, match=r"step-20-a0 is damaged: weights\.npz has a wrong checksum"):
        getattr(store, access)(checkpoint, *arguments)
    assert list(tmp_path.glob("fetched/*")) == []


@pytest.mark.parametrize("part", [0.0, 0.5, 1.0], ids=["begun", "half", "whole"])
@pytest.mark.parametrize("num_files", range(len(FILES)))
def test_commit_cut_off_within_a_file_is_never_restored(
    store: CheckpointStore, local_storage: RunStorage, num_files: int, part: float
) -> None:
    """As a store would leave it that does not write whole files or nothing."""
    before = store.commit(step=10, attempt=0, files=FILES)
    contents = sorted(FILES.items())
    torn_name, torn = contents[num_files]
    for name, content in [*contents[:num_files], (torn_name, torn[: round(part * len(torn))])]:
        local_storage.write_bytes(f"{local_storage.checkpoint(step=20, attempt=0)}/{name}", content)
    assert store.latest_whole().checkpoint == before
    assert store.read(store.commit(step=20, attempt=0, files={"a": b"new"})) == {"a": b"new"}


def test_several_damaged_ones_are_all_named_newest_first(
    store: CheckpointStore, local_storage: RunStorage
) -> None:
    for step in (10, 20, 30, 40):
        store.commit(step=step, attempt=0, files=FILES)
    _remove(local_storage, f"{local_storage.checkpoint(step=20, attempt=0)}/weights.npz")
    _truncate(local_storage, local_storage.checkpoint_marker(step=30, attempt=0))
    _flip_a_byte(local_storage, f"{local_storage.checkpoint(step=40, attempt=0)}/optimizer.npz")
    found = store.latest_whole()
    assert found.checkpoint.step == 10
    assert [damaged.step for damaged in found.damaged] == [40, 30, 20]


def test_what_a_chief_that_was_cut_off_commits_late_is_not_gone_on_from(store: CheckpointStore) -> None:
    store.commit(step=20, attempt=0, files=FILES)
    store.commit(step=25, attempt=1, files=FILES)
    store.commit(step=30, attempt=0, files=FILES)
    newest = store.latest_whole().checkpoint
    assert (newest.step, newest.attempt) == (25, 1)
    assert store.newest() == newest


def test_newest_is_read_from_the_markers_alone(store: CheckpointStore, local_storage: RunStorage) -> None:
    assert store.newest() is None
    store.commit(step=10, attempt=0, files=FILES)
    store.commit(step=20, attempt=0, files=FILES)
    _remove(local_storage, f"{local_storage.checkpoint(step=20, attempt=0)}/weights.npz")
    store.commit(step=30, attempt=0, files=FILES)
    _truncate(local_storage, local_storage.checkpoint_marker(step=30, attempt=0))
    newest = store.newest()
    assert newest.step == 20


def test_marker_without_files_is_skipped(store: CheckpointStore, local_storage: RunStorage) -> None:
    store.commit(step=10, attempt=0, files=FILES)
    store.commit(step=20, attempt=0, files=FILES)
    for name in FILES:
        local_storage.delete(f"{local_storage.checkpoint(step=20, attempt=0)}/{name}")
    restore_point = store.latest_whole()
    assert restore_point.checkpoint.step == 10
    assert [damaged.step for damaged in restore_point.damaged] == [20]


def test_marker_with_any_byte_flipped_or_cut_off_is_not_trusted(
    store: CheckpointStore, local_storage: RunStorage
) -> None:
    checkpoint = store.commit(step=20, attempt=0, files={"a": b"1"}, info={"epoch": 1, "loss": 0.25})
    key = local_storage.checkpoint_marker(step=20, attempt=0)
    whole = local_storage.read_bytes(key)
    versions = [whole[:index] + bytes([whole[index] ^ 1]) + whole[index + 1 :] for index in range(len(whole))]
    versions += [whole[:length] for length in range(len(whole))]
    for version in versions:
        local_storage.write_bytes(key, version)
        assert store.committed() == [], version
        (damaged,) = store.latest_whole().damaged
        assert damaged.reason.endswith("is damaged: its marker _COMMITTED is not whole")
    local_storage.write_bytes(key, whole)
    assert store.committed() == [checkpoint]


def test_marker_copied_from_another_checkpoint_is_not_trusted(
    store: CheckpointStore, local_storage: RunStorage
) -> None:
    store.commit(step=20, attempt=0, files=FILES)
    marker = local_storage.read_bytes(local_storage.checkpoint_marker(step=20, attempt=0))
    local_storage.write_bytes(local_storage.checkpoint_marker(step=30, attempt=0), marker)
    assert _names(store) == ["20-a0"]


def test_file_name_that_leads_out_of_the_checkpoint_is_refused(store: CheckpointStore) -> None:
    with pytest.raises(ValueError, match="leads out"):
        store.commit(step=1, attempt=0, files={"../other": b"x"})


def test_damaged_marker_is_replaced_by_a_new_commit(
    store: CheckpointStore, local_storage: RunStorage
) -> None:
    store.commit(step=1, attempt=0, files=FILES)
    _truncate(local_storage, local_storage.checkpoint_marker(step=1, attempt=0))
    assert store.read(store.commit(step=1, attempt=0, files={"a": b"new"})) == {"a": b"new"}


def test_storage_that_fails_is_no_damage(store: CheckpointStore, local_storage: RunStorage) -> None:
    store.commit(step=1, attempt=0, files={"a": b"1"})
    key = f"{local_storage.checkpoint(step=1, attempt=0)}/a"
    local_storage.delete(key)
    local_storage.write_bytes(f"{key}/b", b"a folder where the file was cannot be read")
    with pytest.raises(StorageError) as caught:
        store.latest_whole()
    assert not isinstance(caught.value, CheckpointError)


@pytest.mark.parametrize(
    ("keep", "keep_steps", "expected"),
    [
        pytest.param(None, (), ["40-a0", "30-a0", "20-a0", "10-a0"], id="all"),
        pytest.param(2, (), ["40-a0", "30-a0"], id="newest_two"),
        pytest.param(1, (20,), ["40-a0", "20-a0"], id="newest_and_best"),
        pytest.param(0, (), ["40-a0"], id="never_the_newest"),
        pytest.param(9, (), ["40-a0", "30-a0", "20-a0", "10-a0"], id="more_than_there_are"),
    ],
)
def test_prune_keeps(
    store: CheckpointStore, keep: int | None, keep_steps: tuple[int, ...], expected: list[str]
) -> None:
    for step in (10, 20, 30, 40):
        store.commit(step=step, attempt=0, files=FILES)
    store.prune(keep=keep, keep_steps=keep_steps)
    assert _names(store) == expected


def test_prune_leaves_no_file_of_what_it_removes(storage: RunStorage) -> None:
    store = CheckpointStore(storage)
    for step in (10, 20):
        store.commit(step=step, attempt=0, files=FILES)
    store.prune(keep=1)
    assert storage.list_names(storage.checkpoints) == ["step-20-a0"]


def test_prune_takes_the_new_attempts_checkpoint_for_newer_than_a_damaged_higher_step(
    store: CheckpointStore, local_storage: RunStorage
) -> None:
    for step, attempt in ((20, 0), (30, 0), (25, 1)):
        store.commit(step=step, attempt=attempt, files=FILES)
    _flip_a_byte(local_storage, f"{local_storage.checkpoint(step=30, attempt=0)}/weights.npz")
    store.prune(keep=1)
    assert _names(store) == ["25-a1"]


def test_prune_removes_leftovers_of_earlier_attempts_only(
    store: CheckpointStore, local_storage: RunStorage
) -> None:
    for attempt in (0, 1, 2):
        local_storage.write_bytes(
            f"{local_storage.checkpoint(step=50, attempt=attempt)}/weights.npz", b"half"
        )
    local_storage.write_bytes(f"{local_storage.checkpoints}/notes.txt", b"not ours")
    store.commit(step=40, attempt=1, files=FILES)
    store.prune(keep=3)
    assert local_storage.list_names(local_storage.checkpoints) == [
        "notes.txt",
        "step-40-a1",
        "step-50-a1",
        "step-50-a2",
    ]
