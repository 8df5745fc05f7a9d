"""The order of examples that come in groups, such as Parquet's row groups, which are cheap only as a whole.

The groups of an epoch are permuted and laid end to end, and the row of examples that this makes is cut
into lanes of almost equal length. Each global batch takes the same number of examples from each lane, so
a worker that needs a part of each batch reads the lanes of this part alone; the number of lanes is a
matter of the data, not of the workers, as in MosaicML's canonical nodes. A lane is read window by window,
a window being several groups, and within a window the examples are permuted. Nothing but a window's groups
is ever in memory, and any step of any epoch is found without reading what comes before it. Data that fit
into one window have the order of data in memory.

Where an epoch leaves a remainder out, the row begins anywhere inside of its first group, whose rows before
that end the row: so each example is left out at some time, also where there is but one group.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from raydist.data.order.permutation import key_of, permuted
from raydist.data.order.steps import Steps

# Divided by 1, 2, 3, 4, 6 and 12 workers without a lane that two of them read.
MAX_LANES = 12
# So many groups are in a lane's window at least, where there are several lanes.
_GROUPS_PER_WINDOW = 4


@dataclass(frozen=True)
class Piece:
    """Rows `first` to `end` of a group."""

    group: int
    first: int
    end: int

    @property
    def num_rows(self) -> int:
        return self.end - self.first


@dataclass(frozen=True, kw_only=True)
class Window:
    """A stretch of a lane that is read at once.

    Attributes:
      first: Where in its lane it begins.
      key: Of the permutation of its rows; None where they stay in order.
    """

    epoch: int
    lane: int
    number: int
    first: int
    pieces: tuple[Piece, ...]
    key: int | None

    @property
    def num_rows(self) -> int:
        return sum(piece.num_rows for piece in self.pieces)

    def order(self) -> np.ndarray | None:
        """Returns which of its rows comes at each of its places; None where they stay in order."""
        return None if self.key is None else permuted(np.arange(self.num_rows), self.num_rows, self.key)


@dataclass(frozen=True)
class Stretch:
    """Places `first` to `end` of a window."""

    window: Window
    first: int
    end: int


@dataclass(frozen=True)
class _Lane:
    windows: list[Window]
    starts: np.ndarray  # the windows' `first`


class WindowedOrder:
    """The order of every epoch of a source in groups."""

    def __init__(self, group_sizes: np.ndarray, steps: Steps, *, seed: int | None, window_rows: int) -> None:
        """Takes the number of rows of each group, int64 `[groups]`.

        Args:
          seed: None keeps the order of the source.
          window_rows: Rows of the windows of all lanes together, at most; but a window has a group at least.
        """
        self._sizes = np.asarray(group_sizes, np.int64)
        self.steps = steps
        self._seed = seed
        largest = max(int(self._sizes.max(initial=1)), 1)
        fitting = window_rows // (_GROUPS_PER_WINDOW * largest)
        wanted = min(MAX_LANES, fitting, len(self._sizes) // _GROUPS_PER_WINDOW, steps.batch_size)
        self._fits = steps.num_examples <= window_rows
        self.num_lanes = 1 if seed is None or self._fits else max(1, wanted)
        self._window_rows = max(1, window_rows // self.num_lanes)
        self._laid_out: dict[int, list[_Lane]] = {}

    def slots(self, lane: int, size: int) -> tuple[int, int]:
        """Returns which examples of a batch of `size` come from a lane: the first and the end."""
        return -(-lane * size // self.num_lanes), -(-(lane + 1) * size // self.num_lanes)

    def stretches(self, lane: int, step: int, num_steps: int) -> list[Stretch]:
        """Returns where the lane's examples of some steps are, in their order.

        Args:
          step: The first step, of the run. The batches of all of them have one size.
        """
        epoch, step_in_epoch = self.steps.locate(step)
        first, end = self.slots(lane, self.steps.size_of(step_in_epoch))
        # Only the last batch of an epoch is not full, and all before it are.
        place = step_in_epoch * self._rows_per_step(lane)
        return self._cut(epoch, lane, place, place + num_steps * (end - first))

    def after(self, window: Window) -> Window:
        """Returns the window that is read after another one of its lane."""
        windows = self._lanes(window.epoch)[window.lane].windows
        if window.number + 1 < len(windows):
            return windows[window.number + 1]
        return self._lanes(window.epoch + 1)[window.lane].windows[0]

    def _rows_per_step(self, lane: int) -> int:
        first, end = self.slots(lane, self.steps.batch_size)
        return end - first

    def _cut(self, epoch: int, lane: int, first: int, end: int) -> list[Stretch]:
        laid_out = self._lanes(epoch)[lane]
        number = int(np.searchsorted(laid_out.starts, first, side="right")) - 1
        found = []
        while first < end:
            window = laid_out.windows[number]
            stop = min(end, window.first + window.num_rows)
            found.append(Stretch(window, first - window.first, stop - window.first))
            first, number = stop, number + 1
        return found

    def _lane_sizes(self) -> list[int]:
        steps = self.steps
        sizes = []
        for lane in range(self.num_lanes):
            last_first, last_end = self.slots(lane, steps.last_size)
            sizes.append(steps.num_full * self._rows_per_step(lane) + last_end - last_first)
        return sizes

    def _lanes(self, epoch: int) -> list[_Lane]:
        lanes = self._laid_out.get(epoch)
        if lanes is None:
            lanes = self._lay_out(epoch)
            # The epoch before and the next one, of which the first windows are read ahead.
            kept = {number: old for number, old in self._laid_out.items() if abs(number - epoch) == 1}
            self._laid_out = {**kept, epoch: lanes}
        return lanes

    def _lay_out(self, epoch: int) -> list[_Lane]:
        if self._seed is not None and self._fits:
            key = key_of(self._seed, epoch)
            pieces = tuple(self._groups())
            whole = Window(epoch=epoch, lane=0, number=0, first=0, pieces=pieces, key=key)
            return [_Lane([whole], np.zeros(1, np.int64))]
        row = self._row(epoch)
        ends = np.cumsum([piece.num_rows for piece in row])
        lanes, first = [], 0
        for number, size in enumerate(self._lane_sizes()):
            windows = self._windows_of(epoch, number, row, ends, first, first + size)
            lanes.append(_Lane(windows, np.array([window.first for window in windows])))
            first += size
        return lanes

    def _groups(self) -> list[Piece]:
        """Returns the groups in the source's order, the empty ones left out."""
        return [Piece(group, 0, int(self._sizes[group])) for group in np.flatnonzero(self._sizes).tolist()]

    def _row(self, epoch: int) -> list[Piece]:
        """Returns the groups of an epoch in their order."""
        groups = self._groups()
        if self._seed is None:
            return groups
        key = key_of(self._seed, epoch)
        first, *rest = [groups[place] for place in permuted(np.arange(len(groups)), len(groups), key)]
        if self.steps.is_whole:
            return [first, *rest]
        [begin] = permuted(np.zeros(1, np.int64), first.num_rows, key_of(key, 0)).tolist()
        head, tail = Piece(first.group, begin, first.end), Piece(first.group, 0, begin)
        return [head, *rest, tail] if begin else [head, *rest]

    def _windows_of(
        self, epoch: int, lane: int, row: list[Piece], ends: np.ndarray, first: int, end: int
    ) -> list[Window]:
        """Cuts a lane, the rows `first` to `end` of the epoch, into windows of whole groups."""
        windows: list[Window] = []
        pieces: list[Piece] = []
        start = num_rows = 0

        def close() -> None:
            nonlocal pieces, start, num_rows
            if pieces:
                number = len(windows)
                key = None if self._seed is None else key_of(self._seed, epoch, lane + 1, number)
                windows.append(
                    Window(epoch=epoch, lane=lane, number=number, first=start, pieces=tuple(pieces), key=key)
                )
            pieces, start, num_rows = [], start + num_rows, 0

        at = first
        number = int(np.searchsorted(ends, first, side="right"))
        while at < end:
            piece, piece_end = row[number], int(ends[number])
            stop = min(end, piece_end)
            if pieces and num_rows + stop - at > self._window_rows:
                close()
            # Of a row's place, minus this, comes the row of the group.
            offset = piece_end - piece.end
            pieces.append(Piece(piece.group, at - offset, stop - offset))
            num_rows += stop - at
            at, number = stop, number + 1
        close()
        return windows
