"""Mixture: several sources as one, and the reader of its batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from isal import isal_zlib

from raydist.data.cached_examples import Place, cached
from raydist.data.examples import Examples, Field, Files
from raydist.data.order.permutation import key_of, permuted
from raydist.data.order.schedule import Schedule
from raydist.data.order.steps import Steps
from raydist.data.order.windows import MAX_LANES
from raydist.data.reader import Reader
from raydist.errors import DataError


class Mixture(Examples):
    """Examples of several sources, in the order of a schedule.

    An example has the fields of its source, between those of the others, which are empty then. Sources whose
    examples consist of the same arrays share their fields.
    """

    def __init__(self, sources: Sequence[Examples], schedule: Schedule) -> None:
        self.sources = tuple(sources)
        self.schedule = schedule
        self.files = _AllFiles.of(self.sources)
        self.most_at_once = min((one.most_at_once for one in sources if one.most_at_once), default=None)
        first, *others = self.sources
        _check_labels(self.sources)
        self.decodes = any(one.decodes for one in self.sources)
        self.is_shared = not self.decodes
        if self.is_shared:
            for number, other in enumerate(others, start=1):
                if _kind(other) != _kind(first):
                    raise unlike(number, _described(other), _described(first))
            self.fields, self.structure = first.fields, first.structure
            return
        own = Field("source", (), np.dtype(np.int32))
        self.fields = (own, *(field for one in self.sources for field in one.fields))
        self.structure = tuple(range(len(self.fields)))

    def __len__(self) -> int:
        return self.schedule.num_examples

    def fingerprint(self) -> int:
        parts = [one.fingerprint() for one in self.sources]
        return int(isal_zlib.crc32(f"{parts} {self.schedule}".encode()))

    @property
    def num_bytes(self) -> int:
        weights = self.schedule.weights
        sizes = [one.num_bytes for one in self.sources]
        return max(1, sum(map(int.__mul__, sizes, weights)) // sum(weights))

    def decode(self, values: Sequence[Any]) -> Any:
        if self.is_shared:
            return super().decode(values)
        import tensorflow as tf

        which, *rest = values
        places, batches = [], []
        for number, source in enumerate(self.sources):
            own = [rest.pop(0) for _ in source.fields]
            places.append(tf.cast(tf.where(tf.equal(which, number))[:, 0], tf.int32))
            batches.append(source.decode([tf.gather(one, places[-1]) for one in own]))
        described = [tf.nest.map_structure(_spec, batch) for batch in batches]
        for number, one in enumerate(described):
            if one != described[0]:
                raise unlike(number, one, described[0])
            if "?" in str(one):
                raise DataError(
                    f"mix got examples {one} from source {number}, whose sizes vary; pad them, in the "
                    "function that parses them or by padded_shapes: a batch may have no example of it"
                )

        def joined(*parts: Any) -> Any:
            whole = tf.dynamic_stitch(places, list(parts))
            return tf.ensure_shape(whole, [which.shape[0], *parts[0].shape[1:]])

        return tf.nest.map_structure(joined, *batches)


class MixedReader:
    """Reads parts of the global batches of a mixture. Safe to use from several threads.

    Each source has small batches of its own, one example from each of its lanes. In a batch of the mixture
    the examples stand by their lanes, so that a worker's part of it has few lanes, as of a single source.
    """

    def __init__(
        self, mixture: Mixture, steps: Steps, *, seed: int | None, window_bytes: int, epochs: int | None
    ) -> None:
        """Takes what makes the order, as Reader does."""
        self._mixture = mixture
        self._steps = steps
        schedule = mixture.schedule
        self._readers = [
            _SourceReader(
                source,
                num_lanes=min(MAX_LANES, steps.batch_size, len(source)),
                seed=None if seed is None else key_of(seed, number + 1),
                window_bytes=max(1, window_bytes * weight // sum(schedule.weights)),
                passes=passes,
                epochs=epochs,
            )
            for number, (source, weight, passes) in enumerate(
                zip(mixture.sources, schedule.weights, schedule.num_passes, strict=True)
            )
        ]

    def block(self, step: int, num_steps: int, first: int, end: int) -> list[np.ndarray]:
        """Returns the examples `first` to `end` of each batch of some steps, as `Reader.block` does."""
        steps = self._steps
        epoch, step_in_epoch = steps.locate(step)
        begin = (step_in_epoch + np.arange(num_steps)) * steps.batch_size
        positions = begin[:, None] + np.arange(steps.size_of(step_in_epoch))
        which, ranks = self._mixture.schedule.locate(positions)
        num_lanes = np.array([reader.num_lanes for reader in self._readers])[which]
        lanes = ranks % num_lanes * MAX_LANES // num_lanes
        own = np.argsort(lanes, axis=1, kind="stable")[:, first:end]
        which, ranks = (np.take_along_axis(one, own, axis=1) for one in (which, ranks))
        arrays = [field.blank(*which.shape) for field in self._mixture.fields]
        rest = arrays
        if not self._mixture.is_shared:
            arrays[0][...] = which
            rest = arrays[1:]
        for number, reader in enumerate(self._readers):
            is_own = which == number
            if is_own.any():
                for array, found in zip(rest, reader.examples(epoch, ranks[is_own]), strict=False):
                    array[is_own] = found
            if not self._mixture.is_shared:
                rest = rest[len(self._mixture.sources[number].fields) :]
        return arrays


class _SourceReader:
    """Reads one source of a mixture, in passes of which each has all of its examples once."""

    def __init__(
        self,
        source: Examples,
        *,
        num_lanes: int,
        seed: int | None,
        window_bytes: int,
        passes: int,
        epochs: int | None,
    ) -> None:
        self.num_lanes = num_lanes
        self._source = source
        self._seed = seed
        self._passes = passes
        self._steps = Steps(num_examples=len(source), batch_size=num_lanes)
        self._reader: Reader | MixedReader | None = None
        if source.group_sizes is not None or isinstance(source, Mixture):
            self._reader = reader_of(
                source,
                self._steps,
                seed=seed,
                window_bytes=window_bytes,
                epochs=None if epochs is None else epochs * passes,
            )

    def examples(self, epoch: int, ranks: np.ndarray) -> list[np.ndarray]:
        """Returns the examples that come after so many others of this source in an epoch of the mixture."""
        passes, places = np.divmod(ranks, len(self._source))
        steps = self._steps
        # A step of its own has one example of each lane; the last step of a pass may have fewer.
        kinds = passes * 2 + (places >= steps.num_full * self.num_lanes)
        if kinds.min() == kinds.max():
            return self._of_pass(epoch * self._passes + int(passes[0]), places)
        found: list[np.ndarray] = []
        for kind in np.unique(kinds).tolist():
            is_one = kinds == kind
            values = self._of_pass(epoch * self._passes + kind // 2, places[is_one])
            if not found:
                found = [np.empty((len(ranks), *value.shape[1:]), value.dtype) for value in values]
            for array, value in zip(found, values, strict=True):
                array[is_one] = value
        return found

    def _of_pass(self, number: int, places: np.ndarray) -> list[np.ndarray]:
        if self._reader is None:
            if self._seed is not None:
                places = permuted(places, len(self._source), key_of(self._seed, number))
            return self._source.take(places)
        steps, slots = np.divmod(places, self.num_lanes)
        step, slot = int(steps.min()), int(slots.min())
        block = self._reader.block(
            number * self._steps.per_epoch + step,
            int(steps.max()) + 1 - step,
            slot,
            int(slots.max()) + 1,
        )
        return [array[steps - step, slots - slot] for array in block]


def reader_of(
    source: Examples, steps: Steps, *, seed: int | None, window_bytes: int, epochs: int | None
) -> Reader | MixedReader:
    """Returns what reads the batches of a source, or of a mixture."""
    if isinstance(source, Mixture):
        return MixedReader(source, steps, seed=seed, window_bytes=window_bytes, epochs=epochs)
    return Reader(source, steps, seed=seed, window_bytes=window_bytes, epochs=epochs)


def with_cache(source: Examples, place: Place) -> Examples:
    """Returns the source, or the mixture, whose examples are kept once they were read; see `cached`."""
    if isinstance(source, Mixture):
        parts = tuple(with_cache(one, place) for one in source.sources)
        return source if parts == source.sources else Mixture(parts, source.schedule)
    return cached(source, place)


def _check_labels(sources: Sequence[Examples]) -> None:
    """Raises DataError where one label is the number of another folder in another source."""
    named = [(number, names) for number, one in enumerate(sources) if (names := one.class_names)]
    for number, names in named[1:]:
        first, known = named[0]
        if names != known:
            raise DataError(
                f"mix got images of the folders {', '.join(names)} from source {number}, and of "
                f"{', '.join(known)} from source {first}, so a label would mean two classes; give images "
                "of the same folders, or read one folder that has them all"
            )


def unlike(number: int, one: Any, first: Any) -> DataError:
    """Returns the error for a source whose examples are not like those of the first one."""
    return DataError(
        f"mix got examples {one} from source {number}, and {first} from source 0; give sources whose "
        "examples have the same structure, types and shapes"
    )


class _AllFiles:
    """The files of several sources, numbered on."""

    def __init__(self, parts: Sequence[Files]) -> None:
        self._parts = parts

    @classmethod
    def of(cls, sources: Sequence[Examples]) -> _AllFiles | None:
        parts = [one.files for one in sources if one.files is not None]
        return cls(parts) if parts else None

    @property
    def are_remote(self) -> bool:
        return any(part.are_remote for part in self._parts)

    def contents(self) -> Sequence[int]:
        return [content for part in self._parts for content in part.contents()]

    def identity(self) -> str:
        return repr([part.identity() for part in self._parts])

    def uri(self, number: int) -> str:
        for part in self._parts:
            count = len(part.contents())
            if number < count:
                return part.uri(number)
            number -= count
        raise IndexError(number)


def _kind(source: Examples) -> Any:
    return source.structure, [(field.shape, field.dtype) for field in source.fields]


def _described(source: Examples) -> Any:
    """Returns an example's types and shapes in its structure, such as `(float32[3], int64[])`."""
    texts = [
        _Text(f"{'string' if field.dtype.kind == 'O' else field.dtype}{list(field.shape)}")
        for field in source.fields
    ]
    return Examples.decode(source, texts)


def _spec(tensor: Any) -> _Text:
    dtype = getattr(tensor.dtype, "name", tensor.dtype)
    sizes = ", ".join("?" if size is None else str(size) for size in tensor.shape[1:])
    return _Text(f"{dtype}[{sizes}]")


class _Text(str):
    """A text that is shown without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
