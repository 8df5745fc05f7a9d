"""Collects the gradients that a training step gives to its optimizers, in place of applying them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from raydist import op_types, tf_private
from raydist.training.replicas.all_reduce import values_of
from raydist.training.user_code import linearity


@dataclass(frozen=True)
class Update:
    """What one optimizer was given once: gradients, and the variables they are for.

    Attributes:
      is_reduced: Whether the step has summed the gradients over replicas itself.
      before_clipping: For each gradient that was clipped, the one that a tape gave for its variable, if
        any; else None.
      is_clipped: Whether something that is not linear, such as clipping, was done to one of the gradients.
    """

    optimizer: Any
    gradients: tuple[Any, ...]
    variables: tuple[Any, ...]
    is_reduced: bool = False
    before_clipping: tuple[Any, ...] = ()
    is_clipped: bool = False


class Statistics:
    """The statistics by which layers normalise a batch, in the order in which they compute them.

    Gradients of parts that are each normalised by their own statistics do not add up to those of the batch,
    however losses are written. If each part has the whole batch's statistics as constants, they do.

    Attributes:
      of_batch: The tensors of the graph in whose place those of another batch can be put.
    """

    def __init__(self) -> None:
        self.layers: list[Any] = []
        self.of_batch: list[tf.Tensor] = []
        self._graph = tf.compat.v1.get_default_graph()

    def of(self, layer: Any, compute: Callable[[], Any]) -> Any:
        """Returns `compute()` as a constant."""
        if tf.compat.v1.get_default_graph() is not self._graph:  # in a loop, for example
            return compute()
        found = tf.nest.map_structure(
            lambda one: tf.stop_gradient(one, name=linearity.OF_WHOLE_BATCH), compute()
        )
        self.of_batch += tf.nest.flatten(found)
        self.layers += [layer] if all(one is not layer for one in self.layers) else []
        return found


@dataclass
class Probe:
    """Takes part in tracing a training step outside of the strategy.

    Attributes:
      strategy: The model's, in whose scope variables are made that the step makes in its first call.
      means: The `Mean` metrics that were given a scalar without a weight, with that scalar, in order.
      weighted_means: Those that were given one with a weight.
      of_metrics: What tf_keras's metrics were given, which are not updated.
      statistics: By which layers normalise; None where each trace has its own.
    """

    strategy: tf.distribute.Strategy
    updates: list[Update] = field(default_factory=list)
    means: list[tuple[Any, Any]] = field(default_factory=list)
    weighted_means: list[tuple[Any, Any]] = field(default_factory=list)
    of_metrics: list[Any] = field(default_factory=list)
    statistics: Statistics | None = None
    _of_tapes: list[tuple[set[int], Any]] = field(default_factory=list)
    _graph: Any = None

    def collect(self, step: Callable[[], Any]) -> list[Update]:
        """Runs `step` and returns what it gave to its optimizers, which change nothing."""
        self.updates, self.means, self.weighted_means = [], [], []
        self.of_metrics, self._of_tapes = [], []
        self._graph = tf.compat.v1.get_default_graph()
        gradient = tf.GradientTape.gradient

        def noted(tape: tf.GradientTape, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
            found = gradient(tape, target, sources, *args, **kwargs)
            for source, one in zip(tf.nest.flatten(sources), tf.nest.flatten(found), strict=False):
                if one is not None and not isinstance(source, tf.Tensor):
                    self._of_tapes.append((tf_private.ids_of([source]), one))
            return found

        with (
            tf_private.changed(_Active, probe=self),
            tf_private.changed(tf.GradientTape, gradient=noted),
            tf_private.inlined_functions(),
            tf.variable_creator_scope(self._in_scope),
        ):
            step()
        return self.updates

    def _in_scope(self, create: Callable[..., Any], **options: Any) -> Any:
        """Makes a variable that the user's code makes in its first call, which is here, for all replicas."""
        initial = options.get("initial_value")
        static = tf.get_static_value(initial) if tf.is_tensor(initial) else initial
        is_of_scope = not tf_private.is_default(tf.distribute.get_strategy())
        if is_of_scope or static is None or "use_resource" in options:
            return create(**options)
        with tf_private.made_in_scope(self.strategy):
            return tf.Variable(**{**options, "initial_value": static})

    def note_mean(self, metric: Any, value: Any, *, is_weighted: bool) -> None:
        """Notes a scalar that a `Mean` metric is given.

        Not one of a graph of Keras's own, in which it finds the shapes of a layer's outputs.
        """
        if tf_private.outside_of_control_flow(tf.compat.v1.get_default_graph()) is self._graph:
            (self.weighted_means if is_weighted else self.means).append((metric, value))

    def note_given(self, values: Any) -> None:
        """Notes what a metric is given, such as a distribution that it takes for a tensor."""
        for value in tf.nest.flatten(values):
            try:
                self.of_metrics.append(tf.convert_to_tensor(value))
            except (TypeError, ValueError):  # ragged, for example
                self.of_metrics += tf.nest.flatten(value, expand_composites=True)

    def record(
        self, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any], *, is_reduced: bool = False
    ) -> None:
        # Those of a `tf.custom_gradient` have no telling name, so tapes' results are known by their ids.
        of_tapes = {id(getattr(values_of(one), "op", None)) for _, one in self._of_tapes}
        are_clipped = [one is not None and _is_clipped(one, of_tapes) for one in gradients]
        before_clipping = tuple(
            self._before_clipping(gradient, variable) if is_clipped else None
            for gradient, variable, is_clipped in zip(gradients, variables, are_clipped, strict=True)
        )
        given = (tuple(gradients), tuple(variables), is_reduced, before_clipping, any(are_clipped))
        self.updates.append(Update(optimizer, *given))

    def _before_clipping(self, gradient: Any, variable: Any) -> Any:
        """Returns the last gradient of a tape's from which one was made; None without one."""
        ids = tf_private.ids_of([variable])
        ahead = {id(one) for one in tf_private.ops_behind(values_of(gradient))}
        of_variable = (one for of, one in reversed(self._of_tapes) if of == ids)
        return next((one for one in of_variable if id(values_of(one).op) in ahead), None)


def _is_clipped(gradient: Any, of_tapes: Collection[int]) -> bool:
    """Whether something that is not linear, such as clipping, was done to a gradient in a graph.

    TensorFlow names what a tape computes (eager/backprop.py, `_gradient_function`).

    Args:
      of_tapes: Ids of the operations whose results tapes have returned.
    """
    ahead = [values_of(gradient)]
    seen: set[int] = set()
    while ahead:
        tensor = ahead.pop()
        op = getattr(tensor, "op", None)
        if op is None or id(op) in seen or id(op) in of_tapes or op.name.startswith("gradient_tape/"):
            continue
        if op.type in op_types.NOT_LINEAR:
            return True
        seen.add(id(op))
        ahead += op.inputs
    return False


class _Active:
    """The probe that steps are traced for now. MirroredStrategy traces replicas in threads, one at a time."""

    probe: Probe | None = None


def statistics_of(layer: Any, compute: Callable[[], Any]) -> Any:
    """Returns what `compute` finds of the batch that a layer normalises; see `Statistics`."""
    probe = active()
    if probe is None or probe.statistics is None:
        return compute()
    return probe.statistics.of(layer, compute)


def active() -> Probe | None:
    """Returns the probe that the step being traced belongs to, if any."""
    return _Active.probe
