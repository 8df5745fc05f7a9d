"""One global order: what a step's batch holds, whoever reads which part of it, from wherever on."""

from __future__ import annotations

import itertools
import threading
import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest

from raydist import data
from raydist.data.batches import Batches
from raydist.data.order import windows
from raydist.data.order.steps import cut
from raydist.data.order.windows import Piece, WindowedOrder
from raydist.data.sources.source import Source
from raydist.errors import DataError
from tests.conftest import WaitUntil
from tests.support.numbered_source import NumberedSource, OneFile

LAYOUTS = {
    "one_example": [1],
    "one_group": [23],
    "groups_of_one": [1] * 29,
    "empty_groups": [0, 5, 0, 0, 7, 1, 0],
    "uneven": [3, 17, 1, 8, 8, 2, 11, 5, 6, 1, 9, 4],
    "many": [16] * 30 + [5],
    "one_huge": [2, 2, 90, 2, 2, 2],
}
# Rows of all windows: less than a group, some groups, everything.
WINDOW_ROWS = [1, 40, 10**6]


def recipe(source: Source, batch_size: int, *, window_rows: int = 40, **options: object) -> Batches:
    window_mb = window_rows * source.num_bytes / 1e6
    return source.batches(global_batch_size=batch_size, window_mb=window_mb, **options)  # type: ignore[arg-type]


def sources(name: str) -> Source:
    sizes = LAYOUTS[name]
    return NumberedSource(sizes)


def whole(batches: Batches, step: int) -> list[int]:
    return part(batches, step, 0, 1)


def part(batches: Batches, step: int, replica: int, num_replicas: int) -> list[int]:
    return read_part(batches.reader(), batches, step, replica, num_replicas)


def read_part(reader: object, batches: Batches, step: int, replica: int, num_replicas: int) -> list[int]:
    steps = batches.steps
    first, end = cut(steps.size_of(steps.locate(step)[1]), replica, num_replicas)
    if first == end:
        return []
    [array] = reader.block(step, 1, first, end)  # type: ignore[attr-defined]
    assert array.shape[:2] == (1, end - first)
    return array[0].reshape(end - first, -1)[:, 0].tolist()


def epochs_of(batches: Batches, num_epochs: int) -> list[list[list[int]]]:
    reader = batches.reader()
    return [
        [
            read_part(reader, batches, epoch * batches.steps_per_epoch + step, 0, 1)
            for step in range(batches.steps_per_epoch)
        ]
        for epoch in range(num_epochs)
    ]


@pytest.mark.slow("one_huge")
@pytest.mark.parametrize(
    ("seed", "window_rows", "layout"),
    [
        *((0, rows, layout) for rows in WINDOW_ROWS for layout in LAYOUTS),
        *((None, 40, layout) for layout in LAYOUTS),
        *((seed, 40, "uneven") for seed in (-5, 2**63 - 1)),
    ],
)
def test_parts_of_any_number_of_replicas_make_up_the_batch(
    seed: int | None, window_rows: int, layout: str
) -> None:
    source = sources(layout)
    for batch_size in sorted({1, min(7, len(source)), min(32, len(source)), len(source)}):
        options = {"shuffle": False} if seed is None else {"seed": seed}
        batches = recipe(source, batch_size, window_rows=window_rows, **options)
        expected = list(itertools.chain(*epochs_of(batches, 2)))
        if len(source) <= 100:
            counts: tuple[int, ...] = (2, 3, 4, 5)
        else:
            counts = (2, 5) if batch_size > 1 else (3,)
        for num_replicas in counts:
            readers = [batches.reader() for _ in range(num_replicas)]
            for step, batch in enumerate(expected):
                found = [
                    read_part(readers[replica], batches, step, replica, num_replicas)
                    for replica in range(num_replicas)
                ]
                assert list(itertools.chain(*found)) == batch, (batch_size, num_replicas, step)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("window_rows", WINDOW_ROWS)
