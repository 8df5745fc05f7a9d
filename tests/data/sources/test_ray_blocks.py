"""from_ray_dataset: blocks in Ray's object store."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from raydist import data
from raydist.data.order.windows import Piece
from raydist.errors import DataError

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray Data's own


@pytest.fixture(scope="module")
def ray_data(ray_cluster: object) -> Any:
    import ray.data

    ray.data.DataContext.get_current().enable_progress_bars = False
    return ray.data


def rows(source: Any) -> list[np.ndarray]:
    return source.read([Piece(group, 0, int(size)) for group, size in enumerate(source.group_sizes)])


def tables(ray_data: Any, *columns: dict[str, Any]) -> Any:
    return ray_data.from_arrow([pa.table(one) for one in columns])


def test_blocks_are_groups_in_their_order_and_can_be_sent(ray_data: Any) -> None:
    blocks = [{"a": np.arange(5) + 5 * number, "y": np.zeros(5, "int32")} for number in range(4)]
    dataset = tables(ray_data, *blocks).map_batches(lambda batch: batch, batch_format="pyarrow")
    source = data.from_ray_dataset(dataset.materialize(), features=["a"], label="y")
    assert len(source) == 20
    x, y = rows(source)
    assert x.tolist() == [[float(number)] for number in range(20)]
    assert y.dtype == np.int32
    batches = source.batches(global_batch_size=6, seed=1)
    sent = pickle.loads(pickle.dumps(batches.without_maps()))
    here, there = batches.reader().block(0, 1, 0, 6), sent.reader().block(0, 1, 0, 6)
    assert np.array_equal(here[0], there[0])


def test_other_examples_in_blocks_of_the_same_sizes_are_told_apart(ray_data: Any) -> None:
    first, same, other = (
        data.from_ray_dataset(tables(ray_data, {"a": np.arange(5) + start}, {"a": np.arange(5)}))
        for start in (0, 0, 1)
    )
    assert first.fingerprint() == same.fingerprint() != other.fingerprint()


def test_a_worker_gets_the_blocks_by_plain_pickle(ray_data: Any) -> None:
    import ray

    source = data.from_ray_dataset(tables(ray_data, {"t": ["x", "yy"]}, {"t": ["z"]}))

    @ray.remote(num_cpus=0)
    def read(content: bytes) -> list[str]:
        return rows(pickle.loads(content))[0].tolist()

    assert ray.get(read.remote(pickle.dumps(source)), timeout=60) == ["x", "yy", "z"]


def test_tensors_of_numpy_are_columns(ray_data: Any) -> None:
    images = np.arange(2 * 3 * 4, dtype="uint8").reshape(2, 3, 4)
    dataset = ray_data.from_numpy([images, images + 1])
    source = data.from_ray_dataset(dataset)
    assert source.fields[0].shape == (3, 4)
    assert np.array_equal(rows(source)[0], np.concatenate([images, images + 1]))
    assert np.array_equal(source.read([Piece(1, 1, 2)])[0], images[1:] + 1)


def test_tensors_of_numpy_that_differ_in_length_are_ragged_or_padded(ray_data: Any) -> None:
    def make(batch: dict[str, np.ndarray]) -> dict[str, Any]:
        return {"t": np.array([np.arange(3 - one % 2) for one in batch["id"]], dtype=object)}

    # Its last block has one array, and so another type.
    dataset = ray_data.range(3, override_num_blocks=2).map_batches(make, batch_size=2).materialize()
    [padded] = rows(data.from_ray_dataset(dataset, padded_shapes={"t": 3}))
    assert padded.tolist() == [[0, 1, 2], [0, 1, 0], [0, 1, 2]]
    [ragged] = rows(data.from_ray_dataset(dataset, ragged=["t"]))
    assert [np.frombuffer(row, np.int64).tolist() for row in ragged] == [[0, 1, 2], [0, 1], [0, 1, 2]]
    with pytest.raises(DataError, match="column t has lists of 2, 3 values in block 0"):
        rows(data.from_ray_dataset(dataset))


def test_bad_blocks_are_named(ray_data: Any) -> None:
    with pytest.raises(DataError, match="block 0 of the Ray dataset has no column b"):
        data.from_ray_dataset(tables(ray_data, {"a": [1]}), columns=["b"])
    with pytest.raises(DataError, match="from_ray_dataset got a dataset without rows"):
        data.from_ray_dataset(tables(ray_data, {"a": pa.array([], pa.int64())}))
    with pytest.raises(DataError, match=r"from_ray_dataset got list; give a ray\.data\.Dataset"):
        data.from_ray_dataset([1, 2])
    source = data.from_ray_dataset(tables(ray_data, {"a": [1]}, {"a": [None, 2]}))
    with pytest.raises(DataError, match="column a has 1 null in block 1 of the Ray dataset; give defaults"):
        rows(source)
    source = data.from_ray_dataset(tables(ray_data, {"a": [1]}, {"a": [0.5]}))
    with pytest.raises(DataError, match="column a is double in block 1 of the Ray dataset, and int64 where"):
        rows(source)
