"""What raydist asks of a model, whichever Keras it is of."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import keras
import tensorflow as tf

from raydist.errors import UnsupportedError
from raydist.training.input.shuffle_seeds import Unread
from raydist.training.input.sources import Start
from raydist.training.keras_patches.keras3.adapter import Keras3
from raydist.training.stepping.fit_session import FitSession


class KerasAdapter(Protocol):
    """One Keras, as far as models of the two differ.

    Attributes:
      continues_py_datasets: Whether an epoch of fewer steps than a PyDataset has batches leaves the rest to
        the next one; else each epoch starts over.
      ends_epochs_with_arrays: Whether an epoch ends when the arrays run out, even if it has steps left. Else
        the next pass continues it, and training ends after as many passes as epochs.
      continues_validation: Whether a validation of `validation_steps` takes up the data where the one before
        has ended; else each starts over.
      opens_sizes: Whether batches of generators and PyDatasets may differ in every size; else in those in
        which the first two differ.
      unread: Which iterators a `fit`, and each `evaluate`, makes besides those that it reads.
      has_sharded_variables: Whether layers can hold variables that a partitioner has cut.
    """

    library: Any
    continues_py_datasets: bool
    ends_epochs_with_arrays: bool
    continues_validation: bool
    opens_sizes: bool
    unread: Unread
    has_sharded_variables: bool

    def check_supported(self, model: Any, strategy: tf.distribute.Strategy) -> None:
        """Raises UnsupportedError for what a compiled model asks for and cannot work under `strategy`."""

    def steps_taken(self, model: Any, asked: int | None) -> int | None:
        """Returns the steps that an epoch takes of data that continue, where `asked` are given."""

    def build(self, model: Any, element_spec: Any) -> None:
        """Makes the variables of a model, its optimizer and metrics, for a batch of that structure."""

    def begin_fit(self, model: Any, element_spec: Any, *, first: Start, session: FitSession | None) -> None:
        """Has the `fit` under way begin at `first`, and the model built. Called in on_train_begin.

        Args:
          element_spec: Structure of one replica's batch; None where the user calls `fit`.
        """

    def end_training(self, model: Any) -> None:
        """Has the optimizer finish the weights, as this Keras's `fit` does at its end."""

    def class_weights(self, class_weight: Mapping[int, float]) -> Callable[..., Any]:
        """Returns a function of `(x, y)` that adds the weight of each label, as this Keras's `fit` does.

        A class that is left out weighs 1.0 in Keras 3; tf_keras refuses it.
        """

    def is_optimizer(self, value: Any) -> bool:
        """Whether it is an optimizer, which lists its variables once it is built."""

    def is_built(self, optimizer: Any) -> bool:
        """Whether an optimizer has the variables of its updates."""

    def wrapped_variable(self, value: Any) -> Any:
        """Returns the `tf.Variable` of a variable that this Keras has wrapped; None for everything else."""

    def knows_inputs(self, model: Any) -> bool:
        """Whether the model's own `export` has its inputs' types, without a call that shows them."""

    def random_variables(self, model: Any) -> list[tf.Variable]:
        """Returns the states of generators in a model's layers that the model does not list."""

    def serving(
        self, model: Any
    ) -> AbstractContextManager[tuple[Callable[[Any], Any], list[Any], list[Any]]]:
        """Yields a function of a batch's inputs, and plain variables to fill for it, in the model's order; at
        last those that it changes without effect.

        Trace the function inside of the block, and outside of every strategy's scope.
        """

    def converted(self, model: Any, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Returns a model's `train_step` or `test_step` as this Keras would trace it."""


_KERAS_3 = Keras3()


def adapter_of(model: Any) -> KerasAdapter:
    """Returns the adapter of a model's Keras; raises UnsupportedError for what is not a model."""
    if isinstance(model, keras.Model):
        return _KERAS_3
    # No model of Keras 3, so tf_keras is there already, or this is a mistake.
    from raydist.training.keras_patches.tf_keras.adapter import TfKeras

    if isinstance(model, TfKeras.library.Model):
        return TfKeras()
    raise UnsupportedError(
        f"the model is {type(model).__name__}; give a compiled keras.Model or tf_keras.Model"
    )


def is_model(value: Any) -> bool:
    """Whether it is a model of one of the Kerases; imports neither."""
    tf_keras = sys.modules.get("tf_keras")
    return isinstance(value, keras.Model if tf_keras is None else (keras.Model, tf_keras.Model))


def check(model: Any, strategy: tf.distribute.Strategy) -> None:
    """Raises UnsupportedError for a model that cannot be trained under `strategy`."""
    adapter = adapter_of(model)
    if getattr(model, "optimizer", None) is None:
        raise UnsupportedError(f"model {model.name} is not compiled; call model.compile(...) first")
    adapter.check_supported(model, strategy)
    if model.distribute_strategy is not strategy:
        raise UnsupportedError(
            f"model {model.name} was made outside the strategy; build and compile it inside "
            "`with ctx.strategy.scope():`"
        )


def has_own(model: Any, name: str) -> bool:
    """Whether the model's class brings a method of its own, such as `train_step` or `fit`."""
    return getattr(type(model), name) is not getattr(adapter_of(model).library.Model, name)
