"""from_ray_dataset: the blocks of a materialized Ray Dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from isal import isal_zlib

from raydist.data.sources.arrow import ArrowSource, Layout
from raydist.data.sources.columns import Selection
from raydist.errors import DataError

_CHECKED_ROWS = 8


class RayBlockSource(ArrowSource):
    """Arrow tables in Ray's object store."""

    def __init__(self, dataset: Any, selection: Selection) -> None:
        import ray

        # Its order would otherwise be that in which the blocks happen to be done.
        dataset.context.execution_options.preserve_order = True
        refs = dataset.to_arrow_refs()
        described = ray.get([ray.remote(_describe).options(num_cpus=0).remote(ref) for ref in refs])
        self._refs = [ref for ref, (size, _) in zip(refs, described, strict=True) if size]
        self._checksum = isal_zlib.crc32(repr(described).encode())
        if not self._refs:
            raise DataError("from_ray_dataset got a dataset without rows")
        first = self._block(0)
        layout = Layout.of(first.schema, selection, where=self._where(0))
        text_bytes = first.select(layout.texts).nbytes // first.num_rows if layout.texts else 0
        super().__init__(layout, [size for size, _ in described if size], text_bytes=text_bytes)

    def __getstate__(self) -> dict[str, Any]:
        from ray import cloudpickle

        # ObjectRefs are for Ray's own pickle; where it is loaded, they keep the blocks alive.
        return {**self.__dict__, "_refs": cloudpickle.dumps(self._refs)}  # type: ignore[no-untyped-call]

    def __setstate__(self, state: dict[str, Any]) -> None:
        import ray
        from ray import cloudpickle

        if not ray.is_initialized():
            ray.init()  # in a task, whose environment says where
        self.__dict__.update(state, _refs=cloudpickle.loads(state["_refs"]))

    def fingerprint(self) -> int:
        return int(self._checksum)

    def _table(self, group: int, names: Sequence[str]) -> pa.Table:
        block = self._block(group)
        for column in self._layout.columns:
            column.check(block.schema, where=self._where(group))
        return block

    def _where(self, group: int) -> str:
        return f"block {group} of the Ray dataset"

    def _block(self, group: int) -> pa.Table:
        import ray

        try:
            return ray.get(self._refs[group])
        except ray.exceptions.RayError as error:
            raise DataError(
                f"{self._where(group)} is lost: {str(error).strip().partition(chr(10))[0]}; it "
                "lived on a host that is gone"
            ) from error


def from_ray_dataset(
    dataset: Any,
    *,
    features: Sequence[str] | None = None,
    label: str | None = None,
    columns: Sequence[str] | None = None,
    dtype: Any = "float32",
    defaults: Mapping[str, Any] | None = None,
    ragged: Sequence[str] = (),
    padded_shapes: Mapping[str, Any] | None = None,
    padding_values: Mapping[str, Any] | None = None,
) -> RayBlockSource:
    """Returns a source of the rows of a Ray Dataset, which is materialized into Ray's object store.

    Example:
        rows = ray.data.read_parquet("s3://bucket/train").materialize()
        source = raydist.data.from_ray_dataset(rows, features=["age"], label="bought")

    With several workers, give a dataset that is already materialized. Otherwise each worker materializes it.

    Args:
      dataset: A `ray.data.Dataset`.
      features, label, columns, dtype, defaults, ragged, padded_shapes, padding_values: As for
        `from_parquet`.

    Raises:
      DataError: It has no rows, a column is missing, or no tensor's.
    """
    if not callable(getattr(dataset, "to_arrow_refs", None)):
        raise DataError(f"from_ray_dataset got {type(dataset).__name__}; give a ray.data.Dataset")
    selection = Selection(
        what="from_ray_dataset",
        features=features,
        label=label,
        columns=columns,
        dtype=dtype,
        defaults=defaults or {},
        ragged=ragged,
        padded_shapes=padded_shapes or {},
        padding_values=padding_values or {},
    )
    return RayBlockSource(dataset, selection)


def _describe(table: Any) -> tuple[int, int]:
    """Returns how many rows a block has, and a checksum of what the first of them hold."""
    return int(table.num_rows), isal_zlib.crc32(repr(table.slice(0, _CHECKED_ROWS).to_pydict()).encode())
