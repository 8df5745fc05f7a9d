"""ArrowSource: groups of rows that are read as Arrow tables."""

from __future__ import annotations

import abc
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from raydist.data.fields import Field
from raydist.data.order.windows import Piece
from raydist.data.sources.columns import Layout, width_of
from raydist.data.sources.source import GroupedSource


class ArrowSource(GroupedSource):
    """A source whose groups are tables."""

    def __init__(self, layout: Layout, group_sizes: Sequence[int] | np.ndarray, *, text_bytes: int) -> None:
        """Takes what the tables hold, and reads the first one where the lengths of lists show only there.

        Args:
          group_sizes: At least one, and none of them 0.
          text_bytes: The size of a row's texts, estimated.
        """
        self._layout = layout
        self._text_bytes = text_bytes
        self.group_sizes = np.array(group_sizes, np.int64)
        self.structure = layout.structure
        lists = [column for column in layout.columns if column.needs_width]
        first = self._table(0, [column.name for column in lists]) if lists else None
        self._widths = {column.name: width_of(column, first) for column in lists}
        self.fields: tuple[Field, ...] = layout.fields(self._widths)

    @abc.abstractmethod
    def _table(self, group: int, names: Sequence[str]) -> pa.Table:
        """Returns the rows of a group, with these columns at least. Raises DataError."""

    @abc.abstractmethod
    def _where(self, group: int) -> str:
        """Returns what errors call a group."""

    @property
    def num_bytes(self) -> int:
        return super().num_bytes + self._text_bytes

    def read_into(self, arrays: Sequence[np.ndarray], piece: Piece) -> None:
        table = self._table(piece.group, [column.name for column in self._layout.columns])
        rows = table.slice(piece.first, piece.num_rows)
        self._layout.fill(arrays, rows, widths=self._widths, where=self._where(piece.group))
