"""Which names of a layer's code make it one that may compare the examples of a batch. No TensorFlow."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from raydist.training.user_code.code_names import has_sum_beside, names_called, takes_whole_batch


class KerasLayer:
    """What Keras has of a layer, as far as it matters here."""

    def add_loss(self, loss: Any) -> None:
        tf.reduce_mean(loss)

    def _flatten_layers(self) -> None: ...


KerasLayer.__module__ = "keras.src.layers.layer"
tf: Any = None


def relu(x: Any) -> Any:
    return tf.where(x > 0, x, 0)


relu.__module__ = "keras.src.activations"


class Layer(KerasLayer):
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class FirstAway(Layer):
    def call(self, x: Any) -> Any:
        return x - x[:1]


class Reversed(Layer):
    def call(self, x: Any) -> Any:
        return x + x[::-1]


class ByIndex(Layer):
    def call(self, x: Any, i: Any) -> Any:
        return x - x[i]


class ByOwnIndex(Layer):
    def call(self, x: Any) -> Any:
        return [x[self.index] for _ in range(2)]


class OfPart(Layer):
    def call(self, x: Any) -> Any:
        return self.fn(x)[0]


class Given(Layer):
    def call(self, x: Any, i: Any) -> Any:
        return self.fn(x[i])


class Product(Layer):
    def call(self, x: Any, y: Any) -> Any:
        return x @ y


class ProductInPlace(Layer):
    def call(self, x: Any, y: Any) -> Any:
        x @= y
        return x


class OwnFunction(Layer):
    def call(self, x: Any) -> Any:
        return self.fn(x)


class Mean(Layer):
    def call(self, x: Any) -> Any:
        return x - tf.reduce_mean(x) if self.reduce_mean else x


class Late(Layer):
    def call(self, x: Any) -> Any:
        return self.made_later(x)


class Plain(Layer):
    def call(self, x: Any, training: bool = False) -> Any:
        self.add_loss(x)
        for one in self.blocks:
            x = one(x)
        for i in range(2):
            x = self.blocks[i](x)
        x = self.scale * self.blocks[0](x) + self.config["bias"] + x["text"]
        return self._helped(self.fn(x)) if training else x

    def _helped(self, x: Any) -> Any:
        return [self.blocks[1](part) for part in (x, x)]


class Recursive(Layer):
    def __init__(self) -> None:
        vars(self)["fn"] = lambda x: self.fn(x)

    def call(self, x: Any) -> Any:
        return self.fn(x)


@pytest.mark.parametrize(
    ("layer", "names"),
    [
        pytest.param(FirstAway(), {"[]"}, id="slice"),
        pytest.param(Reversed(), {"[]"}, id="step"),
        pytest.param(ByIndex(), {"[]"}, id="index"),
        pytest.param(ByOwnIndex(index=0), {"[]", "range"}, id="index-of-its-own"),
        pytest.param(OfPart(fn=Layer()), {"[]"}, id="result"),
        pytest.param(Given(fn=Layer()), {"[]"}, id="given-to-another"),
        pytest.param(Product(), {"@"}, id="product"),
        pytest.param(ProductInPlace(), {"@"}, id="product-in-place"),
        pytest.param(OwnFunction(fn=lambda x: x - x[:1]), {"[]"}, id="function"),
        pytest.param(OwnFunction(fn=relu), {"relu"}, id="function-of-keras"),
        pytest.param(OwnFunction(fn=len), {"builtin_function_or_method"}, id="function-without-code"),
        pytest.param(OwnFunction(fn=Layer()), set(), id="inner-layer"),
        pytest.param(Mean(reduce_mean=True), {"tf", "reduce_mean"}, id="attribute-named-like-a-function"),
        pytest.param(Late(), {"made_later"}, id="unknown-attribute"),
        pytest.param(
            Plain(blocks=[Layer()], scale=2.0, config={}, fn=lambda x: x * 2), {"range"}, id="each-by-itself"
        ),
        pytest.param(Recursive(), {"self"}, id="recursive"),
    ],
)
def test_names_of_a_layer(layer: Any, names: set[str]) -> None:
    assert names_called(layer) == names


class Dice:
    """What Keras has of a loss."""

    def __init__(self, axis: Any = None) -> None:
        self.axis = axis


Dice.__module__ = "keras.src.losses.losses"


def tversky(y_true: Any, y_pred: Any) -> Any:
    """A function of Keras's."""


tversky.__module__ = "keras.src.losses.losses"


class UsersDice(Dice):
    """One of the user's own, which the check of losses looks at anyway."""


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (Dice(), True),
        (Dice(axis=(1, 2, 3)), False),
        (Dice(axis=(0, 1)), True),
        ("dice", True),
        ("mse", False),
        (tversky, True),
        (UsersDice(), False),
    ],
)
def test_losses_of_keras_that_compare_examples_are_known(loss: Any, expected: bool) -> None:
    assert takes_whole_batch(loss) is expected


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([Dice(), SimpleNamespace(reduction="sum")], True),
        ({"mask": "dice", "edges": SimpleNamespace(reduction="sum")}, True),
        ([Dice(), SimpleNamespace(reduction="sum_over_batch_size")], False),
        ([Dice(axis=(1, 2)), SimpleNamespace(reduction="sum")], False),
        (SimpleNamespace(reduction="sum"), False),
    ],
)
def test_sums_beside_losses_that_compare_examples_are_known(losses: Any, expected: bool) -> None:
    assert has_sum_beside(SimpleNamespace(loss=losses)) is expected
