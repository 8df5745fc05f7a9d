"""raydist.data.mix: each source in its share, once a pass, whoever reads which part from wherever on."""

from __future__ import annotations

import itertools
import pickle
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raydist import data
from raydist.data.batches import Batches
from raydist.data.examples import Examples
from raydist.data.order.steps import cut
from raydist.data.order.windows import Piece
from raydist.errors import DataError
from tests.support.image_files import png
from tests.support.numbered_source import NumberedSource, OneFile


class Shifted(NumberedSource):
    """Examples that begin at another number."""

    def __init__(self, sizes: Sequence[int], first: int) -> None:
        super().__init__(sizes)
        self._first = first

    def read_into(self, arrays: Sequence[np.ndarray], piece: Piece) -> None:
        super().read_into(arrays, piece)
        arrays[0][:] += self._first


def arrays(num_examples: int, first: int) -> Any:
    return data.from_arrays(np.arange(first, first + num_examples, dtype=np.int64)[:, None])


A, B, C = 0, 10_000, 20_000
MIXES: dict[str, Any] = {
    "arrays": lambda **options: data.mix([arrays(60, A), arrays(37, B)], weights=[0.7, 0.3], **options),
    "groups": lambda **options: data.mix(
        [Shifted([3, 17, 1, 8, 8, 2, 11, 5, 6, 1, 9, 4], A), Shifted([4] * 9, B)], weights=[1, 2], **options
    ),
    "both": lambda **options: data.mix([Shifted([5] * 12, A), arrays(9, B)], weights=[3, 1], **options),
    "three": lambda **options: data.mix(
        [arrays(30, A), Shifted([7] * 5, B), arrays(2, C)], weights=[5, 4, 1], **options
    ),
    "nested": lambda **options: data.mix(
        [data.mix([Shifted([6] * 6, A), arrays(20, B)], stop="longest"), arrays(40, C)], **options
    ),
}
STOPS = ["shortest", "longest"]


def batches_of(name: str, stop: str, **options: Any) -> Batches:
    source = MIXES[name](stop=stop)
    # A window has a few groups, so that there are several windows and lanes.
    defaults = {"global_batch_size": 8, "seed": 5, "window_mb": 20 * 8 / 1e6}
    return source.batches(**{**defaults, **options})


def read(
    batches: Batches, step: int, first: int = 0, end: int | None = None, reader: Any = None
) -> list[int]:
    size = batches.steps.size_of(batches.steps.locate(step)[1])
    [found] = (reader or batches.reader()).block(step, 1, first, size if end is None else end)
    return found.reshape(-1).tolist()


def epoch_of(batches: Batches, epoch: int) -> list[list[int]]:
    reader, per_epoch = batches.reader(), batches.steps_per_epoch
    return [read(batches, epoch * per_epoch + step, reader=reader) for step in range(per_epoch)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "stop", "seed"),
    [*((name, stop, 5) for name in MIXES for stop in STOPS), ("both", "longest", None)],
)
def test_parts_of_any_number_of_workers_make_up_the_batch(name: str, stop: str, seed: int | None) -> None:
    options = {"shuffle": False} if seed is None else {"seed": seed}
    batches = batches_of(name, stop, **options)
    expected = [*epoch_of(batches, 0), *epoch_of(batches, 1)]
    for num_workers in (2, 3):
        readers = [batches.reader() for _ in range(num_workers)]
        for step, batch in enumerate(expected):
            spans = [cut(len(batch), worker, num_workers) for worker in range(num_workers)]
            found = [
                read(batches, step, *span, reader=reader)
                for span, reader in zip(spans, readers, strict=True)
                if span[0] < span[1]
            ]
            assert list(itertools.chain(*found)) == batch, (num_workers, step)


@pytest.mark.parametrize("name", MIXES)
@pytest.mark.parametrize("stop", STOPS)
def test_every_position_is_found_by_itself(name: str, stop: str) -> None:
    batches = batches_of(name, stop)
    expected = [*epoch_of(batches, 0), *epoch_of(batches, 1)]
    for step, batch in enumerate(expected):
        assert read(batches, step) == batch
    # And several steps at once.
    count = batches.steps.num_full
    [block] = batches.reader().block(0, count, 0, 8)
    assert block[:, :, 0].tolist() == expected[:count]


def counts_of(batches: Batches, epoch: int) -> list[Counter[int]]:
    numbers = list(itertools.chain(*epoch_of(batches, epoch)))
    return [Counter(number for number in numbers if first <= number < first + 10_000) for first in (A, B, C)]


