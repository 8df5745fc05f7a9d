from __future__ import annotations

from typing import Any

import pytest

import raydist
from raydist.errors import SpecError
from raydist.spec.partitioner import Partitioner

FORMS = "min_size:BYTES, max_shards:N, min_size:BYTES,max_shards:N or fixed_shards:N"


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("min_size:262144", {"min_shard_bytes": 262144}),
        ("min_size:262144,max_shards:4", {"min_shard_bytes": 262144, "max_shards": 4}),
        ("max_shards:4", {"max_shards": 4}),
        ("fixed_shards:1", {"fixed_shards": 1}),
    ],
)
def test_text_is_read_and_written_back(text: str, fields: dict[str, Any]) -> None:
    partitioner = Partitioner.parse(text)
    assert partitioner == Partitioner(**fields)
    assert str(partitioner) == text


@pytest.mark.parametrize(
    ("text", "num_bytes"), [("min_size:256KiB", 262144), ("min_size:1 MB,max_shards:4", 10**6)]
)
def test_size_may_have_a_unit(text: str, num_bytes: int) -> None:
    assert Partitioner.parse(text).min_shard_bytes == num_bytes


@pytest.mark.parametrize("text", ["max_shards:4,min_size:8", "min_size:08, max_shards:4"])
def test_order_and_spaces_do_not_matter(text: str) -> None:
    assert str(Partitioner.parse(text)) == "min_size:8,max_shards:4"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("min_sise:8", "'min_sise:8', of unknown kind min_sise; did you mean min_size?"),
        ("min-size:8", "'min-size:8', of unknown kind min-size; did you mean min_size?"),
        ("shards:8", None),
        ("x:8", "'x:8', of unknown kind x; write one of min_size, max_shards, fixed_shards"),
        ("min_size", f"'min_size'; write {FORMS}, each with a whole number"),
        ("min_size:256K", f"'min_size:256K'; write {FORMS}, each with a whole number"),
        ("min_size:1.5", None),
        ("max_shards:4KiB", f"'max_shards:4KiB'; write {FORMS}, each with a whole number"),
        ("min_size:" + "9" * 5000, None),
        ("min_size:8,", None),
        ("8", None),
        ("", None),
        ("min_size:0", "min_size:0; each number has to be at least 1"),
        ("min_size:8,max_shards:-1", "min_size:8,max_shards:-1; each number has to be at least 1"),
        (
            "fixed_shards:2,max_shards:3",
            "max_shards:3,fixed_shards:2; fixed_shards stands alone, write fixed_shards:N",
        ),
        ("max_shards:2,max_shards:2", "'max_shards:2,max_shards:2', with max_shards twice; write it once"),
    ],
    ids=lambda text: str(text)[:25],
)
def test_ill_text_is_refused_with_the_remedy(text: str, message: str | None) -> None:
    with pytest.raises(SpecError) as caught:
        Partitioner.parse(text)
    assert str(caught.value).startswith(f"partitioner is {message or ''}")
    assert "\n" not in str(caught.value)


def test_partitioner_of_nothing_is_refused() -> None:
    with pytest.raises(SpecError, match=r"^partitioner is empty; write min_size:BYTES"):
        Partitioner()


@pytest.mark.parametrize("written", ["max_shards:2", Partitioner(max_shards=2)], ids=["text", "object"])
def test_decorator_takes_text_and_object(written: object) -> None:
    job = raydist.job(ps=2, partitioner=written)(lambda ctx: None)
    assert job.defaults["partitioner"] == Partitioner(max_shards=2)