def test_an_epoch_has_each_example_once(layout: str, window_rows: int) -> None:
    source = sources(layout)
    for batch_size, seed in itertools.product((1, min(7, len(source)), len(source)), (0, 3)):
        for epoch in epochs_of(recipe(source, batch_size, window_rows=window_rows, seed=seed), 3):
            assert sorted(itertools.chain(*epoch)) == list(range(len(source)))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_epoch_without_its_remainder_has_no_example_twice(layout: str) -> None:
    source = sources(layout)
    batch_size = min(7, len(source))
    batches = recipe(source, batch_size, drop_remainder=True)
    assert batches.steps_per_epoch == len(source) // batch_size
    for epoch in epochs_of(batches, 3):
        found = list(itertools.chain(*epoch))
        assert len(set(found)) == len(found) == batch_size * batches.steps_per_epoch
        assert all(len(batch) == batch_size for batch in epoch)


@pytest.mark.parametrize("layout", ["one_group", "uneven", "one_huge", "arrays"])
def test_the_remainder_is_another_one_in_each_epoch(layout: str) -> None:
    """Also with a single group, whose rows keep their place in the row of groups."""
    if layout == "arrays":
        source: Source = data.from_arrays(np.arange(40)[:, None])
    else:
        source = sources(layout)
    batches = recipe(source, len(source) // 2 + 1, drop_remainder=True)
    left_out = np.zeros(len(source))
    for [epoch] in epochs_of(batches, 60):
        left_out += np.bincount(np.setdiff1d(np.arange(len(source)), epoch), minlength=len(source))
    assert left_out.min() > 0
    assert left_out.max() < 60


@pytest.mark.parametrize("kind", ["groups", "arrays"])
@pytest.mark.parametrize("drop_remainder", [False, True])
def test_a_new_reader_starts_at_any_step_and_may_jump(kind: str, drop_remainder: bool) -> None:
    source: Source = sources("uneven") if kind == "groups" else data.from_arrays(np.arange(75)[:, None])
    batches = recipe(source, 8, seed=2, window_rows=20, drop_remainder=drop_remainder)
    expected = list(itertools.chain(*epochs_of(batches, 3)))
    assert [whole(batches, step) for step in range(len(expected))] == expected
    reader = batches.reader()
    for step in np.random.default_rng(0).integers(0, len(expected), 60).tolist():
        assert read_part(reader, batches, step, 0, 1) == expected[step]


def test_a_block_of_steps_is_its_single_steps() -> None:
    batches = recipe(sources("uneven"), 8, seed=2, window_rows=20)
    reader = batches.reader()
    [block] = reader.block(10, 6, 2, 7)  # the second epoch begins with step 10
    singles = [reader.block(10 + step, 1, 2, 7)[0][0] for step in range(6)]
    assert np.array_equal(block, singles)


@pytest.mark.parametrize("kind", ["groups", "arrays"])
def test_epochs_and_seeds_differ_and_the_same_seed_does_not(kind: str) -> None:
    source: Source = sources("many") if kind == "groups" else data.from_arrays(np.arange(485)[:, None])
    orders = [
        tuple(itertools.chain(*epoch))
        for seed in (0, 1, -1, 2**63 - 1, -(2**63))
        for epoch in epochs_of(recipe(source, 16, seed=seed), 3)
    ]
    assert len(set(orders)) == 15
    assert orders[:3] == [tuple(itertools.chain(*e)) for e in epochs_of(recipe(source, 16, seed=0), 3)]


def test_order_stays_what_it_is_from_version_to_version() -> None:
    assert whole(recipe(sources("uneven"), 8, seed=2), 11) == [7, 26, 71, 1, 15, 5, 17, 6]


def test_without_shuffling_the_order_is_that_of_the_source() -> None:
    for epoch in epochs_of(recipe(sources("uneven"), 8, shuffle=False), 2):
        assert list(itertools.chain(*epoch)) == list(range(75))


def test_worker_reads_only_the_lanes_of_its_part(wait_until: WaitUntil) -> None:
    source = NumberedSource([16] * 96)
    batches = recipe(source, 48, window_rows=16 * 48, seed=1, epochs=1)
    reader = batches.reader()
    for step in range(batches.steps_per_epoch):
        read_part(reader, batches, step, 1, 4)
    wait_until(lambda: not data_threads())
    rows = sum(piece.num_rows for piece in source.read_pieces)
    assert rows == 16 * 96 // 4
    assert len(source.read_pieces) == len(set(source.read_pieces))


def test_two_windows_of_each_lane_are_in_memory_at_most() -> None:
    source = NumberedSource([8] * 300, width=1000)  # 64 kB a group
    batches = recipe(source, 24, window_rows=8 * 48, seed=1, epochs=2)
    window_bytes = batches.window_bytes
    reader = batches.reader()
    tracemalloc.start()
    try:
        for step in range(2 * batches.steps_per_epoch):
            reader.block(step, 1, 0, 12)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Half of the lanes, as half of each batch is read; while a lane's window is being read, its rows are
    # there twice or three times for a moment.
    window_of_lane = window_bytes / 12
    assert 6 * window_of_lane < peak < (2 * 6 + 4) * window_of_lane


def data_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "raydist-data"]


