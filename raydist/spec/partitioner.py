"""Partitioner: how parameter_server cuts large variables into shards."""

from __future__ import annotations

import re
from dataclasses import dataclass

from raydist.errors import SpecError
from raydist.spec.quantities import parse_bytes
from raydist.spec.text import suggest

FORMS = "min_size:BYTES, max_shards:N, min_size:BYTES,max_shards:N or fixed_shards:N"
"""What can be written, for messages."""

_FIELDS = {"min_size": "min_shard_bytes", "max_shards": "max_shards", "fixed_shards": "fixed_shards"}


@dataclass(frozen=True, kw_only=True)
class Partitioner:
    """How variables are cut along their first axis, so that a large one is spread over several ps.

    BYTES is a number, or a size with its unit such as 256KiB. Each way to write it means one of
    tf.distribute.experimental.partitioners:
      `min_size:BYTES`: MinSizePartitioner(min_shard_bytes=BYTES, max_shards=the number of ps).
      `min_size:BYTES,max_shards:N`: MinSizePartitioner(min_shard_bytes=BYTES, max_shards=N).
      `max_shards:N`: MinSizePartitioner(max_shards=N), with TensorFlow's own least size of 256 KiB.
      `fixed_shards:N`: FixedShardsPartitioner(num_shards=N), which cuts every variable, also a small one.

    Attributes:
      min_shard_bytes: No shard gets smaller than this. None takes TensorFlow's default.
      max_shards: Shards per variable at most. None, with `min_shard_bytes`, is one per ps.
      fixed_shards: Shards per variable, as far as its first axis has so many rows; stands alone.
    """

    min_shard_bytes: int | None = None
    max_shards: int | None = None
    fixed_shards: int | None = None

    def __post_init__(self) -> None:
        numbers = [value for value in self._values if value is not None]
        if not numbers:
            raise SpecError(f"partitioner is empty; write {FORMS}")
        if min(numbers) < 1:
            raise SpecError(f"partitioner is {self}; each number has to be at least 1")
        if self.fixed_shards is not None and len(numbers) > 1:
            raise SpecError(f"partitioner is {self}; fixed_shards stands alone, write fixed_shards:N")

    def __str__(self) -> str:
        written = zip(_FIELDS, self._values, strict=True)
        return ",".join(f"{kind}:{value}" for kind, value in written if value is not None)

    @property
    def _values(self) -> tuple[int | None, ...]:
        return self.min_shard_bytes, self.max_shards, self.fixed_shards

    @classmethod
    def parse(cls, text: str) -> Partitioner:
        fields: dict[str, int] = {}
        for part in text.split(","):
            match = re.fullmatch(r"([\w-]+):(-?[0-9]{1,15})(\s*[KMG]i?B)?", part.strip())
            if match is None or (match[3] and match[1] != "min_size"):
                raise SpecError(
                    f"partitioner is {text!r}; write {FORMS}, each with a whole number, BYTES also as 256KiB"
                )
            kind, value = match[1], parse_bytes("partitioner", f"{match[2]}{match[3] or ''}")
            if kind not in _FIELDS:
                raise SpecError(f"partitioner is {text!r}, of unknown kind {kind}; {suggest(kind, _FIELDS)}")
            if _FIELDS[kind] in fields:
                raise SpecError(f"partitioner is {text!r}, with {kind} twice; write it once")
            fields[_FIELDS[kind]] = value
        return cls(**fields)
