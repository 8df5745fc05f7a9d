"""What a program returns: each variable that its training has changed, and the history."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The end of one program in one task.

    Attributes:
      variables: By name each variable of its models and optimizers.
      history: By the name of a metric, its value in each epoch.
    """

    variables: Mapping[str, np.ndarray]
    history: Mapping[str, np.ndarray] = field(default_factory=dict)

    def check_variables(self, expected: Outcome, *, atol: float) -> None:
        """Fails for a variable that is too far from the expected one, and first for the furthest."""
        assert self.variables.keys() == expected.variables.keys()
        distances = {
            name: np.max(np.abs(_float(variable) - _float(expected.variables[name])))
            for name, variable in self.variables.items()
        }
        for name in sorted(distances, key=distances.__getitem__, reverse=True):
            # rtol: sums of squared gradients, which some optimizers keep, have other sizes than weights.
            np.testing.assert_allclose(
                self.variables[name], expected.variables[name], atol=atol, rtol=1e-6, err_msg=name
            )

    def check_history(self, expected: Outcome, *, atol: float) -> None:
        assert self.history.keys() == expected.history.keys()
        for name, values in expected.history.items():
            np.testing.assert_allclose(self.history[name], values, atol=atol, rtol=1e-4, err_msg=name)


def outcome(history: Any, *, models: Sequence[Any], optimizers: Sequence[Any] = ()) -> Outcome:
    """Returns what the variables of models and optimizers are now.

    Args:
      history: A Keras `History`, or a mapping of a metric's name to its values.
      models: Their compiled optimizers are added to `optimizers`.
    """
    compiled = [model.optimizer for model in models if getattr(model, "optimizer", None) is not None]
    variables = [variable for one in (*models, *compiled, *optimizers) for variable in _variables_of(one)]
    values = history if isinstance(history, Mapping) else history.history
    return Outcome(
        variables={f"{number:03} {name}": value for number, (name, value) in enumerate(variables)},
        history={_uncounted(name): np.asarray(one, dtype="float64") for name, one in values.items()},
    )


def _uncounted(name: str) -> str:
    """Returns a name without the numbers of layers, which a process counts over all of its programs."""
    return re.sub(r"_\d+(?=[/_:]|$)", "", name)


def _float(array: np.ndarray) -> np.ndarray:
    return array.astype("float64").reshape(-1) if array.size else np.zeros(1)


def _variables_of(trackable: Any) -> list[tuple[str, np.ndarray]]:
    found = trackable.variables
    found = found() if callable(found) else found
    # A table of words is not a variable of tf.distribute.
    found = [one for one in found if hasattr(one, "numpy")]
    scales = [(name, getattr(trackable, name, None)) for name in ("loss_scale", "dynamic_counter")]
    # The last part: tf_keras puts in front of it in which function a variable was made.
    names = [_uncounted(getattr(one, "path", one.name)).rpartition("/")[2] for one in found]
    # Those of tf_keras's LossScaleOptimizer are not among its variables.
    more = [(name, np.asarray(one)) for name, one in scales if one is not None]
    return [*((name, np.asarray(one.numpy())) for name, one in zip(names, found, strict=True)), *more]
