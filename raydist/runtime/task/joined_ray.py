"""Ray in a task's process, for a job that calls it by itself: `ray.init()` there joins the run's Ray.

The process is none of Ray's, so Ray connects it as a driver: when it is first asked for something, by its own
auto-init, or by the job's `ray.init()`. RAY_ADDRESS says where; of the namespace Ray reads no variable.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


class JoinedRay(MetaPathFinder):
    """Finds `ray`, and gives its `init` the namespace of the run."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname == "ray" else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    def __init__(self, original: Loader) -> None:
        self._original = original

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._original.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._original.exec_module(module)
        module.__dict__["init"] = functools.partial(
            module.__dict__["init"],
            namespace=os.environ.get("RAY_NAMESPACE"),
            # The task's log is not the place for what all processes of the job print.
            log_to_driver=False,
            logging_level=logging.WARNING,
        )