def test_reading_ahead_is_done_by_a_thread_that_ends(wait_until: WaitUntil) -> None:
    source = NumberedSource([8] * 50)
    batches = recipe(source, 4, window_rows=32, seed=1)
    reader = batches.reader()
    for step in range(20):
        read_part(reader, batches, step, 0, 1)
    wait_until(lambda: not data_threads())
    assert "raydist-data" in source.readers


def test_first_windows_of_the_lanes_are_read_at_the_same_time() -> None:
    class Meeting(NumberedSource):
        def read_into(self, arrays: Sequence[np.ndarray], piece: Piece) -> None:
            met.add(threading.get_ident())
            if len(met) == 3:  # who asks, and two that read ahead
                all_met.set()
            waited.append(all_met.wait(10))
            super().read_into(arrays, piece)

    met: set[int] = set()
    waited: list[bool] = []
    all_met = threading.Event()
    reader = recipe(Meeting([8] * 96), 24, window_rows=8 * 12, seed=1).reader()
    reader.block(0, 1, 0, 24)
    assert all(waited)


@pytest.mark.parametrize("width", [1, 3])
def test_tensorflow_can_take_a_block_as_it_is(width: int) -> None:
    batches = recipe(NumberedSource([8] * 96, width=width), 24, window_rows=8 * 48, seed=1)
    reader = batches.reader()
    for step in range(8):
        [array] = reader.block(step, 3, 1, 24)
        assert array.flags.c_contiguous
        assert array.ctypes.data % 64 == 0


def test_nothing_is_read_ahead_beyond_the_last_epoch(wait_until: WaitUntil) -> None:
    source = NumberedSource([8] * 10)
    batches = recipe(source, 8, window_rows=16, epochs=1)
    reader = batches.reader()
    for step in range(10):
        read_part(reader, batches, step, 0, 1)
    wait_until(lambda: not data_threads())
    assert sum(piece.num_rows for piece in source.read_pieces) == 80


def test_windows_that_were_jumped_over_are_not_read(wait_until: WaitUntil) -> None:
    class Slow(NumberedSource):
        def read_into(self, arrays: Sequence[np.ndarray], piece: Piece) -> None:
            if threading.current_thread().name == "raydist-data":
                gate.wait(10)
            super().read_into(arrays, piece)

    gate = threading.Event()
    source = Slow([8] * 100)
    batches = recipe(source, 8, window_rows=8)
    reader = batches.reader()
    for step in range(0, 100, 5):
        read_part(reader, batches, step, 0, 1)
    gate.set()
    wait_until(lambda: not data_threads())
    # Those that were asked for, one ahead for each of two threads, and the last one ahead.
    assert len(source.read_pieces) <= 23


def test_error_of_reading_ahead_is_told_by_the_step_that_needs_it_and_passes(wait_until: WaitUntil) -> None:
    source = NumberedSource([8] * 10)
    batches = recipe(source, 8, window_rows=8, seed=4)
    expected = list(itertools.chain(*epochs_of(batches, 1)))
    reader = batches.reader()
    read_part(reader, batches, 0, 0, 1)
    wait_until(lambda: not data_threads())
    source.error = DataError("row group 3 of x is gone")
    # What was read ahead already is there; the failure is in what is read ahead now.
    assert read_part(reader, batches, 1, 0, 1) == expected[1]
    wait_until(lambda: not data_threads())
    for _ in range(2):
        with pytest.raises(DataError, match="row group 3 of x is gone"):
            read_part(reader, batches, 2, 0, 1)
    source.error = None
    assert [read_part(reader, batches, step, 0, 1) for step in range(2, 10)] == expected[2:]


