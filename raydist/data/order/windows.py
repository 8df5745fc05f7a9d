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
# Those in use and the next ones are asked for again and again.
_WINDOWS_PER_LANE = 4


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
class _Row:
    """The pieces of groups that an epoch lays end to end, as columns, because there may be millions.

    Attributes:
      groups: Of each piece, int64 `[pieces]`.
      firsts: Its first row in its group.
      ends: Its end in the row of all.
    """

    groups: np.ndarray
    firsts: np.ndarray
    ends: np.ndarray

    def cut(self, first: int, end: int) -> tuple[Piece, ...]:
        """Returns the pieces of the rows `first` to `end`."""
        pieces = []
        number = int(np.searchsorted(self.ends, first, side="right"))
        while first < end:
            stop = min(end, int(self.ends[number]))
            begin = int(self.ends[number - 1]) if number else 0
            offset = int(self.firsts[number]) - begin
            pieces.append(Piece(int(self.groups[number]), first + offset, stop + offset))
            first, number = stop, number + 1
        return tuple(pieces)


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
        self._rows: dict[int, _Row] = {}
        self._lane_bounds: dict[tuple[int, int], np.ndarray] = {}
        self._windows: dict[tuple[int, int, int], Window] = {}

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
        number = window.number + 1
        if number < len(self._bounds(window.epoch, window.lane)) - 1:
            return self._window(window.epoch, window.lane, number)
        return self._window(window.epoch + 1, window.lane, 0)

    def _rows_per_step(self, lane: int) -> int:
        first, end = self.slots(lane, self.steps.batch_size)
        return end - first

    def _cut(self, epoch: int, lane: int, first: int, end: int) -> list[Stretch]:
        bounds = self._bounds(epoch, lane)
        number = int(np.searchsorted(bounds, bounds[0] + first, side="right")) - 1
        found = []
        while first < end:
            window = self._window(epoch, lane, number)
            stop = min(end, window.first + window.num_rows)
            found.append(Stretch(window, first - window.first, stop - window.first))
            first, number = stop, number + 1
        return found

    def _window(self, epoch: int, lane: int, number: int) -> Window:
        window = self._windows.get((epoch, lane, number))
        if window is None:
            window = self._made_window(epoch, lane, number)
            while len(self._windows) >= _WINDOWS_PER_LANE * self.num_lanes:
                del self._windows[next(iter(self._windows))]
            self._windows[epoch, lane, number] = window
        return window

    def _made_window(self, epoch: int, lane: int, number: int) -> Window:
        bounds = self._bounds(epoch, lane)
        first, end = int(bounds[number]), int(bounds[number + 1])
        if self._seed is None:
            key = None
        elif self._fits:
            key = key_of(self._seed, epoch)
        else:
            key = key_of(self._seed, epoch, lane + 1, number)
        pieces = self._row(epoch).cut(first, end)
        return Window(
            epoch=epoch, lane=lane, number=number, first=first - int(bounds[0]), pieces=pieces, key=key
        )

    def _bounds(self, epoch: int, lane: int) -> np.ndarray:
        """Returns the first row of each window of a lane and the end of the last, in the row of the epoch."""
        found = self._lane_bounds.get((epoch, lane))
        if found is None:
            found = self._lay_out(epoch, lane)
            # The epoch before and the next one, of which the first windows are read ahead.
            kept = {key: old for key, old in self._lane_bounds.items() if abs(key[0] - epoch) <= 1}
            self._lane_bounds = {**kept, (epoch, lane): found}
        return found

    def _lay_out(self, epoch: int, lane: int) -> np.ndarray:
        """Cuts a lane into windows of whole groups."""
        ends = self._row(epoch).ends
        if self._seed is not None and self._fits:
            return np.array([0, ends[-1]], np.int64)
        sizes = self._lane_sizes()
        first = sum(sizes[:lane])
        end = first + sizes[lane]
        bounds = [first]
        while bounds[-1] < end:
            most = bounds[-1] + self._window_rows
            # The end of the last group that is whole, or of the only one, if that is larger than a window.
            own, number = np.searchsorted(ends, [bounds[-1], most], side="right").tolist()
            bounds.append(end if most >= end else min(end, int(ends[max(own, number - 1)])))
        return np.array(bounds, np.int64)

    def _lane_sizes(self) -> list[int]:
        steps = self.steps
        sizes = []
        for lane in range(self.num_lanes):
            last_first, last_end = self.slots(lane, steps.last_size)
            sizes.append(steps.num_full * self._rows_per_step(lane) + last_end - last_first)
        return sizes

    def _row(self, epoch: int) -> _Row:
        row = self._rows.get(epoch)
        if row is None:
            row = self._made_row(epoch)
            kept = {number: old for number, old in self._rows.items() if abs(number - epoch) == 1}
            self._rows = {**kept, epoch: row}
        return row

    def _made_row(self, epoch: int) -> _Row:
        """Returns the groups of an epoch in their order, the empty ones left out."""
        groups = np.flatnonzero(self._sizes)
        if self._seed is None or self._fits:
            return _Row(groups, np.zeros_like(groups), np.cumsum(self._sizes[groups]))
        key = key_of(self._seed, epoch)
        groups = groups[permuted(np.arange(len(groups)), len(groups), key)]
        sizes, firsts = self._sizes[groups], np.zeros_like(groups)
        if not self.steps.is_whole:
            size = int(sizes[0])
            [begin] = permuted(np.zeros(1, np.int64), size, key_of(key, 0)).tolist()
            if begin:
                sizes[0], firsts[0] = size - begin, begin
                groups, firsts = np.append(groups, groups[0]), np.append(firsts, 0)
                sizes = np.append(sizes, begin)
        return _Row(groups, firsts, np.cumsum(sizes))
