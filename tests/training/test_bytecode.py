"""What a function names and holds, and a copy of it that holds something else. No TensorFlow."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from raydist.training.user_code.bytecode import held_by, holding, may_read_after, names_in

SIZE = 2


def made() -> Callable[..., tuple[Any, ...]]:
    inside = 3

    def function(x: int, given: int = 5, *, named: int = 7) -> tuple[Any, ...]:
        return SIZE, inside, given, named, [len(str(one)) for one in range(x)]

    return function


def test_names_are_also_those_of_functions_inside() -> None:
    def outer() -> Any:
        return lambda layer: layer.add_loss(SIZE)

    assert names_in(outer) >= {"add_loss", "SIZE"}
    assert names_in(outer().__get__(1)) >= {"add_loss", "SIZE"}
    assert names_in(len) == frozenset()


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [("global", "SIZE", 2), ("cell", "inside", 3), ("default", "given", 5), ("keyword default", "named", 7)],
)
def test_copy_holds_another_value_and_the_function_stays(kind: str, name: str, value: int) -> None:
    function: Any = made()
    held = {(one, of): found for one, of, found in held_by(function)}
    assert held[kind, name] == value
    before = function(0)
    copied = holding(function, kind, name, lambda found: found * 10)
    assert copied(0) == tuple(one * 10 if one == value else one for one in before)
    assert function(0) == before
    assert (copied.__name__, copied.__qualname__) == (function.__name__, function.__qualname__)


class Hooks:
    """Hooks of batches, as callbacks have them."""

    seen: Any = None

    def reads(self, batch: int, logs: Any = None) -> None:
        self.seen = logs["loss"]

    def counts(self, batch: int, logs: Any = None) -> None:
        self.seen = batch

    def keeps(self, batch: int, logs: Any = None) -> None:
        self.seen = lambda: logs

    def takes_any(self, *args: Any) -> None:
        self.seen = args

    def passes_on(self, batch: int, logs: Any = None) -> None:
        self.reads(batch, logs)

    def takes_more(self, batch: int, logs: Any = None, is_shown: bool = False) -> None:
        self.seen = logs

    def by_name(self, batch: int, *, logs: Any = None) -> None:
        self.seen = logs

    @functools.wraps(counts)
    def wraps(self, batch: int, logs: Any = None) -> None:
        self.seen = logs


@pytest.mark.parametrize(
    ("hook", "num_others", "expected"),
    [
        (Hooks.reads, 2, True),
        (Hooks.counts, 2, False),
        (Hooks.keeps, 2, True),
        (Hooks.takes_any, 2, True),
        (Hooks.passes_on, 2, True),
        (Hooks.takes_more, 2, True),
        (Hooks.by_name, 2, True),
        (Hooks.wraps, 2, True),
        (lambda batch, logs: print(batch), 1, False),
        (lambda batch, logs: print(batch, logs), 1, True),
        (functools.partial(print, "end"), 1, True),
        (print, 1, True),
    ],
)
def test_only_functions_that_may_read_later_arguments_are_said_to(
    hook: Any, num_others: int, expected: bool
) -> None:
    assert may_read_after(hook, num_others) is expected
