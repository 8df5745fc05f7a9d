"""Options that raydist no longer has, and what replaces each: for errors, and for records of older runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Removed:
    """An option that is gone.

    Attributes:
      default: Its value in the record of a run that did not set it.
      remedy: What to do instead.
    """

    default: Any
    remedy: str


REMOVED: Mapping[str, Removed] = {
    "dump_xla": Removed(False, "use --env XLA_FLAGS=--xla_dump_to=DIR"),
    "bytes_per_pack": Removed(
        None, "leave it out: gradients are reduced as one pack, which is TensorFlow's default"
    ),
    "threads_per_replica": Removed(
        1, "leave it out: an operation of a virtual replica has one thread, as with the value 1"
    ),
    "reduce_order": Removed(
        "fixed", "leave it out: virtual replicas are added in a fixed order, as with the value fixed"
    ),
    "survivor_memory": Removed(1 << 30, "leave it out: the chief's state may take 1 GiB, as by default"),
    "sum_embedding_rows": Removed(
        False, "use --keras legacy, whose optimizers get the sum of a row's lookups"
    ),
    "tensorboard_histograms": Removed(
        None, "give fit keras.callbacks.TensorBoard(ctx.output_dir, histogram_freq=N)"
    ),
    "tensorboard_graph": Removed(
        False, "give fit keras.callbacks.TensorBoard(ctx.output_dir, write_graph=True)"
    ),
    "ps_staleness": Removed(0, "leave it out: a worker reads the weights in each step, as with the value 0"),
}


def removed_option(name: str) -> str | None:
    """Returns a sentence about an option that is gone; None for any other name."""
    return f"option {name!r} was removed; {REMOVED[name].remedy}" if name in REMOVED else None


def removed_settings(spec: Mapping[str, Any]) -> list[str]:
    """Returns a sentence for each option that an older run had set and that is gone, for its next run."""
    return [
        f"the run had {name} {spec[name]}, and that option was removed; {removed.remedy}"
        for name, removed in REMOVED.items()
        if spec.get(name, removed.default) != removed.default
    ]
