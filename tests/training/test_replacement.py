"""Where a function or a class of raydist's takes the place of a library's: here one that is made up."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import pytest

from raydist.training.keras_patches.replacement import (
    Replacement,
    lowered,
    marked_in,
    overrides,
    put_below,
    replaces,
)


class Trainer:
    def fit(self, x: int, *, epochs: int = 1) -> list[str]:
        return [f"fit {x} for {epochs}"]

    def evaluate(self, x: int) -> list[str]:
        return [f"evaluate {x}"]


class Model(Trainer):
    pass


class Layer:
    pass


class Whole(Layer):
    """A class that has its methods itself, as tf_keras's Model."""

    def fit(self, x: int, *, epochs: int = 1) -> list[str]:
        return [f"fit {x} for {epochs}"]

    def evaluate(self, x: int) -> list[str]:
        return [f"evaluate {x}"]


StockWhole: Any = lowered(Whole, ["fit", "not there"])


class OwnTrainer(Trainer):
    @overrides("self x ...", "0123456789ab", because="it counts")
    def fit(self, *args: Any, **kwargs: Any) -> list[str]:
        return ["own", *super().fit(*args, **kwargs)]


class OwnWhole(StockWhole):  # type: ignore[misc]
    @overrides("self x ...", because="it counts")
    def fit(self, *args: Any, **kwargs: Any) -> list[str]:
        return ["own", *super().fit(*args, **kwargs)]


class Adapter:
    def first(self, x: int) -> int:
        return x

    def second(self, x: int) -> int:
        return x


@replaces(Adapter, "first second", "self x", because="it is wrong by one")
def one_more(original: Any, self: Any, x: int) -> int:
    return int(original(self, x)) + 1


@pytest.mark.parametrize(("owner", "own"), [(Model, OwnTrainer), (Whole, OwnWhole)])
def test_users_class_reaches_ours_by_super_and_ours_the_librarys(owner: Any, own: Any) -> None:
    class Users(owner):
        def fit(self, *args: Any, **kwargs: Any) -> list[str]:
            return ["user's", *super().fit(*args, **kwargs)]

    made_before, signature = Users(), inspect.signature(owner.fit)
    put_below(owner, own)
    assert made_before.fit(3, epochs=2) == Users().fit(3, epochs=2) == ["user's", "own", "fit 3 for 2"]
    assert isinstance(made_before, own)
    assert inspect.signature(owner.fit) == signature
    assert owner.fit.__qualname__.endswith(".fit")
    assert Users().evaluate(4) == ["evaluate 4"]


def test_marks_say_what_is_replaced_and_overridden() -> None:
    found = {str(one): one for one in marked_in(sys.modules[__name__])}
    assert set(found) == {"Adapter.first", "Adapter.second", "Trainer.fit", "Whole.fit"}
    assert {one.fits for one in found.values()} == {True}
    assert [name for name, one in found.items() if not one.is_known] == ["Trainer.fit"]
    assert {found[name].make for name in ("Trainer.fit", "Whole.fit")} == {None}
    for name in ("first", "second"):
        item = found[f"Adapter.{name}"]
        assert item.make is not None
        assert item.make(vars(Adapter)[name])(Adapter(), 4) == 5


@pytest.mark.parametrize(("parameters", "fits"), [("self x", True), ("self y", False), ("self ...", True)])
def test_function_with_other_parameters_does_not_fit(parameters: str, fits: bool) -> None:
    item = Replacement(owner=Adapter, name="first", parameters=parameters, make=None, reason="")
    assert item.fits is fits


def test_function_that_is_not_there_does_not_fit() -> None:
    assert not Replacement(owner=Adapter, name="third", parameters="self", make=None, reason="").fits