def test_what_a_thread_that_reads_ahead_cannot_read_is_read_by_who_needs_it() -> None:
    class Failing(NumberedSource):
        def read_into(self, arrays: Sequence[np.ndarray], piece: Piece) -> None:
            if threading.current_thread().name == "raydist-data":
                failed.set()
                raise DataError("gone for a moment")
            failed.wait(10)
            super().read_into(arrays, piece)

    failed = threading.Event()
    sizes = [8] * 96
    for window_rows in (8 * 96, 8 * 48):  # one lane whose groups threads share, and many lanes
        failed.clear()
        expected = whole(recipe(NumberedSource(sizes), 24, window_rows=window_rows, seed=1), 3)
        assert whole(recipe(Failing(sizes), 24, window_rows=window_rows, seed=1), 3) == expected


def test_threads_may_share_a_reader() -> None:
    batches = recipe(NumberedSource([8] * 40), 16, window_rows=64, seed=1)
    expected = list(itertools.chain(*epochs_of(batches, 2)))
    reader = batches.reader()
    wrong: list[int] = []

    def read(first: int) -> None:
        for step in range(first, len(expected), 4):
            if read_part(reader, batches, step, 0, 1) != expected[step]:
                wrong.append(step)

    threads = [threading.Thread(target=read, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert wrong == []


def test_cached_source_reads_each_group_once_and_shuffles_each_epoch() -> None:
    source = sources("uneven")
    source.files = OneFile()
    batches = recipe(source, 8, seed=2, window_rows=20)
    cached = batches.cached("memory")
    assert cached.cached("memory") is cached
    assert epochs_of(cached, 3) == epochs_of(batches, 3)
    source.read_pieces.clear()  # type: ignore[attr-defined]
    assert epochs_of(cached, 3) == epochs_of(batches, 3)
    arrays = data.from_arrays(np.arange(40)[:, None]).batches(global_batch_size=7, seed=1)
    assert arrays.cached() is arrays


def test_steps_are_read_from_far_on_without_those_before() -> None:
    """The order of epoch 10**6 is found without those before."""
    source = NumberedSource([1000] * 1000)
    batches = recipe(source, 512, window_rows=50_000, seed=1)
    assert len(whole(batches, 10**6 * batches.steps_per_epoch + 1000)) == 512
    assert sum(piece.num_rows for piece in source.read_pieces) <= 2 * 50_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"global_batch_size": 0}, "global_batch_size is 0; it has to be an int of at least 1"),
        ({"global_batch_size": 2.0}, "global_batch_size is 2.0"),
        (
            {"global_batch_size": 76},
            "global_batch_size is 76, and the source has 75 examples, fewer than one",
        ),
        ({"epochs": 0}, "epochs is 0"),
        ({"window_mb": 0}, "window_mb is 0"),
        ({"window_mb": "64"}, "window_mb is '64'; it has to be a number of MB"),
        ({"window_mb": float("inf")}, "window_mb is inf"),
        ({"seed": 2**63}, "seed is 9223372036854775808; it has to be less than"),
        ({"seed": True}, "seed is True"),
        ({"seed": "7"}, "seed is '7'"),
    ],
    ids=str,
)
def test_option_out_of_its_range_is_a_data_error(options: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        sources("uneven").batches(**{"global_batch_size": 8, **options})  # type: ignore[arg-type]


def test_numpy_ints_are_ints() -> None:
    batches = sources("uneven").batches(
        global_batch_size=np.int32(8),  # type: ignore[arg-type]
        seed=np.int64(2),  # type: ignore[arg-type]
        epochs=np.int64(3),  # type: ignore[arg-type]
    )
    assert type(batches.global_batch_size) is type(batches.seed) is type(batches.num_steps) is int


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_step_lays_out_its_own_windows_whatever_the_number_of_groups(
    shuffle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a run that resumes in a billion rows asks for one."""

    def num_pieces(num_groups: int) -> int:
        made = []

        def piece(group: int, first: int, end: int) -> Piece:
            made.append(group)
            return Piece(group, first, end)

        monkeypatch.setattr(windows, "Piece", piece)
        batches = recipe(NumberedSource([16] * num_groups), 32, window_rows=640, shuffle=shuffle)
        order = WindowedOrder(
            batches.source.group_sizes,  # type: ignore[arg-type]
            batches.steps,
            seed=batches.seed,
            window_rows=640,
        )
        for lane in range(order.num_lanes):
            order.stretches(lane, batches.steps_per_epoch // 2, 1)
        return len(made)

    few, many = num_pieces(1000), num_pieces(2000)
    assert 0 < many <= few + 12
    assert many <= 2 * 640 // 16 + 24