@pytest.mark.parametrize("name", ["arrays", "groups", "both", "three"])
@pytest.mark.parametrize("epoch", [0, 1])
def test_shortest_has_one_source_once_and_no_example_twice(name: str, epoch: int) -> None:
    batches = batches_of(name, "shortest")
    sizes = [len(one) for one in batches.source.sources]  # type: ignore[attr-defined]
    found = counts_of(batches, epoch)[: len(sizes)]
    assert all(set(one.values()) == {1} for one in found)
    assert any(len(one) == size for one, size in zip(found, sizes, strict=True))
    weights = batches.source.schedule.weights  # type: ignore[attr-defined]
    for one, weight in zip(found, weights, strict=True):
        assert abs(len(one) - len(batches.source) * weight / sum(weights)) <= 1


@pytest.mark.parametrize("name", ["arrays", "groups", "both", "three"])
@pytest.mark.parametrize("epoch", [0, 1])
def test_longest_has_every_source_once_and_repeats_the_others_pass_by_pass(name: str, epoch: int) -> None:
    batches = batches_of(name, "longest")
    sizes = [len(one) for one in batches.source.sources]  # type: ignore[attr-defined]
    found = counts_of(batches, epoch)[: len(sizes)]
    assert [len(one) for one in found] == sizes
    # Whole passes, and the beginning of one more.
    assert all(max(one.values()) - min(one.values()) <= 1 for one in found)
    assert min(max(one.values()) for one in found) == 1


@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("stop", STOPS)
def test_mix_in_a_mix_has_each_example_as_often_as_the_inner_one_gives_it(stop: str, epoch: int) -> None:
    batches = batches_of("nested", stop)
    a, b, c = counts_of(batches, epoch)
    # One pass of the inner mix has all 36 of A once, and B's 20 once or twice.
    if stop == "shortest":
        assert set(c.values()) == {1}
        assert set(a.values()) == {1}
        assert max(b.values()) <= 2
        assert len(c) == 40 or (len(a), len(b)) == (36, 20)
    else:
        assert (len(a), len(b), len(c)) == (36, 20, 40)
        assert max(c.values()) - min(c.values()) <= 1
        assert max(a.values()) - min(a.values()) <= 1
        assert min(max(c.values()), max(a.values())) == 1
    assert abs(a.total() + b.total() - c.total()) <= 1  # the weights are equal


@pytest.mark.parametrize("name", ["arrays", "groups"])
def test_sources_passes_and_epochs_have_orders_of_their_own(name: str) -> None:
    equal_sizes = data.mix([arrays(60, A), arrays(60, B)]).batches(global_batch_size=2, seed=5)
    by_source = np.sort(epoch_of(equal_sizes, 0), axis=1) % B  # one example of each in a batch
    assert by_source[:, 0].tolist() != by_source[:, 1].tolist()
    batches = batches_of(name, "longest", global_batch_size=1)
    per_epoch = [list(itertools.chain(*epoch_of(batches, epoch))) for epoch in (0, 1)]
    for first in (A, B):
        own = [[one for one in numbers if first <= one < first + 10_000] for numbers in per_epoch]
        assert own[0] != own[1]
        size = len(set(own[0]))
        first_pass, second_pass = own[0][:size], own[0][size : 2 * size]
        assert len(set(first_pass)) == size
        assert not second_pass or second_pass != first_pass[: len(second_pass)]


def test_without_shuffling_each_source_keeps_its_order() -> None:
    batches = batches_of("arrays", "longest", global_batch_size=1, shuffle=False)
    numbers = list(itertools.chain(*epoch_of(batches, 0)))
    assert numbers[:7] == [A, B, A + 1, A + 2, A + 3, B + 1, A + 4]
    assert [one for one in numbers if one >= B] == [*range(B, B + 37)]
    assert [one for one in numbers if one < B][:63] == [*range(A, A + 60), A, A + 1, A + 2]


def test_every_batch_has_the_sources_in_their_shares() -> None:
    batches = data.mix([arrays(7000, A), arrays(3000, B)], weights=[0.7, 0.3]).batches(
        global_batch_size=100, seed=1
    )
    shares = [sum(one < B for one in batch) for batch in epoch_of(batches, 0)]
    assert len(shares) == 100
    assert set(shares) <= {69, 70, 71}


