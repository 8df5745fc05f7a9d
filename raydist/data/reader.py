"""Reader: the examples of any step, quick when steps are asked for in order."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from raydist.data.examples import Examples
from raydist.data.order.permutation import key_of, permuted
from raydist.data.order.steps import Steps
from raydist.data.order.windows import Piece, Stretch, Window, WindowedOrder


class Reader:
    """Reads parts of the global batches of one recipe. Safe to use from several threads."""

    def __init__(
        self, source: Examples, steps: Steps, *, seed: int | None, window_bytes: int, epochs: int | None
    ) -> None:
        """Takes what makes the order.

        Args:
          seed: None keeps the order of the source.
          window_bytes: What a source in groups mixes at once.
          epochs: After so many nothing is read ahead.
        """
        self._source = source
        self._steps = steps
        self._seed = seed
        self._windows: _Windows | None = None
        if source.group_sizes is not None:
            window_rows = max(1, window_bytes // source.num_bytes)
            order = WindowedOrder(source.group_sizes, steps, seed=seed, window_rows=window_rows)
            self._windows = _Windows(source, order, epochs=epochs)

    def block(self, step: int, num_steps: int, first: int, end: int) -> list[np.ndarray]:
        """Returns the examples `first` to `end` of each batch of some steps.

        Args:
          step: The first step, of the run. All of them are of one epoch, with batches of one size.

        Returns:
          One array `[num_steps, end - first, ...]` for each field of the source.

        Raises:
          DataError: The source cannot be read.
        """
        if self._windows is not None:
            return self._windows.block(step, num_steps, first, end)
        steps = self._steps
        epoch, step_in_epoch = steps.locate(step)
        places = (step_in_epoch + np.arange(num_steps)[:, None]) * steps.batch_size + np.arange(first, end)
        rows = places.reshape(-1)
        if self._seed is not None:
            rows = permuted(rows, steps.num_examples, key_of(self._seed, epoch))
        return [array.reshape(*places.shape, *array.shape[1:]) for array in self._source.take(rows)]


# Threads that read ahead: while one lays columns side by side, on one core, the other one decodes. Where
# files are remote, so many groups are waited for at once, of all lanes together.
_NUM_LOADERS, _NUM_REMOTE_LOADERS = 2, 64
# TensorFlow takes arrays that begin at a multiple of so many bytes as they are, and copies others.
ALIGNMENT = 64
# Up to here a window is still in the cache when it has been read.
_CACHED_BYTES = 8e6
_Key = tuple[int, int, int]


class _Windows:
    """The windows that are in memory: of each lane the one in use and the one after it."""

    def __init__(self, source: Examples, order: WindowedOrder, *, epochs: int | None) -> None:
        self._source = source
        self._order = order
        self._epochs = epochs
        self._lock = threading.Lock()  # of `_loads`
        self._loads: dict[_Key, _Load] = {}
        self._queue: deque[_Load] = deque()
        self._num_loaders = 0
        is_remote = source.files is not None and source.files.are_remote
        self._max_loaders = _NUM_REMOTE_LOADERS if is_remote else _NUM_LOADERS
        self._queue_lock = threading.Lock()

    def block(self, step: int, num_steps: int, first: int, end: int) -> list[np.ndarray]:
        order = self._order
        size = order.steps.size_of(order.steps.locate(step)[1])
        arrays = [
            _aligned((num_steps, end - first, *field.shape), field.dtype) for field in self._source.fields
        ]
        with self._lock:
            lanes = {}
            for lane in range(order.num_lanes):
                lane_first, lane_end = order.slots(lane, size)
                if max(first, lane_first) < min(end, lane_end):
                    lanes[lane_first, lane_end] = order.stretches(lane, step, num_steps)
            self._begin([stretches[0].window for stretches in lanes.values()])
            if list(lanes) == [(first, end)]:
                [stretches] = lanes.values()
                rows = num_steps * (end - first)  # not -1, which arrays of no values do not say
                self._copy(stretches, [array.reshape(rows, *array.shape[2:]) for array in arrays])
                return arrays
            parts = []
            for (lane_first, lane_end), stretches in lanes.items():
                begin, stop = max(first, lane_first) - lane_first, min(end, lane_end) - lane_first
                parts.append(
                    [
                        array.reshape(num_steps, lane_end - lane_first, *array.shape[1:])[:, begin:stop]
                        for array in self._rows(stretches)
                    ]
                )
        for array, own in zip(arrays, zip(*parts, strict=True), strict=True):
            np.concatenate(own, axis=1, out=array)
        return arrays

    def _begin(self, windows: Sequence[Window]) -> None:
        """Has windows of several lanes read at the same time: when a run begins, none of them is there."""
        missing = [window for window in windows if _key_of(window) not in self._loads]
        for window in missing:
            load = self._loads[_key_of(window)] = _Load(window, self._source)
            # This thread reads the first one, with help unless it is a single piece.
            if window is not missing[0] or len(window.pieces) > 1:
                self._read_ahead(load)

    def _rows(self, stretches: Sequence[Stretch]) -> list[np.ndarray]:
        if len(stretches) == 1:
            [stretch] = stretches
            return self._load_of(stretch.window).rows(stretch.first, stretch.end)
        arrays = self._source.room(sum(stretch.end - stretch.first for stretch in stretches))
        self._copy(stretches, arrays)
        return arrays

    def _copy(self, stretches: Sequence[Stretch], arrays: Sequence[np.ndarray]) -> None:
        at = 0
        for stretch in stretches:
            end = at + stretch.end - stretch.first
            load = self._load_of(stretch.window)
            load.copy(stretch.first, stretch.end, [array[at:end] for array in arrays])
            at = end

    def _load_of(self, window: Window) -> _Load:
        key = _key_of(window)
        self._begin([window])
        load = self._loads[key]
        load.wait()
        # Jumping back and forth is right as well, only slow.
        following = self._order.after(window)
        kept = {key, _key_of(following)}
        for other in [other for other in self._loads if other[1] == window.lane and other not in kept]:
            self._loads.pop(other).drop()
        if _key_of(following) not in self._loads and (self._epochs is None or following.epoch < self._epochs):
            ahead = self._loads[_key_of(following)] = _Load(following, self._source)
            self._read_ahead(ahead)
        return load

    def _read_ahead(self, load: _Load) -> None:
        with self._queue_lock:
            self._queue.append(load)
            wanted = min(self._num_loaders + load.num_pieces, self._max_loaders)
            while self._num_loaders < wanted:
                # A daemon that ends with its queue: a process that has to end waits for no storage.
                threading.Thread(target=self._load_queue, name="raydist-data", daemon=True).start()
                self._num_loaders += 1

    def _load_queue(self) -> None:
        while True:
            with self._queue_lock:
                while self._queue and not self._queue[0].is_wanted_ahead:
                    self._queue.popleft()
                if not self._queue:
                    self._num_loaders -= 1
                    return
                load = self._queue[0]
            with suppress(Exception):  # what the source raises, the thread that needs the window raises
                load.read()
            del load  # else a window that is no longer needed would stay until the next one is read


class _Load:
    """One window's examples, of which each piece is read once, by whichever thread comes first."""

    def __init__(self, window: Window, source: Examples) -> None:
        self._window = window
        self._source = source
        self._changed = threading.Condition()  # and the lock of all below
        self._arrays: list[np.ndarray] = []
        self._order: np.ndarray | None = None
        firsts = np.cumsum([0, *(piece.num_rows for piece in window.pieces)]).tolist()
        parts = zip(firsts, window.pieces, strict=False)
        self._unread: deque[tuple[int, Piece] | None] = deque([None, *parts])  # None: the order
        self._num_missing = len(self._unread)
        self._is_ahead = True

    @property
    def num_pieces(self) -> int:
        return len(self._window.pieces)

    @property
    def is_wanted_ahead(self) -> bool:
        """Whether a thread that reads ahead has something to do here."""
        return self._is_ahead and bool(self._unread)

    def drop(self) -> None:
        """Says that nobody will ask for it: what is not read yet will not be read."""
        with self._changed:
            self._unread.clear()
            self._arrays = []

    def wait(self) -> None:
        """Waits until all is read, and reads what no other thread does; raises what the source raises."""
        while self._num_missing:
            self.read()
            with self._changed:
                # What another thread fails to read is unread again, and tried once more.
                self._changed.wait_for(lambda: self._unread or not self._num_missing)

    def read(self) -> None:
        """Reads until nothing is left that no other thread reads; raises what the source raises."""
        while True:
            with self._changed:
                if not self._unread:
                    return
                part = self._unread.popleft()
                self._arrays = self._arrays or self._source.room(self._window.num_rows)
                arrays = self._arrays
            try:
                self._read(part, arrays)
                with self._changed:
                    if self._num_missing == 1:
                        self._finish()
                    self._num_missing -= 1
                    self._changed.notify_all()
            except BaseException:
                with self._changed:
                    self._unread.append(part)
                    self._is_ahead = False
                    self._changed.notify_all()
                raise

    def rows(self, first: int, end: int) -> list[np.ndarray]:
        """Returns the examples at these places, once they are read, perhaps in the window's memory."""
        if self._order is None:
            return [array[first:end] for array in self._arrays]
        return [_taken(array, self._order[first:end]) for array in self._arrays]

    def copy(self, first: int, end: int, arrays: Sequence[np.ndarray]) -> None:
        """Writes the examples at these places, once they are read, into arrays."""
        for array, own in zip(arrays, self._arrays, strict=True):
            if self._order is None:
                array[:] = own[first:end]
            else:
                _taken(own, self._order[first:end], out=array)

    def _read(self, part: tuple[int, Piece] | None, arrays: Sequence[np.ndarray]) -> None:
        if part is None:
            self._order = self._window.order()
            return
        first, piece = part
        self._source.read_into([array[first : first + piece.num_rows] for array in arrays], piece)

    def _finish(self) -> None:
        """Puts a small window into its order; a large one's rows are put into it a block at a time.

        In both cases they are in the cache then.
        """
        if self._order is not None and sum(array.nbytes for array in self._arrays) <= _CACHED_BYTES:
            self._arrays = [_taken(array, self._order) for array in self._arrays]
            self._order = None


def _key_of(window: Window) -> _Key:
    return window.epoch, window.lane, window.number


def _taken(array: np.ndarray, places: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    # No place is outside: with the mode "raise" NumPy would write to memory of its own first.
    return array.take(places, axis=0, out=out, mode="clip")


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Returns an array that TensorFlow takes as it is."""
    if dtype.kind == "O":
        return np.empty(shape, dtype)
    num_bytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(num_bytes + ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % ALIGNMENT
    return memory[first : first + num_bytes].view(dtype).reshape(shape)
