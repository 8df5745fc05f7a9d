"""mix: several sources as one."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any, Literal, get_args

from raydist.data.batches import Batches
from raydist.data.mixture import Mixture
from raydist.data.order.schedule import Schedule, int_weights
from raydist.data.sources.source import Source
from raydist.errors import DataError

Stop = Literal["shortest", "longest"]


class MixedSource(Mixture, Source):
    """Examples of several sources, in the ratio of their weights."""


def mix(
    sources: Sequence[Source], *, weights: Sequence[float] | None = None, stop: Stop = "shortest"
) -> MixedSource:
    """Returns a source that takes its examples from several sources, in a fixed order.

    Example:
        source = raydist.data.mix([web, books], weights=[0.7, 0.3])
        ctx.fit(model, source.batches(global_batch_size=1024, seed=7), epochs=3)

    Any stretch of the order has the sources in the ratio of their weights, to an example or so. Each source
    is in its own shuffled order, a new one for each pass over it, and no pass has an example twice.

    Args:
      sources: Of any kind, also mixed ones. Their examples have the same structure, types and shapes.
      weights: A number above 0 for each source, which need not sum to 1; None for equal ones.
      stop: When an epoch ends. `shortest`: when a source that has been read once would be next; of the
        others each epoch has other examples, if they are shuffled. `longest`: when every source has been
        read once; the others are repeated, in a new order each time.

    Raises:
      DataError: The examples differ in kind, or an argument is none of these. Sources of TFRecords and
        images are compared when the first batch is made.
    """
    if isinstance(sources, Source | str) or not isinstance(sources, Sequence) or not sources:
        raise DataError(f"mix got sources {_shown(sources)}; give a list of sources, one at least")
    for number, source in enumerate(sources):
        if isinstance(source, Batches):
            raise DataError(
                f"mix got batches as source {number}; give the sources, and call .batches(…) of the mixture"
            )
        if not isinstance(source, Source):
            raise DataError(f"mix got {_shown(source)} as source {number}; give sources of raydist.data")
    if stop not in get_args(Stop):
        raise DataError(f"mix got stop {stop!r}; it is 'shortest' or 'longest'")
    schedule = Schedule(
        sizes=tuple(map(len, sources)),
        weights=_checked_weights(weights, len(sources)),
        repeats=stop == "longest",
    )
    return MixedSource(sources, schedule)


def _checked_weights(weights: Any, num_sources: int) -> tuple[int, ...]:
    if weights is None:
        return (1,) * num_sources
    try:
        found = list(weights)
    except TypeError:
        raise DataError(f"mix got weights {weights!r}; give a list of numbers, one for each source") from None
    if len(found) != num_sources:
        raise DataError(f"mix got {len(found)} weights for {num_sources} sources; give one for each")
    for number, weight in enumerate(found):
        is_number = isinstance(weight, numbers.Real) and not isinstance(weight, bool)
        if not is_number or not 0 < weight < math.inf:
            raise DataError(
                f"mix got weight {weight!r} for source {number}; give a number above 0, and leave out a "
                "source that is not wanted"
            )
    return int_weights(found)


def _shown(value: object) -> str:
    return repr(value) if value is None or isinstance(value, str | list | tuple) else type(value).__name__