def test_worker_reads_the_lanes_of_its_part_and_their_neighbours() -> None:
    """12 lanes of 8 groups for each of two sources: of 192 groups a third is 64, and 2 lanes more are 32."""
    sources = [Shifted([50] * 96, A), Shifted([50] * 96, B)]
    batches = data.mix(sources).batches(global_batch_size=120, seed=3, window_mb=2 * 48 * 50 * 8 / 1e6)
    reader = batches.reader()
    for step in range(batches.steps_per_epoch):
        reader.block(step, 1, 40, 80)
    num_rows = sum(piece.num_rows for one in sources for piece in one.read_pieces)
    assert num_rows <= (64 + 32) * 50 * 1.1


def test_cached_sources_are_read_once() -> None:
    source = Shifted([5] * 4, A)
    source.files = OneFile()
    mixed = data.mix([source, arrays(20, B)], stop="longest")
    batches = mixed.batches(global_batch_size=4, seed=1, epochs=3)
    expected = [epoch_of(batches, epoch) for epoch in range(3)]
    source.read_pieces.clear()
    cached = batches.cached("memory").cached("memory")
    assert [epoch_of(cached, epoch) for epoch in range(3)] == expected
    assert len(source.read_pieces) == 4


def test_workers_can_tell_other_mixtures_apart() -> None:
    found = {
        mixed.batches(global_batch_size=4).fingerprint()
        for mixed in (
            data.mix([arrays(20, A), arrays(20, B)]),
            data.mix([arrays(20, A), arrays(20, C)]),
            data.mix([arrays(20, A), arrays(20, B)], weights=[1, 2]),
            data.mix([arrays(20, A), arrays(20, B)], stop="longest", weights=[1, 2]),
        )
    }
    assert len(found) == 4


def write_records(path: Path, labels: Sequence[int]) -> Any:
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path)) as writer:
        for label in labels:
            writer.write(f"{label},{label * 2}".encode())

    def parse(record: tf.Tensor) -> Any:
        numbers = tf.strings.to_number(tf.strings.split(record, ","), tf.int64)
        numbers = tf.ensure_shape(numbers, [2])
        return tf.cast(numbers[1:], tf.float32), numbers[0]

    return data.from_tfrecord(path, parse=parse)


def write_table(path: Path, labels: Sequence[int]) -> Any:
    table = pa.table({"x": pa.array([label * 2.0 for label in labels], pa.float32()), "y": list(labels)})
    pq.write_table(table, path, row_group_size=4)
    return data.from_parquet(path, features=["x"], label="y")


def write_csv(path: Path, labels: Sequence[int]) -> Any:
    path.write_text("x,y\n" + "".join(f"{label * 2.0},{label}\n" for label in labels))
    return data.from_csv(path, features=["x"], label="y")


def of_every_kind(folder: Path) -> Batches:
    labels = np.arange(2000, 2030, dtype=np.int64)
    mixed = data.mix(
        [
            write_records(folder / "a.tfrecord", range(A, A + 20)),
            write_table(folder / "b.parquet", range(1000, 1030)),
            data.from_arrays((labels * 2.0)[:, None].astype(np.float32), labels),
            write_csv(folder / "c.csv", range(3000, 3030)),
        ],
        weights=[2, 1, 1, 1],
        stop="longest",
    )
    return mixed.batches(global_batch_size=8, seed=2)


