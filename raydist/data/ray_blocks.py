"""from_ray_dataset: the blocks of a materialized Ray Data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from isal import isal_zlib

from raydist.data import columns as arrow_columns
from raydist.data.source import GroupedSource
from raydist.data.windows import Piece
from raydist.errors import DataError


class RayBlockSource(GroupedSource):
    """Arrow tables in Ray's object store."""

    def __init__(
        self,
        dataset: Any,
        *,
        features: Sequence[str] | None,
        label: str | None,
        columns: Sequence[str] | None,
        dtype: Any,
        defaults: Mapping[str, Any],
    ) -> None:
        import ray

        # Its order would otherwise be that in which the blocks happen to be done.
        dataset.context.execution_options.preserve_order = True
        refs = dataset.to_arrow_refs()
        sizes = ray.get([ray.remote(_num_rows).options(num_cpus=0).remote(ref) for ref in refs])
        self._refs = [ref for ref, size in zip(refs, sizes, strict=True) if size]
        self.group_sizes = np.array([size for size in sizes if size], np.int64)
        if not self._refs:
            raise DataError("from_ray_dataset got a dataset without rows")
        first = self._table(0)
        self._columns = arrow_columns.choose(
            first.schema, features=features, label=label, columns=columns, defaults=defaults, where=_where(0)
        )
        layout = arrow_columns.Layout.of(
            self._columns, features=features, label=label, dtype=arrow_columns.stacked_type(dtype)
        )
        self._layout, self.structure = layout, layout.structure
        self._widths = {
            column.name: arrow_columns.width_of(column, first)
            for column in self._columns
            if column.needs_width
        }
        self.fields = layout.fields(self._widths)
        texts = [column.name for column in self._columns if column.dtype.kind == "O"]
        self._text_bytes = first.select(texts).nbytes // first.num_rows if texts else 0

    def __getstate__(self) -> dict[str, Any]:
        from ray import cloudpickle

        # ObjectRefs are for Ray's own pickle; where it is loaded, they keep the blocks alive.
        return {**self.__dict__, "_refs": cloudpickle.dumps(self._refs)}  # type: ignore[no-untyped-call]

    def __setstate__(self, state: dict[str, Any]) -> None:
        from ray import cloudpickle

        self.__dict__.update(state, _refs=cloudpickle.loads(state["_refs"]))

    @property
    def num_bytes(self) -> int:
        return super().num_bytes + self._text_bytes

    def fingerprint(self) -> int:
        return int(isal_zlib.crc32(self.group_sizes.tobytes()))

    def read(self, pieces: Sequence[Piece]) -> list[np.ndarray]:
        tables = ((self._piece(piece), _where(piece.group)) for piece in pieces)
        num_rows = sum(piece.num_rows for piece in pieces)
        return self._layout.read(tables, num_rows, fields=self.fields, widths=self._widths)

    def _piece(self, piece: Piece) -> Any:
        table = self._table(piece.group)
        for column in self._columns:
            column.check(table.schema, where=_where(piece.group))
        return table.slice(piece.first, piece.num_rows)

    def _table(self, group: int) -> Any:
        import ray

        try:
            return ray.get(self._refs[group])
        except ray.exceptions.RayError as error:
            raise DataError(
                f"{_where(group)} is lost: {str(error).strip().partition(chr(10))[0]}; it "
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
) -> RayBlockSource:
    """Returns a source of the rows of a Ray Data set, which is materialized into Ray's object store.

    Hand a dataset that is materialized already to a run of several workers: each would do it by itself.

    Args:
      dataset: A `ray.data.Dataset`.
      features, label, columns, dtype, defaults: As for `from_parquet`.

    Raises:
      DataError: It has no rows, a column is missing, or no tensor's.
    """
    if not callable(getattr(dataset, "to_arrow_refs", None)):
        raise DataError(f"from_ray_dataset got {type(dataset).__name__}; give a ray.data.Dataset")
    if features is not None and columns is not None:
        raise DataError("from_ray_dataset got features and columns; give one of them")
    return RayBlockSource(
        dataset, features=features, label=label, columns=columns, dtype=dtype, defaults=dict(defaults or {})
    )


def _where(group: int) -> str:
    return f"block {group} of the Ray dataset"


def _num_rows(table: Any) -> int:
    return int(table.num_rows)
