"""Functions as bytes, for those that no module has: of `__main__`, a notebook, a closure."""

from __future__ import annotations

from ray import cloudpickle


def pickle_by_value(function: object) -> bytes:
    """Returns what `pickle.loads` makes the function of again, on any host with the same Python."""
    pickled: bytes = cloudpickle.dumps(function)  # type: ignore[no-untyped-call]
    return pickled
