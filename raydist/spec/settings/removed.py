"""Options that raydist no longer has, and what replaces each: for errors, and for records of older runs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raydist.spec.settings.roles import NAMES, RESOURCES, WITH_GPUS, merged


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
    "keep_runs": Removed(None, "run raydist delete --older-than 30d --yes, by cron or with --on-end"),
    "ps_staleness": Removed(0, "leave it out: a worker reads the weights in each step, as with the value 0"),
}


# Those that each role had for each amount, and what is written in their place.
OF_ROLES: Mapping[str, tuple[str, str]] = {
    f"{amount}_per_{role.replace('-', '_')}": (role, amount)
    for amount, roles in {**dict.fromkeys(("cpus", "memory", RESOURCES), NAMES), "gpus": WITH_GPUS}.items()
    for role in roles
}
_RENAMED = {"mend_keras": "patch_keras"}


def with_new_names(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what an older raydist wrote, with the names of today: `resources` for what each role had."""
    named = {_RENAMED.get(name, name): value for name, value in spec.items()}
    olds = [name for name in named if name in OF_ROLES]
    if named.get("gpus_per_evaluator") == 0:
        named["gpus_per_evaluator"] = None
    if olds:
        named[RESOURCES] = _by_role({name: named.pop(name) for name in olds})
    return named


def _by_role(amounts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns `{"worker": {"cpus": 4}}` for `{"cpus_per_worker": 4}`."""
    parted = [(*OF_ROLES[name], value) for name, value in amounts.items()]
    return merged(*({role: {amount: value}} for role, amount, value in parted))


def with_roles(written: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options with `resources` in the place of the amounts that each role had, which it overrides."""
    olds = {name: value for name, value in written.items() if name in OF_ROLES}
    named = {name: value for name, value in written.items() if name not in OF_ROLES}
    new = named.get(RESOURCES, {})
    if olds and _is_by_role(new):
        named[RESOURCES] = merged(_by_role(olds), new)
    return named


def _is_by_role(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(one, Mapping) for one in value.values())


def line_of_roles(written: Mapping[str, Any], *, is_yaml: bool) -> str | None:
    """Returns a sentence with the line to write in the place of amounts that each role had; None without."""
    olds = {name: value for name, value in written.items() if name in OF_ROLES}
    if not olds:
        return None
    new = written.get(RESOURCES, {})
    value = merged(_by_role(olds), new if _is_by_role(new) else {})  # a second one would take its place
    line = re.sub(r'"([a-z-]+)":', r"\1:", json.dumps(value)) if is_yaml else repr(value)
    return _renamed([*olds], f"{RESOURCES}{': ' if is_yaml else '='}{line}")


def words_of_roles(arguments: Sequence[str]) -> tuple[list[str], str | None]:
    """Returns a command line with the words for such amounts, and the same sentence."""
    olds, new, words = [], [], []
    ahead = list(reversed(arguments))
    while ahead:
        flag, equals, value = (argument := ahead.pop()).partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        if not flag.startswith("--") or name not in OF_ROLES or not (equals or ahead):
            words.append(argument)
            continue
        role, amount = OF_ROLES[name]
        value = value if equals else ahead.pop()
        words += (written := [f"--{amount}", f"{role}={value.replace('=', ':')}"])
        olds.append(flag)
        new += written
    return words, _renamed(olds, " ".join(new)) if olds else None


def _renamed(olds: Sequence[str], new: str) -> str:
    return f"{', '.join(olds)} {'is' if len(olds) == 1 else 'are'} now written {new}"


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
