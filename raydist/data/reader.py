"""Reader: the examples of any step, quick when steps are asked for in order."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Sequence

import numpy as np

from raydist.data.examples import Examples
from raydist.data.order.permutation import key_of, permuted
from raydist.data.order.steps import Steps
from raydist.data.order.windows import MAX_LANES, Stretch, Window, WindowedOrder


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
# files are remote, the windows of all lanes are waited for at once.
_NUM_LOADERS, _NUM_REMOTE_LOADERS = 2, MAX_LANES
# TensorFlow takes arrays that begin at a multiple of so many bytes as they are, and copies others.
_ALIGNMENT = 64
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
        with self._lock:
            lanes = {}
            for lane in range(order.num_lanes):
                lane_first, lane_end = order.slots(lane, size)
                if max(first, lane_first) < min(end, lane_end):
                    lanes[lane_first, lane_end] = order.stretches(lane, step, num_steps)
            self._begin([stretches[0].window for stretches in lanes.values()])
            parts = []
            for (lane_first, lane_end), stretches in lanes.items():
                begin, stop = max(first, lane_first) - lane_first, min(end, lane_end) - lane_first
                parts.append(
                    [
                        array.reshape(num_steps, lane_end - lane_first, *array.shape[1:])[:, begin:stop]
                        for array in self._rows(stretches)
                    ]
                )
        return [_joined(arrays) for arrays in zip(*parts, strict=True)]

    def _begin(self, windows: Sequence[Window]) -> None:
        """Has windows of several lanes read at the same time: when a run begins, none of them is there."""
        missing = [window for window in windows if _key_of(window) not in self._loads]
        for window in missing[:1]:
            self._loads[_key_of(window)] = _Load(window)  # this thread reads it
        for window in missing[1:]:
            self._loads[_key_of(window)] = self._read_ahead(window)

    def _rows(self, stretches: Sequence[Stretch]) -> list[np.ndarray]:
        parts = [self._load_of(stretch.window).rows(stretch.first, stretch.end) for stretch in stretches]
        if len(parts) == 1:
            return parts[0]
        return [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]

    def _load_of(self, window: Window) -> _Load:
        key = _key_of(window)
        self._begin([window])
        load = self._loads[key]
        load.wait(self._source)
        # Jumping back and forth is right as well, only slow.
        following = self._order.after(window)
        kept = {key, _key_of(following)}
        for other in [other for other in self._loads if other[1] == window.lane and other not in kept]:
            self._loads.pop(other).drop()
        if _key_of(following) not in self._loads and (self._epochs is None or following.epoch < self._epochs):
            self._loads[_key_of(following)] = self._read_ahead(following)
        return load

    def _read_ahead(self, window: Window) -> _Load:
        load = _Load(window)
        with self._queue_lock:
            self._queue.append(load)
            if self._num_loaders < self._max_loaders:
                # A daemon that ends with its queue: a process that has to end waits for no storage.
                threading.Thread(target=self._load_queue, name="raydist-data", daemon=True).start()
                self._num_loaders += 1
        return load

    def _load_queue(self) -> None:
        while True:
            with self._queue_lock:
                if not self._queue:
                    self._num_loaders -= 1
                    return
                load = self._queue.popleft()
            load.run(self._source)
            del load  # else a window that is no longer needed would stay until the next one is read


class _Load:
    """One window's examples, read once, by whoever comes first."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._lock = threading.Lock()
        self._arrays: list[np.ndarray] | None = None
        self._order: np.ndarray | None = None
        self._is_dropped = False

    def drop(self) -> None:
        """Says that nobody will ask for it: if it still waits to be read ahead, it is not read."""
        self._is_dropped = True

    def run(self, source: Examples) -> None:
        """Reads, unless another thread did or does; an error is left to `wait`, which tries once more."""
        if self._is_dropped or not self._lock.acquire(blocking=False):
            return
        try:
            self._read(source)
        except Exception:  # whatever the source raises, the thread that needs the window raises it
            return
        finally:
            self._lock.release()

    def wait(self, source: Examples) -> None:
        """Waits until it is read, and reads it if nobody does."""
        with self._lock:
            self._read(source)

    def rows(self, first: int, end: int) -> list[np.ndarray]:
        """Returns the examples at these places, once they are read.

        Only now are they put into their order: a block of them stays in the cache until it is copied on.
        """
        assert self._arrays is not None
        if self._order is None:
            return [array[first:end] for array in self._arrays]
        return [array.take(self._order[first:end], axis=0) for array in self._arrays]

    def _read(self, source: Examples) -> None:
        if self._arrays is None:
            self._order = self._window.order()
            self._arrays = source.read(self._window.pieces)


def _key_of(window: Window) -> _Key:
    return window.epoch, window.lane, window.number


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the examples of several lanes, `[steps, own, ...]`, side by side, in memory of their own."""
    like = parts[0]
    shape = like.shape[0], sum(part.shape[1] for part in parts), *like.shape[2:]
    if like.dtype.kind == "O":
        return np.concatenate(parts, axis=1)
    num_bytes = math.prod(shape) * like.itemsize
    memory = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % _ALIGNMENT
    joined = memory[first : first + num_bytes].view(like.dtype).reshape(shape)
    return np.concatenate(parts, axis=1, out=joined)
