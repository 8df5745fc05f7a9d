"""Which programs the tests of this run are about: a launch for all of them runs no others."""

from __future__ import annotations

from typing import Any

import pytest


def selected(request: pytest.FixtureRequest, name: str, **parameters: object) -> tuple[Any, ...]:
    """Returns the values of a parameter in the tests of this module that pytest runs, in their order.

    Args:
      parameters: Only of tests that have these values of other parameters.
    """
    cases = [
        dict(item.callspec.params)
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.module is request.module
        and hasattr(item, "callspec")
        and item.get_closest_marker("skip") is None
    ]
    found = [case[name] for case in cases if name in case and parameters.items() <= case.items()]
    return tuple(dict.fromkeys(found))