@pytest.mark.slow
def test_sources_of_every_kind_make_batches_of_tensors(tmp_path: Path) -> None:
    import tensorflow as tf

    batches = of_every_kind(tmp_path)
    labels = []
    for x, y in batches:
        assert (x.dtype, x.shape[1:], y.dtype) == (tf.float32, [1], tf.int64)
        np.testing.assert_array_equal(x[:, 0], y * 2)
        labels += y.numpy().tolist()
    wanted = {*range(20), *(kind + number for kind in (1000, 2000, 3000) for number in range(30))}
    assert set(labels) == wanted
    counts = Counter(one // 1000 for one in labels)
    assert abs(counts[0] - 2 * counts[1]) <= 3


@pytest.mark.slow
def test_tensors_of_two_and_three_pipelines_are_those_of_one(tmp_path: Path) -> None:
    import tensorflow as tf

    batches = of_every_kind(tmp_path)
    whole = [y.numpy().tolist() for _, y in batches.dataset()]
    for num_pipelines in (2, 3):
        parts = [
            [
                y.numpy().tolist()
                for _, y in batches.dataset(
                    tf.distribute.InputContext(num_pipelines, number, num_pipelines), start_step=3
                )
            ]
            for number in range(num_pipelines)
        ]
        joined = [list(itertools.chain(*step)) for step in zip(*parts, strict=True)]
        assert joined == whole[3:]


@pytest.mark.slow
def test_mixture_is_read_alike_in_another_process(tmp_path: Path) -> None:
    batches = of_every_kind(tmp_path)
    sent = pickle.loads(pickle.dumps(batches))
    for ours, theirs in zip(batches.reader().block(2, 3, 0, 8), sent.reader().block(2, 3, 0, 8), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
def test_images_of_two_folders_are_mixed(tmp_path: Path) -> None:
    for folder, shade in (("day", 200), ("night", 10)):
        for number in range(6):
            image = np.full((4, 4, 3), shade + number, np.uint8)
            path = tmp_path / folder / "cat" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(png(image))
    mixed = data.mix([data.from_images(tmp_path / "day"), data.from_images(tmp_path / "night")])
    shades = [int(image[0, 0, 0]) for images, _ in mixed.batches(global_batch_size=4) for image in images]
    assert sorted(shades) == sorted([*range(200, 206), *range(10, 16)])


def test_label_that_would_mean_two_classes_is_refused(tmp_path: Path) -> None:
    for name in ("day/cat", "day/dog", "night/dog", "night/wolf"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "0.png").write_bytes(png(np.zeros((4, 4, 3), np.uint8)))
    with pytest.raises(DataError) as raised:
        data.mix([data.from_images(tmp_path / "day"), data.from_images(tmp_path / "night")])
    assert str(raised.value).startswith(
        "mix got images of the folders dog, wolf from source 1, and of cat, dog from source 0, so a label"
    )


def test_examples_that_differ_when_they_are_decoded_are_refused(tmp_path: Path) -> None:
    records = write_records(tmp_path / "a.tfrecord", range(8))
    mixed = data.mix([records, data.from_arrays(np.zeros((8, 3), np.float32), np.zeros(8, np.int64))])
    with pytest.raises(DataError) as raised:
        mixed.batches(global_batch_size=4).dataset()
    assert str(raised.value) == (
        "mix got examples (float32[3], int64[]) from source 1, and (float32[1], int64[]) from source 0; give "
        "sources whose examples have the same structure, types and shapes"
    )


def test_sizes_that_vary_are_refused(tmp_path: Path) -> None:
    import tensorflow as tf

    path = tmp_path / "a.tfrecord"
    write_records(path, range(8))
    varying = data.from_tfrecord(path, parse=lambda record: tf.strings.bytes_split(record))
    mixed = data.mix([varying, varying])
    with pytest.raises(DataError, match=r"examples string\[\?\] from source 0, whose sizes vary; pad them"):
        mixed.batches(global_batch_size=4).dataset()


def one(num_examples: int = 8) -> Examples:
    return data.from_arrays(np.zeros((num_examples, 2), np.float32), np.zeros(num_examples, np.int64))


MISTAKES: list[tuple[Any, dict[str, Any], str]] = [
    ([], {}, "mix got sources []; give a list of sources, one at least"),
    (None, {}, "mix got sources None; give a list of sources, one at least"),
    (one(), {}, "mix got sources ArraySource; give a list of sources, one at least"),
    (["a", "b"], {}, "mix got 'a' as source 0; give sources of raydist.data"),
    (
        [one(), one().batches(global_batch_size=4)],  # type: ignore[attr-defined]
        {},
        "mix got batches as source 1; give the sources, and call .batches(…) of the mixture",
    ),
    ([one(), one()], {"weights": [1]}, "mix got 1 weights for 2 sources; give one for each"),
    ([one()], {"weights": 0.5}, "mix got weights 0.5; give a list of numbers, one for each source"),
    ([one(), one()], {"stop": "first"}, "mix got stop 'first'; it is 'shortest' or 'longest'"),
    (
        [one(), data.from_arrays({"x": np.zeros((4, 2)), "y": np.zeros(4, "S3")})],
        {},
        "mix got examples {'x': float64[2], 'y': string[]} from source 1, and (float32[2], int64[]) from "
        "source 0; give sources whose examples have the same structure, types and shapes",
    ),
    *(
        (
            [one(), one()],
            {"weights": [1, weight]},
            f"mix got weight {weight!r} for source 1; give a number above 0, and leave out a source that is "
            "not wanted",
        )
        for weight in (0, -1, float("nan"), float("inf"), "1", None, True)
    ),
]


@pytest.mark.parametrize(("sources", "options", "message"), MISTAKES, ids=range(len(MISTAKES)))
def test_mistake_is_one_sentence(sources: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as raised:
        data.mix(sources, **options)
    assert str(raised.value) == message
