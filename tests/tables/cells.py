"""The cells of the table of sizes and calls: which there are, and a choice that has each pair of values."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace

from tests.support.processes import Cluster

ROWS = (1, 7, 8, 64, 65, 320)
BATCHES = ("1", "8", "32", "more", "default")
IN_MEMORY = ("array", "dict", "list", "tensor", "ragged", "sparse")
TF_DATA = ("static", "dynamic", "unknown", "drop_remainder", "infinite")
KINDS = (*IN_MEMORY, *TF_DATA, "py_dataset", "generator", "batches")
ON_BATCH = ("predict_on_batch", "test_on_batch", "train_on_batch")
OF_CONTEXT = ("ctx.predict", "ctx.evaluate", "ctx.fit", "ctx.train_steps")
CALLS = ("predict", "evaluate", "fit", *ON_BATCH, *OF_CONTEXT)
WORKERS = (1, 2, 3)
KERASES = ("3", "legacy")
VIRTUAL = (0, 4)
# Their rows, batches and kinds are combined in all ways.
WHOLE = ("predict", "evaluate")


@dataclass(frozen=True)
class Cell:
    """What is computed, and where.

    Attributes:
      batch: The size of a batch, as BATCHES names it.
      virtual: Virtual replicas; 0 for none.
    """

    call: str
    kind: str
    rows: int
    batch: str
    workers: int = 2
    keras: str = "3"
    virtual: int = 0

    @property
    def size(self) -> int:
        """The size of a batch."""
        return {"more": self.rows + 5, "default": 32}.get(self.batch) or int(self.batch)

    @property
    def has_one_row(self) -> bool:
        """Whether no replica has more than one row of a batch."""
        return min(self.rows, self.size) <= (self.virtual or self.workers)

    @property
    def name(self) -> str:
        """Names it among those of its cluster."""
        return f"{self.call} {self.kind} {self.rows}/{self.batch}"

    @property
    def where(self) -> tuple[int, str, int]:
        return self.workers, self.keras, self.virtual

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


def clusters() -> list[tuple[int, str, int]]:
    return list(itertools.product(WORKERS, KERASES, VIRTUAL))


def cluster_of(where: tuple[int, str, int]) -> Cluster:
    workers, keras, _ = where
    strategy = "multi_worker_mirrored" if workers > 1 else "one_device"
    return Cluster(strategy=strategy, workers=workers, keras=keras)


def possible() -> Iterator[Cell]:
    """Yields each cell of all values that there is."""
    for values in itertools.product(CALLS, KINDS, ROWS, BATCHES, *map(tuple, (WORKERS, KERASES, VIRTUAL))):
        if (cell := Cell(*values)).impossible is None:
            yield cell


Pair = tuple[tuple[int, object], tuple[int, object]]


def pairs_of(cell: Cell) -> list[Pair]:
    """Returns each two values of a cell, with their dimensions."""
    return list(itertools.combinations(enumerate(astuple(cell)), 2))


@functools.cache
def all_pairs() -> dict[Pair, None]:
    """Returns the pairs of values that some cell has, in an order that is always the same."""
    return dict.fromkeys(pair for cell in possible() for pair in pairs_of(cell))


@functools.cache
def chosen() -> tuple[Cell, ...]:
    """Returns the cells that are computed."""
    cells = [one for one in _everywhere() if one.impossible is None]
    left = dict.fromkeys(all_pairs())
    for pair in (pair for cell in cells for pair in pairs_of(cell)):
        left.pop(pair, None)
    uses = Counter(value for cell in cells for value in enumerate(astuple(cell)))
    while left:
        cell = _best(next(iter(left)), left, uses)
        cells.append(cell)
        uses.update(enumerate(astuple(cell)))
        for pair in pairs_of(cell):
            left.pop(pair, None)
    return tuple(dict.fromkeys(cells))


def _everywhere() -> Iterator[Cell]:
    """Yields what is combined in all ways, on one cluster after the other."""
    turns = itertools.cycle(clusters())
    for call, kind, rows, batch in itertools.product(WHOLE, KINDS, ROWS, BATCHES):
        cell = Cell(call, kind, rows, batch)
        if cell.impossible is None:
            workers, keras, virtual = next(turns)
            yield replace(cell, workers=workers, keras=keras, virtual=virtual)


def _best(pair: Pair, left: Mapping[Pair, None], uses: Mapping[tuple[int, object], int]) -> Cell:
    """Returns a cell with a pair of values, and as many others of `left` as choosing one by one finds.

    Of equal ones it is one whose values are used least: not always one row on one worker.
    """
    dimensions: list[Sequence[object]] = [CALLS, KINDS, ROWS, BATCHES, WORKERS, KERASES, VIRTUAL]
    for place, value in pair:
        dimensions[place] = (value,)
    candidates = (Cell(*values) for values in itertools.product(*dimensions))  # type: ignore[arg-type]
    usable = [cell for cell in candidates if cell.impossible is None]

    def worth(cell: Cell) -> tuple[int, int]:
        return sum(one in left for one in pairs_of(cell)), -sum(uses[one] for one in enumerate(astuple(cell)))

    return max(usable, key=worth)
