"""Where a function or a class of raydist's takes the place of a library's: here one that is made up."""

from __future__ import annotations

import inspect
import re
import sys
import types
from typing import Any

import pytest

from raydist.errors import UnsupportedError
from raydist.training.keras_patches.replacement import (
    Replacement,
    apply,
    around,
    fingerprint_of,
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


KNOWN_SOURCE = fingerprint_of(Adapter.second)


def applied(
    keras: str, tensorflow: str = "2.21.0", *, name: str = "second", source: str = KNOWN_SOURCE
) -> Any:
    library = types.ModuleType("keras")
    library.__version__ = keras  # type: ignore[attr-defined]
    owner = type("Other", (), {"second": Adapter.second})
    item = Replacement(
        owner=owner, name=name, parameters="self x", fingerprints=(source,), make=around(one_more), reason=""
    )
    try:
        return apply([item], library=library, tensorflow=tensorflow)
    finally:
        is_replaced = hasattr(vars(owner)["second"], "__wrapped__")
        assert is_replaced is (source == KNOWN_SOURCE and name == "second" and keras != "3.9.2")


def test_known_versions_are_patched_without_a_word() -> None:
    assert applied("3.15.1") is None


@pytest.mark.parametrize(
    ("keras", "tensorflow", "newer"),
    [
        ("3.99.0", "2.21.0", "keras 3.99.0 is newer than 3.15, the last version that raydist knows"),
        ("3.15.1", "2.99.0", "TensorFlow 2.99.0 is newer than 2.21, the last version that raydist knows"),
    ],
)
def test_newer_version_with_known_sources_is_patched_and_noted(
    keras: str, tensorflow: str, newer: str
) -> None:
    same = "every function of keras that raydist patches is one that it knows, so it patches them"
    assert applied(keras, tensorflow) == f"{newer}; {same}"


@pytest.mark.parametrize(
    ("keras", "options", "told"),
    [
        ("3.99.0", {"source": "0123456789ab"}, 'in Other.second: install "keras>=3.10,<3.16", or go without'),
        ("3.15.1", {"source": "0123456789ab"}, 'install another release of "keras>=3.10,<3.16", or go'),
        ("3.99.0", {"name": "third"}, "differs from the versions that raydist patches in Other.third"),
        ("3.9.2", {}, "keras is 3.9.2; raydist patches 3.10 or later"),
    ],
)
def test_what_differs_is_refused_with_the_remedy(keras: str, options: dict[str, str], told: str) -> None:
    with pytest.raises(UnsupportedError, match=re.escape(told)) as raised:
        applied(keras, **options)
    assert str(raised.value).endswith("or go without the patches with --no-patch-keras")
