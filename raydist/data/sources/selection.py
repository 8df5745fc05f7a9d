"""Selection: which columns of a table make up an example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raydist.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What the user chose of a table; see `from_parquet`.

    Attributes:
      what: The function that was given it, as errors name it.
      dtype: Of the stacked features; anything that NumPy makes a type of.
      defaults: What stands in for nulls, by column.
    """

    what: str
    features: Sequence[str] | None
    label: str | None
    columns: Sequence[str] | None
    dtype: Any
    defaults: Mapping[str, Any]

    def __post_init__(self) -> None:
        if self.features is not None and self.columns is not None:
            raise DataError(
                f"{self.what} got features and columns; give features for one tensor, or columns for a dict"
            )

    @property
    def wanted(self) -> Sequence[str] | None:
        """The columns that are named beside the label; None where all are wanted."""
        return self.columns if self.features is None else self.features

    def stacked_type(self) -> np.dtype[Any]:
        """Returns the type of stacked features; raises DataError for one that is no number's."""
        try:
            found: np.dtype[Any] = np.dtype(self.dtype)
        except TypeError:
            found = np.dtype(object)
        if found.kind not in "biuf":
            raise DataError(f"dtype is {self.dtype!r}; give a type of numbers, such as 'float32' or 'int64'")
        return found
