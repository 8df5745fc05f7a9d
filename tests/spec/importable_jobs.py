"""Jobs at the top level of a module that another process can import."""

from __future__ import annotations

import raydist


@raydist.job(ps=1, params={"lr": 1e-3})
def train(ctx: object) -> str:
    """Trains."""
    return f"trained {ctx}"


def plain(ctx: object) -> str:
    return f"plain {ctx}"


def make_closure(value: int) -> object:
    return lambda ctx: value
