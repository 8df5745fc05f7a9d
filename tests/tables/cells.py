"""The cells of the table of sizes and calls: which there are, and a choice that has each pair of values."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

ROWS = (1, 7, 8, 64, 65, 320)
BATCHES = ("1", "8", "32", "more", "default")
IN_MEMORY = ("array", "dict", "list", "tensor", "ragged", "sparse")
TF_DATA = ("static", "dynamic", "unknown", "drop_remainder", "infinite")
KINDS = (*IN_MEMORY, *TF_DATA, "py_dataset", "generator", "batches")
ON_BATCH = ("predict_on_batch", "test_on_batch", "train_on_batch")
OF_CONTEXT = ("ctx.predict", "ctx.evaluate", "ctx.fit", "ctx.train_steps")
CALLS = ("predict", "evaluate", "fit", *ON_BATCH, *OF_CONTEXT)
Where = tuple[int, str, int]  # workers, a Keras, and virtual replicas; 0 for none
CLUSTERS: tuple[Where, ...] = ((2, "3", 0), (2, "3", 3), (2, "legacy", 3), (1, "3", 3), (3, "legacy", 0))


@dataclass(frozen=True)
class Cell:
    """What is computed, and where.

    Attributes:
      batch: The size of a batch, as BATCHES names it.
    """

    call: str
    kind: str
    rows: int
    batch: str
    where: Where = CLUSTERS[0]

    @property
    def size(self) -> int:
        """The size of a batch."""
        return {"more": self.rows + 5, "default": 32}.get(self.batch) or int(self.batch)

    @property
    def has_one_row(self) -> bool:
        """Whether no replica has more than one row of a batch."""
        workers, _, virtual = self.where
        return min(self.rows, self.size) <= (virtual or workers)

    @property
    def name(self) -> str:
        """Names it among those of its cluster."""
        return f"{self.call} {self.kind} {self.rows}/{self.batch}"

    @property
    def impossible(self) -> str | None:
        """Why there is no such cell; None for one that there is."""
        is_of_context = self.call in OF_CONTEXT
        if self.call in ON_BATCH and self.kind not in IN_MEMORY:
            return "a batch that is passed by hand is in memory"
        if self.kind == "batches" and not is_of_context:
            return "Keras takes no batches of raydist.data"
        if self.kind in ("ragged", "sparse") and is_of_context:
            return "ctx.fit, ctx.evaluate and ctx.predict refuse them, and name tf.data.Dataset"
        if self.call == "ctx.train_steps" and self.kind not in (*TF_DATA, "batches"):
            return "ctx.train_steps takes batches alone"
        if self.call == "ctx.predict" and self.kind in ("py_dataset", "generator"):
            return "ctx.predict refuses them, and names tf.data.Dataset"
        has_size = self.call not in ("ctx.predict", "ctx.evaluate") or self.kind not in IN_MEMORY
        if not has_size and self.batch != "default":
            return "they have no batch_size"
        if self.batch == "default" and self.kind not in IN_MEMORY:
            return "they are batched already"
        if self.kind in ("static", "drop_remainder", "batches") and self.size > self.rows:
            return "the data have no whole batch, which plain Keras or raydist.data refuses"
        return None


# What was wrong once: batches that the replicas divide, virtual replicas of other workers, and workers with
# different numbers of them.
KNOWN = (
    *(Cell("predict", kind, 320, "32") for kind in ("array", "dynamic", "drop_remainder", "py_dataset")),
    Cell("predict", "static", 65, "8"),
    Cell("predict", "array", 1, "more"),
    Cell("ctx.predict", "drop_remainder", 320, "32"),
    Cell("predict_on_batch", "array", 8, "8"),
    Cell("evaluate", "array", 320, "32"),
    Cell("fit", "static", 64, "8"),
    Cell("ctx.fit", "py_dataset", 7, "8"),
    *(Cell("predict", kind, 65, "6", CLUSTERS[1]) for kind in ("array", "static")),
    Cell("predict", "infinite", 1, "6", CLUSTERS[1]),
    Cell("ctx.fit", "batches", 65, "6", CLUSTERS[1]),
    Cell("predict_on_batch", "array", 7, "6", CLUSTERS[1]),
    Cell("evaluate", "unknown", 7, "6", CLUSTERS[1]),
)


# Each two values of a cell, with their dimensions.
Pair = tuple[tuple[int, object], tuple[int, object]]


@functools.cache
def possible() -> Mapping[Cell, tuple[Pair, ...]]:
    """Returns each cell of all values that there is, with its pairs."""
    values = itertools.product(CALLS, KINDS, ROWS, BATCHES, CLUSTERS)
    return {cell: pairs_of(cell) for cell in itertools.starmap(Cell, values) if cell.impossible is None}


def pairs_of(cell: Cell) -> tuple[Pair, ...]:
    return tuple(itertools.combinations(enumerate(vars(cell).values()), 2))


@functools.cache
def chosen() -> tuple[Cell, ...]:
    """Returns the cells that are computed: those of KNOWN, and others until each pair of values is there."""
    cells = list(KNOWN)
    left = dict.fromkeys(pair for pairs in possible().values() for pair in pairs)
    uses: Counter[object] = Counter()
    for cell in cells:  # grows
        uses.update(enumerate(vars(cell).values()))
        for pair in pairs_of(cell):
            left.pop(pair, None)
        if cell is cells[-1] and left:
            cells.append(_best(next(iter(left)), left, uses))
    return tuple(cells)


def _best(pair: Pair, left: Mapping[Pair, None], uses: Mapping[object, int]) -> Cell:
    """Returns a cell with a pair of values, and as many others of `left` as choosing one by one finds.

    Of equal ones it is one whose values are used least: not always one row on one worker.
    """
    usable = {cell: pairs for cell, pairs in possible().items() if pair in pairs}

    def worth(cell: Cell) -> tuple[int, int]:
        return sum(one in left for one in usable[cell]), -sum(
            uses[one] for one in enumerate(vars(cell).values())
        )

    return max(usable, key=worth)
