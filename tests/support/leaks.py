"""What a test may leave behind: threads, processes, actors, placement groups, scratch folders."""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields
from pathlib import Path


@dataclass(frozen=True)
class Snapshot:
    """What there is now, of this process, its Ray and this host."""

    threads: frozenset[str]
    children: frozenset[str]
    actors: frozenset[str]
    placement_groups: frozenset[str]
    scratch_folders: frozenset[str]

    @classmethod
    def take(cls) -> Snapshot:
        import ray
        from ray._private import state

        from raydist.runtime.host.scratch import scratch_root

        groups = ray.util.placement_group_table().items()
        root = scratch_root()
        return cls(
            threads=frozenset(thread.name for thread in threading.enumerate()),
            children=frozenset(_children()),
            actors=frozenset(id_ for id_, info in state.actors().items() if info["State"] != "DEAD"),
            placement_groups=frozenset(id_ for id_, info in groups if info["state"] != "REMOVED"),
            scratch_folders=frozenset(path.name for path in root.iterdir()) if root.exists() else frozenset(),
        )

    def beyond(self, before: Snapshot) -> dict[str, frozenset[str]]:
        """Returns what is here and was not before."""
        new = {field.name: getattr(self, field.name) - getattr(before, field.name) for field in fields(self)}
        return {name: found for name, found in new.items() if found}


def _children() -> set[str]:
    return {pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}
